"""Equilibria: fixed points of maps, the manifolds they live on, and the master equation behind them."""
