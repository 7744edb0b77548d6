"""Equilibria: fixed points of maps, constraints of their states, and the master equation of Markov chains."""

from attractor.equilibrium import fixed_point, manifold, master_equation

__all__ = ["fixed_point", "manifold", "master_equation"]
