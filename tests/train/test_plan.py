"""A plan lists FLOPs, parameters, groups, epochs, differences and what processes send; counts equal those by hand."""

import io
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from attractor.attention import PRESETS, Whole
from attractor.console import with_prefix
from attractor.errors import InputError
from attractor.kernels.coupling import Program, apply_force, integrate_reference
from attractor.kernels.differential import IMPLEMENTATIONS, differential_attention_reference
from attractor.kernels.logsumexp import attention_logsumexp_reference
from attractor.models import SIZES, FastSlowConfig, TransformerConfig
from attractor.study.budget import balanced, costs_in_words
from attractor.tasks.text import Text
from attractor.train.calibrate import RunCosts
from attractor.train.config import TrainConfig
from attractor.train.parts import (
    counted_by_parameters,
    forward_flops,
    parameters_by_part,
    training_flops_per_token,
    without_data,
)
from attractor.train.plan import differences, other_vocabulary, plan_processes, plan_run, print_plans
from tiers import tiered

SMALL = TransformerConfig(vocab_size=10, d_model=4, n_heads=2, n_layers=1, d_ff=6, max_seq_len=8, positions="rope")
WIDE = TransformerConfig(vocab_size=20, d_model=16, n_heads=4, n_layers=2, d_ff=24, max_seq_len=8, positions="rope")
ESTIMATE = RunCosts("cpu", 1, 5, 0.5, 0.2, 0.1, 1.0, 0.05, 12.0, 100_000_000)


def test_flops_are_six_for_each_weight_and_each_causal_product() -> None:
    """The count by hand has d_model 4, 2 heads of width 2, d_ff 6, vocabulary 10 and 7 tokens. Its weights are: readout
    40, q k v o 64, MLP 72. A token attends to 4 tokens on average (of 1 to 7). Each costs a dot product and a weighted
    sum of width 4 over both heads: 4 x 8 = 32."""
    by_hand = {"project": 2 * 48, "couple": 0, "score": 2 * 32, "output": 2 * 16, "mlp": 2 * 72, "readout": 2 * 40}
    assert forward_flops(SMALL, 7) == by_hand
    assert training_flops_per_token(SMALL, seq_len=7) == 3 * sum(by_hand.values())


class OfValues(nn.Module):
    """What it does depends on a value, as kernels depend on more than torch's operations."""

    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.out = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(x) if float(self.out.weight.detach().sum()) < 99 else self.out(2 * x)


def test_a_module_that_cannot_run_without_data_counts_by_its_parameters() -> None:
    """Criterion: of 2 layers each counts 2 x 4 x 4, the rest as ever. No budget of FLOPs is matched by such a count."""
    own = SMALL.replace(attention=Whole(OfValues), positions="learned", n_layers=2)
    assert counted_by_parameters(own, 7)
    assert not counted_by_parameters(SMALL, 7)
    by_hand = {"project": 2 * 2 * 16, "couple": 0, "score": 0, "output": 0, "mlp": 2 * 2 * 72, "readout": 2 * 40}
    assert forward_flops(own, 7) == by_hand
    configs = {name: TrainConfig().replace(model=model, seq_len=7) for name, model in (("a", SMALL), ("b", own))}
    assert "counts as two FLOPs a parameter" in costs_in_words(configs["b"])
    with pytest.raises(InputError, match=r"budget must be tokens, parameters or wall .* got \"flops for 'b'\""):
        balanced(configs, "a", "flops", lambda row: 1.0)


def test_a_token_attends_to_all_keys_without_causality() -> None:
    """Criterion: it attends to 7 of 7 tokens, where a causal one attends to 4 on average."""
    causal = forward_flops(SMALL, 7)
    assert forward_flops(SMALL.replace(causal=False), 7) == causal | {"score": causal["score"] * 7 / 4}


def test_a_token_sees_at_most_its_window_in_a_layer_that_has_one() -> None:
    """Criterion: with a window of 3, the 7 tokens attend to 1 + 2 + 5 x 3 = 18 keys. Blocks over a long sequence count
    only the keys inside the window."""
    plain = forward_flops(SMALL, 7)["score"]
    assert forward_flops(SMALL.replace(window=3), 7)["score"] == pytest.approx(plain * 18 / 28)
    both = SMALL.replace(n_layers=2, window=3, global_layers="0")
    assert forward_flops(both, 7)["score"] == pytest.approx(plain * 46 / 28)
    long = SMALL.replace(max_seq_len=1000, window=10)
    assert forward_flops(long, 1000)["score"] == pytest.approx(16 * (1000 * 10 - 45) / 1000)


def test_mixing_of_streams_counts_beside_the_parts_of_a_single_stream() -> None:
    """Criterion: several streams add FLOPs to the norms, whose weights mixing counts to, and to the slow path. Of the
    other parts, the readout among them, nothing changes."""
    single = FastSlowConfig(vocab_size=10, d_model=8, n_heads=2, d_ff=6, max_seq_len=8, pool_factor=3)
    plain = forward_flops(single, 8)
    mixed = forward_flops(single.replace(streams=2), 8)
    assert mixed["norms"] > 0
    assert mixed["slow path"] > plain["slow path"]
    others = {part: n for part, n in plain.items() if part != "slow path"}
    assert {part: mixed[part] for part in mixed.keys() - {"norms", "slow path"}} == pytest.approx(others)


def test_flops_of_two_timescales_are_those_of_each_part_times_its_number_of_runs() -> None:
    """By hand at the sizes of SMALL, a block costs 96 + 32 + 144 for the weights of a token and 8 for each key. The 7
    tokens in blocks of 3 leave 2 slow positions that are read. Post and the slow path both run twice."""
    small = {name: getattr(SMALL, name) for name in ("vocab_size", "d_model", "n_heads", "d_ff", "max_seq_len", "mlp")}
    config = FastSlowConfig(**small, qk_norm=False, pool_factor=3, n_slow=1).replace(n_kv_heads=2)
    found = forward_flops(config, 7)
    block = forward_flops(SMALL, 7)
    thrice = {part: n if part == "readout" else 3 * n for part, n in block.items()}
    assert {part: n for part, n in found.items() if part in block} == thrice
    assert 7 * found["slow path"] == pytest.approx(2 * (2 * (96 + 32 + 144) + 16 * (1 + 2)))
    assert 7 * found["injection"] == 2 * 2 * (2 * 4 * 4)
    n_parameters = sum(p.numel() for p in config.build(0).parameters())
    assert sum(parameters_by_part(without_data(config)).values()) == n_parameters


def test_table_lookups_cost_no_flops() -> None:
    """Criterion: learned positions cost nothing, and an untied embedding costs only its readout."""
    once = forward_flops(SMALL, 7)
    assert forward_flops(SMALL.replace(positions="learned"), 7) == once
    assert forward_flops(SMALL.replace(tied_embeddings=False), 7) == once


@pytest.mark.parametrize("name", tiered(PRESETS))
def test_counts_agree_with_torch_on_the_plain_model(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Criterion: the forward pass agrees within 1% with torch's count of a real model, and the backward pass with twice
    that. The model is plain PyTorch, without kernels that torch cannot count or that recompute. Torch counts all pairs
    of positions, so ours are counted alike."""

    def plainly(program: Program, q: Tensor, k: Tensor, dt: Tensor, *matrices: Tensor) -> tuple[Tensor, Tensor]:
        return integrate_reference(program, q, k, dt, lambda q: apply_force(q, *matrices))

    monkeypatch.setattr("attractor.attention.couple.dynamics.integrate", plainly)
    monkeypatch.setitem(IMPLEMENTATIONS, "reference", differential_attention_reference)
    monkeypatch.setattr("attractor.kernels.differential.choose_implementation", lambda *_: "reference")
    monkeypatch.setattr("attractor.attention.score.softmax.attention_logsumexp", attention_logsumexp_reference)
    monkeypatch.setattr("attractor.attention.score.softmax.SHORT", 0)  # padding counts, also where a CPU has none
    config, length = WIDE.replace(attention=name), 8
    model = config.build(0)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as both:
        with FlopCounterMode(display=False) as forward:
            logits, _ = model(torch.zeros(2, length, dtype=torch.long))
        logits.sum().backward()
    ours = forward_flops(config, length)
    gates = 2 * config.n_layers * config.d_model * config.n_heads if name == "differential-v2" else 0  # without pairs
    halved = config.attention_config.score.over_pairs
    pairs = (ours["score"] - gates) * (2 * length / (length + 1) if halved else 1)
    total = 2 * length * (sum(ours.values()) - ours["score"] + gates + pairs)
    assert total == pytest.approx(forward.get_total_flops(), rel=0.01)
    assert 3 * total == pytest.approx(both.get_total_flops(), rel=0.01)


@pytest.mark.parametrize(
    ("name", "n_forces", "n_matrices"),
    [("coupled-euler", 2, 2), ("coupled-linear", 2, 1), ("coupled-hamiltonian", 3, 2), ("mlp-only", 1, 2)],
)
def test_coupling_costs_its_forces_times_their_matrices(name: str, n_forces: int, n_matrices: int) -> None:
    """For two steps, Euler evaluates two forces and leapfrog three. A force multiplies every head by K x K matrices."""
    attention = PRESETS[name] if name == "mlp-only" else PRESETS[name].replace(n_steps=2)
    flops = forward_flops(WIDE.replace(attention=attention), 8)
    width, heads = 4, 4
    assert flops["couple"] == WIDE.n_layers * n_forces * n_matrices * 2 * heads * width**2


@pytest.mark.parametrize("name", PRESETS)
def test_every_parameter_belongs_to_one_part_and_one_group(name: str, config: TrainConfig) -> None:
    config = config.replace(attention=name, d_model=32, n_heads=4)
    plan = plan_run(config, config.build_task())
    n_parameters = sum(p.numel() for p in config.model.build(0).parameters())
    assert plan.n_parameters == n_parameters == sum(group.n_parameters for group in plan.groups)
    assert {group.name: group.weight_decay for group in plan.groups} == {"matrices": 0.1, "vectors and scalars": 0.0}


def test_the_parts_equal_a_count_by_hand() -> None:
    config = SMALL.replace(positions="learned", tied_embeddings=False, attention=PRESETS["standard"])
    parts = parameters_by_part(without_data(config))
    assert parts == {
        **{"embedding": 40, "positions": 32, "project": 48, "couple": 0, "score": 0, "output": 16},
        **{"mlp": 72, "norms": 12, "readout": 40},
    }
    normed = parameters_by_part(without_data(SMALL.replace(attention=PRESETS["standard"].replace(qk_norm=True))))
    assert normed["couple"] == 2 * 2, "norms of queries and keys, of one head's width, are the coupling's"


def test_layers_are_folded(config: TrainConfig) -> None:
    matrices, vectors = plan_run(config.replace(n_layers=3, attention="coupled-euler"), config.build_task()).groups
    assert matrices.tensors.count("blocks.*.mlp.up.weight") == 1
    assert "blocks.*.attention.couple.tau" in vectors.tensors


def test_epochs_are_tokens_over_the_size_of_a_finite_task(config: TrainConfig) -> None:
    task = config.build_task()
    plan = plan_run(config, task)
    assert (plan.tokens_per_step, plan.tokens) == (64, 768)
    assert task.n_tokens == len(task.corpus.train)  # type: ignore[attr-defined]
    assert plan.epochs == 768 / task.n_tokens
    assert f"12 steps of 64 tokens, {plan.epochs:.2g} epochs" in plan.in_short
    task.n_tokens = None  # type: ignore[misc]
    endless = plan_run(config, task)
    assert endless.epochs is None
    assert "epochs" not in endless.in_short
    assert np.isfinite(endless.flops_per_token)


def test_validation_is_counted_and_reported_where_it_is_large(config: TrainConfig) -> None:
    for eval_batches, told in ((None, True), (1, False)):
        each = config.replace(eval_batches=eval_batches, eval_every=5)
        task = each.build_task()
        plan = plan_run(each, task)
        micro_batch = each.batch_size // each.accumulation
        sizes = [batch.inputs.size for batch in task.valid_batches(micro_batch, eval_batches)]
        assert plan.validated_tokens == sum(sizes)
        assert plan.n_evaluations == 3, "after steps 5, 10 and 12"
        assert (f"; 3 evaluations of {with_prefix(plan.validated_tokens)} tokens, " in plan.in_short) == told


def shown(*plans: object) -> str:
    console = Console(file=io.StringIO(), width=100)
    print_plans(console, plans)  # type: ignore[arg-type]
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_tables_of_all_presets_fit_a_hundred_columns_and_show_differences(config: TrainConfig) -> None:
    task = config.build_task()
    base = config.replace(d_model=32, n_heads=4)
    plans = [replace(plan_run(base.replace(attention=name), task), estimate=ESTIMATE) for name in PRESETS]
    lines = shown(*plans).splitlines()
    assert max(map(len, lines)) <= 100
    assert sum(line.count(" 12 s") for line in lines) == len(PRESETS)
    assert any(line.startswith("  couple.kind: Uncoupled (standard, gqa") for line in lines)
    assert differences(plans[:1]) == {}
    assert set(differences([plans[0], plans[1]])) == {"model.attention.project.heads_per_kv"}


def test_a_failure_is_a_clear_message_and_a_plan_is_json(config: TrainConfig) -> None:
    plan = replace(plan_run(config, config.build_task()), failure="RuntimeError: no room")
    assert "standard: no estimate, since its first steps failed: RuntimeError: no room" in shown(plan)
    stored = json.loads(json.dumps(plan.to_dict()))
    assert stored["n_parameters"] == plan.n_parameters
    assert stored["failure"] == "RuntimeError: no room"
    assert "estimated time" not in shown(plan)
    assert "estimated time" in shown(replace(plan, estimate=ESTIMATE, failure=None))


@pytest.mark.parametrize(
    ("size", "changes", "words"),
    [
        ("small", {"vocab_size": 320}, "34.8M parameters, not the 60.3M of size small, whose vocabulary has 50,257"),
        ("small", {"vocab_size": 320, "attention": "mla", "max_seq_len": 64}, "not the 57.4M of size small"),
        ("fast-slow-small", {"vocab_size": 320}, "of size fast-slow-small, whose vocabulary has 50,257 tokens: "),
        ("small", {}, None),
        ("small", {"vocab_size": 320, "n_layers": 7}, None),
        ("itrsa", {}, None),
    ],
)
def test_a_plan_says_what_another_vocabulary_makes_of_a_named_size(
    size: str, changes: dict[str, Any], words: str | None
) -> None:
    said = other_vocabulary(SIZES[size].replace(**changes))
    assert (said is None) == (words is None)
    assert said is None or words is None or (words in said and said.endswith("that of these data has 320"))


SPREAD_MODEL = TransformerConfig(vocab_size=320, d_model=32, n_heads=4, n_layers=2, d_ff=64, max_seq_len=64)
SPREAD = TrainConfig(SPREAD_MODEL, Text(), n_steps=4, batch_size=16, accumulation=2, seq_len=64, warmup_steps=0)


def test_each_process_computes_its_rows_and_sends_gradients_around_a_ring() -> None:
    n_bytes = 4 * sum(p.numel() for p in SPREAD_MODEL.build(0).parameters())
    plan = plan_processes(SPREAD, 8, "ddp", "cuda")
    assert (plan.sequences_per_step, plan.sequences_per_micro_batch) == (2, 1)
    assert plan.bytes_sent_per_step == 2 * 7 * n_bytes // 8
    assert plan.memory.total < plan_processes(SPREAD, 2, "ddp", "cuda").memory.total


def test_sharded_weights_are_gathered_for_every_micro_batch_and_gradients_are_summed() -> None:
    model = SPREAD_MODEL.build(0)
    whole = 4 * sum(p.numel() for p in model.parameters())
    layers = sum(4 * p.numel() for layer in model.layers for p in layer.parameters())
    plan = plan_processes(SPREAD, 4, "fsdp", "cuda")
    gathered = 2 * layers + (whole - layers)
    assert plan.bytes_sent_per_step == 2 * (gathered + whole) * 3 // 4
    assert plan.memory.of_the_model < plan_processes(SPREAD, 4, "ddp", "cuda").memory.of_the_model


def test_one_process_sends_nothing() -> None:
    assert plan_processes(SPREAD, 1, "ddp", "cpu").bytes_sent_per_step == 0
    assert plan_processes(SPREAD, 1, "fsdp", "cpu").memory.gathered == 0


@pytest.mark.parametrize(
    ("changes", "devices", "parallel", "text"),
    [
        ({}, 3, "ddp", r"divisible by the number of processes, 3, got 16 / 2; change one of them"),
        ({"optimizer": "muon"}, 2, "fsdp", "parallel must be ddp under Muon, got fsdp"),
        ({}, 0, "ddp", "devices must be at least 1, got 0"),
    ],
)
def test_a_plan_refuses_what_the_run_would_refuse(
    changes: dict[str, str], devices: int, parallel: str, text: str
) -> None:
    with pytest.raises(InputError, match=text):
        plan_processes(SPREAD.replace(**changes), devices, parallel, "cpu")
