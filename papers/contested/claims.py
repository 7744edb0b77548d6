"""Disputes about attention mechanisms, in logs, issues and papers that contradict one another (`page.md`).

Each claim is what one side says. What is worth a change is two per cent of GPT-2's perplexity, as elsewhere here; the
margin is half of it.
"""

from dataclasses import replace

from attractor.claims.claim import Claim, Paper
from attractor.claims.comparisons import Pair
from attractor.claims.rules import Differs, InRegime
from attractor.runs.quantity import ACCURACY

from ..published import MATTERS, better
from .rules import Factorial

LOOKS = (8, 16)
BOTH = "xsa, gated-heads"
LENGTH = "16 windows"
FAR = 0.5  # the share of pairs beyond the window that a layer without window would add; guessing recalls one in sixteen


def factorial(name: str, effect: float, **weights: float) -> Factorial:
    by_row = tuple((row.replace("_", "-").replace("both", BOTH), weight) for row, weight in weights.items())
    return Factorial(Pair("xsa", "standard", effect, abs(effect) / 2), by_row, LOOKS, name=name)


def alone(mechanism: str) -> Differs:
    (pair,) = better(mechanism, "standard")
    return Differs((replace(pair, margin=MATTERS / 2),))


def recalls_more(of: str) -> Differs:
    return Differs((Pair(of, "window", FAR, FAR / 2, LENGTH),), ACCURACY)


def where_full_attention_recalls(rule: Differs) -> InRegime:
    """Softmax attention that sees everything may still guess when training ends; then no window explains a failure."""
    why = "these steps do not suffice to learn the task, whatever a layer sees"
    return InRegime(rule, ("full",), ACCURACY, why, least=0.9, columns=(LENGTH,))


CLAIMS = (
    Claim(
        "X1",
        "exclusive attention lowers the loss, with and without gates",
        "for: its paper, modded-nanogpt PR 264, marin #4043; against: nanochat's log, marin #8227",
        "contested-exclusive",
        factorial("main effect of xsa", -MATTERS, xsa=0.5, both=0.5, gated_heads=-0.5),
    ),
    Claim(
        "X2",
        "a gate for each head lowers the loss, with and without exclusive attention",
        "for: its paper, modded-nanogpt PR 117, marin #4038; against: nanochat's log, marin #4716",
        "contested-exclusive",
        factorial("main effect of gates", -MATTERS, gated_heads=0.5, both=0.5, xsa=-0.5),
    ),
    Claim(
        "X3",
        "exclusive attention and gates are redundant: together they gain less than the sum of both",
        "for: modded-nanogpt PR 317",
        "contested-exclusive",
        factorial("interaction", MATTERS, both=1.0, xsa=-1.0, gated_heads=-1.0),
    ),
    Claim(
        "X4",
        "values of the first layer in those of later ones lower the loss",
        "for: its paper",
        "contested-alone",
        alone("value-residual"),
    ),
    Claim(
        "X5",
        "a short convolution before attention lowers the loss",
        "for: Physics of language models 4.1, modded-nanogpt PR 130; against: nanochat's log (of another form)",
        "contested-alone",
        alone("short-conv"),
    ),
    Claim(
        "X6",
        "learned sinks lower the loss",
        "no side in the issues that were searched; gpt-oss has them",
        "contested-alone",
        alone("sinks"),
    ),
    Claim(
        "X7",
        "differential attention with a weight for every token lowers the loss",
        "for: its authors' post",
        "contested-alone",
        alone("differential-v2"),
    ),
    Claim(
        "X8",
        "one full layer in four recalls what no window sees, in 16 windows",
        "Gemma 3, gpt-oss, OLMo 3 mix such layers",
        "contested-hybrids",
        where_full_attention_recalls(recalls_more("window and full")),
    ),
    Claim(
        "X9",
        "gated DeltaNet with one full layer in four recalls what no window sees, in 16 windows",
        "Kimi Linear mixes three such layers with one of full attention",
        "contested-hybrids",
        recalls_more("DeltaNet and full"),
    ),
    Claim(
        "X10",
        "a slow path over means of tokens recalls what no window sees, in 16 windows",
        "FastSlow, sections 9 and 12, for slow paths in general",
        "contested-hybrids",
        where_full_attention_recalls(recalls_more("window and slow path")),
    ),
)

PAPER = Paper(
    "Contested",
    "Contested attention mechanisms: logs, issues and papers that contradict one another",
    "Several repositories and papers",
    2026,
    None,
    "Exclusive attention, gates, value residuals, sinks, short convolutions and hybrids against one baseline.",
    CLAIMS,
)
