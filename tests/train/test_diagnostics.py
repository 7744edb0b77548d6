"""Diagnostics of FastSlow models have known values, and recording them leaves runs the same to the bit."""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from attractor.models import FastSlow, FastSlowConfig
from attractor.models.diagnostics import Diagnostics, summary_of_diagnostics
from attractor.runs.run_folder import RunFolder
from attractor.train.config import Runtime, TrainConfig
from attractor.train.display import Display
from attractor.train.loop import train
from attractor.train.stacked_loop import StackedRun, train_stack
from attractor.train.telemetry import MOST_LOOKS, over_training, trajectories
from same_runs import Listening, train_with_and_without_telemetry

SMALL = FastSlowConfig(vocab_size=320, d_model=16, n_heads=2, d_ff=32, max_seq_len=64, pool_factor=3)
LENGTH = 26  # the tokens form nine blocks, of which eight are read
LOOKING = Runtime(device="cpu", log_every=5, telemetry_every=4)


def diagnostics_of(config: FastSlowConfig, gate: float = 0.5, identity: bool = False) -> Diagnostics:
    """Return the diagnostics of a model with an open gate, whose Post layers change nothing under `identity`."""
    model = config.build(seed=0)
    assert isinstance(model, FastSlow)
    with torch.no_grad():
        model.injection.gate.fill_(math.atanh(gate))
        if identity:
            for block in model.blocks_of(model.post):
                block.attention.output.out.weight.zero_()
                block.mlp.down.weight.zero_()
    tokens = torch.randint(320, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    return Diagnostics(model, lambda: model.hidden(tokens))


@pytest.mark.parametrize(
    ("method", "n_evaluations"), [("single", 1), ("passes", 3), ("anderson", 3), ("deq", 3), ("forced", 3)]
)
def test_every_call_is_recorded_and_the_first_residual_is_the_change_by_post(method: str, n_evaluations: int) -> None:
    """Criterion: the record has Pre, then Post at each evaluation of each round. The first residual of a round is the
    change that Post makes to u."""
    config = SMALL.replace(equilibrium=method, n_iterations=3, n_rounds=2, n_pre=2, n_slow=3)
    look = diagnostics_of(config).look()
    assert look["gate"] == pytest.approx(0.5)
    assert len(look["fast_change"]) == len(look["fast_entropy"]) == 2 + 2 * n_evaluations
    assert len(look["slow_change"]) == len(look["slow_entropy"]) == len(look["slow_memory"]) == 2 * 3
    assert [len(trace) for trace in look["residual"]] == [n_evaluations] * 2
    firsts = look["fast_change"][2::n_evaluations]
    if method != "forced":  # whose residual contains the injection
        assert [trace[0] for trace in look["residual"]] == pytest.approx(firsts, rel=1e-5)
    assert min(firsts) > 0.01


def test_uniform_attention_has_the_entropy_and_the_memory_of_counting() -> None:
    """Criterion: entropy is log(t + 1) nats over t >= 1, and memory is t / 2 positions, in blocks of three tokens."""
    look = diagnostics_of(SMALL.replace(attention="uniform")).look()
    n_blocks = (LENGTH - 1) // 3
    for name, length in (("fast_entropy", LENGTH), ("slow_entropy", n_blocks)):
        expected = sum(math.log(t + 1) for t in range(1, length)) / (length - 1)
        assert look[name] == pytest.approx([expected] * len(look[name]), rel=1e-5)
    assert look["slow_memory"] == pytest.approx([3 * (1 + (n_blocks - 1) / 4)] * 4, rel=1e-5)


def test_sinks_take_part_in_entropies_and_not_in_memories() -> None:
    """Criterion: with equal logits, t keys have 1 / (t + 1) each, so the entropy is t / (t + 1) log(t + 1) over rows
    but the first, and memory is that of counting."""
    diagnostics = diagnostics_of(SMALL.replace(attention="sinks"))
    for name, weight in diagnostics.model.named_parameters():
        if "query" in name:
            torch.nn.init.zeros_(weight)
    look, n_blocks = diagnostics.look(), (LENGTH - 1) // 3
    expected = sum(t / (t + 1) * math.log(t + 1) for t in range(2, LENGTH + 1)) / (LENGTH - 1)
    assert look["fast_entropy"] == pytest.approx([expected] * len(look["fast_entropy"]), rel=1e-5)
    assert look["slow_memory"] == pytest.approx([3 * (1 + (n_blocks - 1) / 4)] * 4, rel=1e-5)


def test_a_decaying_slow_state_starts_with_its_initial_memory() -> None:
    """Criterion: memory is 256 positions of three tokens in every call, since the initial decay is the same for every
    input."""
    look = diagnostics_of(SMALL.replace(slow_attention="decay")).look()
    assert look["slow_memory"] == pytest.approx([3 * 256.0] * 4, rel=1e-4)


@pytest.mark.parametrize("streams", [1, 4])
def test_a_post_that_changes_nothing_is_at_its_equilibrium(streams: int) -> None:
    """Criterion: all distances of Post are 0 and iteration forgets at once, while the distances of Pre are not 0."""
    diagnostics = diagnostics_of(SMALL.replace(equilibrium="deq", n_iterations=3, streams=streams), identity=True)
    look = diagnostics.look()
    if streams == 1:  # several streams are mixed even where Post adds nothing
        assert look["residual"] == [[0.0] * 3] * 2
        assert look["fast_change"][1:] == [0.0] * 6
    assert look["fast_change"][0] > 0.01
    found = diagnostics.convergence()
    assert found is not None
    if streams == 1:
        assert found.record == {"contraction": 0.0, "unsolved": 0.0}
        assert found.warning is None


@pytest.mark.parametrize("method", ["deq", "forced", "passes", "anderson", "single"])
def test_an_expanding_post_is_reported_by_all_methods_but_a_single_pass(method: str) -> None:
    """Criterion: with branches ten times as large no token converges, and the warning has the count and the
    residual. The tolerance decides for each token: a tolerance above every residual leaves none unsolved."""
    for tolerance in (1e-3, 1e9) if method != "single" else (1e-3,):
        diagnostics = diagnostics_of(SMALL.replace(equilibrium=method, n_iterations=2, solver_tolerance=tolerance))
        with torch.no_grad():
            for weight in diagnostics.model.residual_outputs():
                weight.mul_(10)
        found = diagnostics.convergence()
        assert found is not None
        assert found.growth > 1
        if method == "single":
            assert found.warning is None
            assert found.record.keys() == {"contraction"}
            continue
        n_tokens = 4 * LENGTH  # of two sequences and two rounds
        n_unsolved = n_tokens if tolerance < 1 else 0
        assert (found.n_unsolved, found.n_tokens) == (n_unsolved, n_tokens)
        assert found.record["unsolved"] == n_unsolved / n_tokens
        assert (found.warning is None) == (n_unsolved == 0 and method in ("passes", "anderson"))
        if n_unsolved:
            assert found.warning is not None
            assert f"{method} does not reach its equilibrium: {n_unsolved} of {n_tokens} tokens" in found.warning
            assert f"above {tolerance:g} (largest {found.largest_residual:.2g})" in found.warning


def test_missing_parts_are_not_recorded() -> None:
    frozen = diagnostics_of(SMALL.replace(frozen=True)).look()
    assert frozen.keys() == {"gate", "fast_change", "fast_entropy", "residual"}
    without_post = diagnostics_of(SMALL.replace(n_post=0))
    assert "residual" not in without_post.look()
    assert without_post.convergence() is None


@pytest.mark.parametrize("method", ["single", "deq"])
def test_diagnostics_do_not_change_the_model(method: str) -> None:
    """Criterion: random state, modes, hooks and gradients stay as before, and a second record has the same numbers."""
    diagnostics = diagnostics_of(SMALL.replace(equilibrium=method, n_iterations=4 if method == "deq" else 1))
    model = diagnostics.model
    model.activation_checkpointing = True
    model.train()
    model.pre.eval()  # this block has another mode than the rest
    random, modes = torch.get_rng_state(), [module.training for module in model.modules()]
    seen = [(diagnostics.look(), diagnostics.convergence()) for _ in range(2)]
    assert seen[0] == seen[1]
    assert torch.equal(torch.get_rng_state(), random)
    assert [module.training for module in model.modules()] == modes
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.fixture
def fast_slow(config: TrainConfig) -> TrainConfig:
    return config.replace(model=SMALL, gate_lr=0.1)


def diagnosed(folder: Path) -> list[dict[str, Any]]:
    return [r for r in RunFolder.open(folder).metrics() if "gate" in r or "contraction" in r]


@pytest.mark.parametrize("changes", [{"dropout": 0.1}, pytest.param({"equilibrium": "deq"}, marks=pytest.mark.slow)])
def test_a_run_is_the_same_to_the_bit_with_diagnostics_or_without(
    fast_slow: TrainConfig, tmp_path: Path, changes: dict[str, Any]
) -> None:
    """Criterion: the weights file and every loss agree. Diagnostics are recorded at steps 4, 8 and 12, convergence at
    evaluations."""
    summary = train_with_and_without_telemetry(fast_slow.replace(**changes), tmp_path, LOOKING)
    assert diagnosed(tmp_path / "without") == []
    records = diagnosed(tmp_path / "with")
    assert [r["step"] for r in records if "gate" in r] == [4, 8, 12]
    assert [r["step"] for r in records if "contraction" in r] == [5, 10, 12]
    gates = [r["gate"] for r in records if "gate" in r]
    assert summary["timescales"]["gate"] == gates[-1]
    assert summary["timescales"]["gate_largest"] == max(map(abs, gates)) > 0
    assert [step for step, _ in summary["trajectories"]["gate"]] == [4, 8, 12]
    assert summary["trajectories"].keys() >= {"slow_memory", "fast_entropy", "slow_entropy", "residual", "max_logit"}


@pytest.mark.slow
def test_stacked_runs_have_the_diagnostics_of_each_run_alone(config: TrainConfig, tmp_path: Path) -> None:
    """Criterion: they have the same records at the same steps, up to the rounding by which stacked weights differ."""
    configs, together = [config.replace(model=SMALL, seed=seed) for seed in (0, 1)], []
    for each in configs:
        task = each.build_task()
        folder = RunFolder.create(tmp_path / f"stacked-{each.seed}", each.identity(task))
        together.append(StackedRun(each, folder, task, LOOKING, Display()))
    train_stack(together)
    for each in configs:
        train(each, tmp_path / f"alone-{each.seed}", LOOKING)
        stacked, alone = (diagnosed(tmp_path / f"{how}-{each.seed}") for how in ("stacked", "alone"))
        assert [r["step"] for r in stacked] == [r["step"] for r in alone] == [4, 5, 8, 10, 12, 12]
        for one, other in zip(stacked, alone, strict=True):
            assert one.keys() == other.keys()
            for name in one:
                assert list(flat(one[name])) == pytest.approx(list(flat(other[name])), rel=2e-2, abs=1e-4), name


def flat(value: Any) -> Iterator[float]:
    for part in value if isinstance(value, Sequence) else [value]:
        yield from flat(part) if isinstance(part, Sequence) else [part]


@pytest.mark.parametrize("method", ["deq", "forced"])
def test_an_equilibrium_that_is_not_reached_is_reported_once(
    fast_slow: TrainConfig, tmp_path: Path, method: str
) -> None:
    """Criterion: three evaluations give one note, which names the first of them and the next step. The log has the
    share of unsolved tokens at each evaluation, and the residual of each round."""
    listening = Listening()
    summary = train(fast_slow.replace(equilibrium=method, n_iterations=2), tmp_path, LOOKING, listening)
    (note,) = [note for note in listening.notes if method in note]
    assert note.startswith(f"step 5: {method} does not reach its equilibrium: ")
    assert "n_iterations" in note
    assert "solver_tolerance" in note
    assert summary["steps"] == 12
    assert summary["timescales"]["unsolved"] > 0
    assert summary["timescales"]["residual"] > 1e-3
    assert [r["step"] for r in diagnosed(tmp_path) if r.get("unsolved", 0) > 0] == [5, 10, 12]


def test_non_finite_numbers_are_left_out_and_the_others_stay() -> None:
    """Criterion: a record has null for an infinite number, and keeps the other numbers."""
    look = {"step": 4, "gate": -0.25, "slow_memory": [8.0, None], "residual": [[3.0, 0.5], [1.0, 0.25]]}
    expected = {"gate": -0.25, "gate_largest": 0.5, "residual": 0.375}
    assert summary_of_diagnostics([{"step": 2, "gate": 0.5}, look]) == expected
    found = trajectories([{"step": 2, "gate": 0.5}, look])
    assert found == {"gate": [[2, 0.5], [4, -0.25]], "residual": [[4, 0.375]]}
    assert summary_of_diagnostics([{"step": 1, "loss": 2.0}]) == trajectories([{"step": 1, "loss": 2.0}]) == {}


@pytest.mark.parametrize("n_looks", [1, MOST_LOOKS, MOST_LOOKS + 1, 1000])
def test_trajectories_are_short_evenly_spaced_and_end_at_the_end(n_looks: int) -> None:
    records = [{"step": 50 * n, "gate": 1 / 3, "max_logit": [[1.0, n], [0.0, 2.0]]} for n in range(1, n_looks + 1)]
    found = trajectories(records)
    steps = [step for step, _ in found["gate"]]
    assert steps == [step for step, _ in found["max_logit"]]
    assert steps[-1] == 50 * n_looks
    assert len(steps) <= MOST_LOOKS
    assert len(steps) >= min(n_looks, MOST_LOOKS // 2)
    assert len({after - before for before, after in pairwise(steps)}) <= 1
    assert found["gate"][0][1] == 0.3333
    assert found["max_logit"][-1][1] == max(n_looks, 2)


def test_a_number_that_was_not_finite_is_null_in_the_summary() -> None:
    assert summary_of_diagnostics([{"gate": None}, {"gate": 0.1}])["gate_largest"] is None
    logits, changes = ([[1.0, None]], [[2.0, 3.0]]), ([[0.5]], [[0.7]])
    looks = [{"max_logit": look, "logit_change": change} for look, change in zip(logits, changes, strict=True)]
    assert over_training(looks) == {"max": None, "change": pytest.approx(0.6)}
