"""Measure a model passage by passage, and keep its record current."""

from collections.abc import Iterator
from typing import Any

from attractor.console import StartProgress
from attractor.errors import InputError
from attractor.evaluate.causal import Causal
from attractor.evaluate.measures.passages import passages
from attractor.evaluate.measures.plan import Plan
from attractor.evaluate.measures.record import record
from attractor.evaluate.measures.sample import Sample, measured


def records(
    causal: Causal, name: str, plan: Plan, words: str, start_progress: StartProgress, **about: str
) -> Iterator[dict[str, Any]]:
    """Yield the record of a model after each passage of the words. `about` names the text and the dtype."""
    if causal.max_length is not None and plan.length > causal.max_length:
        raise InputError(
            f"length must be at most {causal.max_length:,}, the number of positions of '{causal.name}', got "
            f"{plan.length:,}; give a smaller --length"
        )
    tokens = passages(words, causal.encode, plan.n_samples, plan.length, causal.start, plan.seed)
    n_parameters = sum(parameter.numel() for parameter in causal.model.parameters())
    samples: list[Sample] = []
    with causal.quick_products():
        for sample in measured(causal.model, tokens.to(causal.device), plan, start_progress):
            samples.append(sample)
            content = record(name, plan, samples, **about, n_parameters=n_parameters, device=str(causal.device))
            if causal.trained_length is not None and plan.length > causal.trained_length:
                content["notes"].append(
                    f"The model was trained on {causal.trained_length:,} tokens at a time, so that later positions are "
                    "new to it."
                )
            yield content
