"""Compare the errors that norms, exponents and eigenvalues state with their true errors, on 1,000 Jacobians.

    ratio = |true value - measured value| / stated error                                                    (1)

No ratio may exceed 1, and a warning must come exactly where the stated error exceeds the tolerance. The maps are random
matrices of twelve kinds, and layers of small models that are trained on counting for some seconds each: our presets and
tiny classes of transformers. True values come from the dense matrices in double precision.

    python benchmarks/stated_errors.py
"""

import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attractor.analysis import (
    Effort,
    estimate_eigenvalues,
    estimate_jacobian_norm,
    finite_time,
    finite_time_exponents,
    jacobian,
    jacobian_norm,
)
from attractor.evaluate.measures.sample import layers_of
from attractor.models import TransformerConfig

N_RANDOM, N_PASSAGES = 72, 4  # matrices of each kind, and passages through each trained layer
TOLERANCES = (1e-5, 1e-4, 1e-2)
DIMENSIONS = (3, 20, 70, 150)
PRESETS = ("standard", "differential", "coupled-euler", "mla", "gated", "phase")
VOCABULARY, LENGTH = 11, 8


@dataclass(frozen=True)
class Outcome:
    """One measured value of a map against the true one."""

    quantity: str
    ratio: float  # (1)
    truthful: bool  # a warning was given exactly where the stated error exceeds the tolerance
    n_passes: int  # products with Jacobians and their transposes, of a vector or a whole frame


# --- maps -----------------------------------------------------------------------------------------------------------


def gaussian(n: int, rng: torch.Generator) -> Tensor:
    return torch.randn(n, n, generator=rng, dtype=torch.float64) / n**0.5


def turned(values: Tensor, rng: torch.Generator) -> Tensor:
    """Return a matrix with these singular values and random singular vectors."""
    left, right = (torch.linalg.qr(gaussian(len(values), rng)).Q for _ in range(2))
    return left * values @ right.mT


def clustered(n: int, rng: torch.Generator) -> Tensor:
    return turned(torch.cat([1 - 1e-4 * torch.rand(n // 4 + 1, generator=rng), torch.rand(n, generator=rng)])[:n], rng)


def hidden(n: int, rng: torch.Generator) -> Tensor:
    """Return a matrix whose leading direction is a single coordinate, a little above a large cluster."""
    matrix = turned(torch.linspace(1, 0.9, n), rng)
    matrix[0], matrix[:, 0] = 0.0, 0.0
    matrix[0, 0] = 1 + 10 ** (-4 * float(torch.rand(1, generator=rng)))
    return matrix


def low_rank(n: int, rng: torch.Generator) -> Tensor:
    rank = max(1, min(n - 1, int(torch.randint(1, 6, (1,), generator=rng))))
    return gaussian(n, rng)[:, :rank] @ gaussian(n, rng)[:rank]


RANDOM: dict[str, Callable[[int, torch.Generator], Tensor]] = {
    "gaussian": gaussian,
    "residual": lambda n, rng: torch.eye(n) + 0.3 * gaussian(n, rng),
    "heavy tail": lambda n, rng: turned(torch.rand(n, generator=rng).double().clamp(min=1e-6) ** -0.5, rng),
    "clustered": clustered,
    "hidden": hidden,
    "low rank": low_rank,
    "rotation": lambda n, rng: torch.linalg.qr(gaussian(n, rng)).Q,
    "symmetric": lambda n, rng: (lambda matrix: matrix + matrix.mT)(gaussian(n, rng)),
    "zero": lambda n, rng: torch.zeros(n, n),
    "identity": lambda n, rng: torch.eye(n),
    "tiny": lambda n, rng: 1e-25 * gaussian(n, rng),
    "huge": lambda n, rng: 1e25 * gaussian(n, rng),
}


def random_matrix(kind: str, seed: int) -> Tensor:
    """Return a matrix; dimensions and precisions alternate with the seed."""
    rng = torch.Generator().manual_seed(10_000 + seed)
    matrix = RANDOM[kind](DIMENSIONS[seed % len(DIMENSIONS)], rng)
    return matrix.to((torch.float64, torch.float32)[seed // len(DIMENSIONS) % 2])


def trained_models() -> Iterator[tuple[str, nn.Module]]:
    """Yield small models that have been trained for 60 steps to count modulo the vocabulary."""
    import transformers

    sizes: dict[str, Any] = {"vocab_size": VOCABULARY, "max_seq_len": 16, "d_ff": 32}
    for preset in PRESETS:
        yield preset, trained(TransformerConfig(d_model=16, n_heads=2, n_layers=3, attention=preset, **sizes).build(0))
    tiny = {"vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2}
    tiny |= {
        "intermediate_size": 32,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "pad_token_id": 0,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    for name in ("Llama", "GPTNeoX", "Phi3", "Qwen3", "Gemma2", "Olmo2"):
        torch.manual_seed(0)
        config = getattr(transformers, f"{name}Config")(**tiny)
        yield name, trained(transformers.AutoModelForCausalLM.from_config(config))


def trained(model: nn.Module) -> nn.Module:
    optimizer, rng = torch.optim.AdamW(model.parameters(), lr=1e-2), torch.Generator().manual_seed(0)
    for _ in range(60):
        tokens = counting(16, rng)
        output = model(tokens)
        logits = output[0] if isinstance(output, tuple) else output.logits
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def counting(n_passages: int, rng: torch.Generator) -> Tensor:
    start, stride = (torch.randint(VOCABULARY, (n_passages, 1), generator=rng) for _ in range(2))
    return (start + stride * torch.arange(LENGTH)) % VOCABULARY


# --- measures -------------------------------------------------------------------------------------------------------


def linear(matrix: Tensor) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    return (lambda x: (matrix @ x.unsqueeze(-1)).squeeze(-1)), torch.zeros(len(matrix), dtype=matrix.dtype)


def warned(measure: Callable[[], object]) -> bool:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        measure()
    return any(issubclass(warning.category, RuntimeWarning) for warning in caught)


def ratio(difference: float, error: float) -> float:
    return difference / error if error else (0.0 if difference == 0 else float("inf"))


def of_norm(step: Callable[[Tensor], Tensor], x: Tensor, dense: Tensor, effort: Effort) -> Outcome:
    estimate = estimate_jacobian_norm(step, x, effort=effort)
    norm = float(estimate.norm)
    true = float(torch.linalg.svdvals(dense.double())[0])
    truthful = warned(lambda: jacobian_norm.__wrapped__(estimate)) == bool(estimate.error > estimate.tolerance)
    return Outcome("norm", ratio(abs(true - norm), float(estimate.error) * norm), truthful, 2 * estimate.n_iterations)


def of_exponents(steps: list[Callable[[Tensor], Tensor]], x: Tensor, dense: list[Tensor], k: int) -> Outcome:
    estimate = finite_time(steps, x, k=min(k, x.numel()))
    product = torch.eye(x.numel(), dtype=torch.float64)
    scale = 0.0
    for matrix in dense:
        product = matrix.double() @ product
        size = float(product.abs().max()) or 1.0
        product, scale = product / size, scale + math.log(size)
    true = (torch.linalg.svdvals(product)[: len(estimate.exponents)].log() + scale) / len(steps)
    exponents = estimate.exponents.double()
    rounding = 1e-14 * (1 + true.abs())  # of the true values
    difference = torch.where(exponents.isneginf(), 0.0, (true - exponents).abs() - rounding).max().clamp(min=0.0)
    is_warned = warned(lambda: finite_time_exponents.__wrapped__(estimate))
    n_passes = 2 * len(steps) * estimate.n_sweeps
    truthful = is_warned == bool(estimate.error > estimate.tolerance)
    return Outcome("exponents", ratio(float(difference), float(estimate.error)), truthful, n_passes)


def of_eigenvalues(matrix: Tensor) -> Outcome:
    """Compare the residual of the leading eigenvalue with the distance from singular of J - theta."""
    estimate = estimate_eigenvalues(*linear(matrix))
    theta, residual = complex(estimate.values[0]), float(estimate.residual[0])
    shifted = matrix.to(torch.complex128) - theta * torch.eye(len(matrix))
    distance = float(torch.linalg.svdvals(shifted)[-1])
    rounding = len(matrix) * torch.finfo(matrix.dtype).eps * float(torch.linalg.matrix_norm(matrix, 2))
    return Outcome("residual", ratio(distance, residual * abs(theta) + rounding), True, estimate.n_products)


def of_random_matrix(kind: str, seed: int) -> list[Outcome]:
    """Return the outcomes of all measures on one random matrix."""
    matrix = random_matrix(kind, seed)
    effort = Effort(TOLERANCES[seed % len(TOLERANCES)])
    step, x = linear(matrix)
    outcomes = [of_norm(step, x, matrix, effort)]
    if seed % 12 < 3:
        n_steps = 1 if kind in ("tiny", "huge") else (1, 4, 16)[seed // 12 % 3]
        others = [random_matrix(kind, seed + number * len(DIMENSIONS) * 2) for number in range(n_steps)]
        outcomes.append(of_exponents([linear(other)[0] for other in others], x, others, k=1 + seed % 4))
    return outcomes


def of_trained_model(model: nn.Module) -> list[Outcome]:
    """Return the outcomes of all layers of a model, alone and one after another."""
    outcomes = []
    for tokens in counting(N_PASSAGES, torch.Generator().manual_seed(1)).split(1):
        maps = layers_of(model, tokens)
        dense = [jacobian(step, state) for step, state in zip(maps.steps, maps.states, strict=False)]
        for step, state, matrix in zip(maps.steps, maps.states, dense, strict=False):
            for tolerance in TOLERANCES[1:]:
                outcomes.append(of_norm(step, state, matrix, Effort(tolerance)))
        outcomes.append(of_exponents(list(maps.steps), maps.states[0], dense, k=2))
    return outcomes


def report(kind: str, outcomes: list[Outcome]) -> None:
    """Print the worst ratio by quantity."""
    by_quantity: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_quantity[outcome.quantity].append(outcome)
    for quantity, those in by_quantity.items():
        worst, wrong = max(outcome.ratio for outcome in those), sum(not outcome.truthful for outcome in those)
        passes = sum(outcome.n_passes for outcome in those) / len(those)
        counts = f"{len(those):4} values  {wrong} untruthful warnings  {passes:6.0f} passes each"
        print(f"{kind:13} {quantity:10} worst ratio {worst:7.1e}  {counts}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for kind in RANDOM:
        report(kind, [outcome for seed in range(N_RANDOM) for outcome in of_random_matrix(kind, seed)])
    for name, model in trained_models():
        report(name, of_trained_model(model))
    large = [torch.randn(520, 520, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    report("gaussian", [of_eigenvalues(matrix) for matrix in large])
