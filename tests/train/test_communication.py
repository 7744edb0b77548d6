"""The planned communication of several processes follows its formulas, and matches what torch really sends."""

import pytest

from attractor.errors import InputError
from attractor.models import TransformerConfig
from attractor.tasks.text import Text
from attractor.train.config import TrainConfig
from attractor.train.plan import plan_processes

MODEL = TransformerConfig(vocab_size=320, d_model=32, n_heads=4, n_layers=2, d_ff=64, max_seq_len=64)
CONFIG = TrainConfig(MODEL, Text(), n_steps=4, batch_size=16, accumulation=2, seq_len=64, warmup_steps=0)


def test_each_process_computes_its_rows_and_sends_gradients_around_a_ring() -> None:
    n_bytes = 4 * sum(p.numel() for p in MODEL.build(0).parameters())
    plan = plan_processes(CONFIG, 8, "ddp", "cuda")
    assert (plan.sequences_per_step, plan.sequences_per_micro_batch) == (2, 1)
    assert plan.bytes_sent_per_step == 2 * 7 * n_bytes // 8
    assert plan.memory.total < plan_processes(CONFIG, 2, "ddp", "cuda").memory.total


def test_sharded_weights_are_gathered_for_every_micro_batch_and_gradients_are_summed() -> None:
    model = MODEL.build(0)
    whole = 4 * sum(p.numel() for p in model.parameters())
    layers = sum(4 * p.numel() for layer in model.layers for p in layer.parameters())
    plan = plan_processes(CONFIG, 4, "fsdp", "cuda")
    gathered = 2 * layers + (whole - layers)
    assert plan.bytes_sent_per_step == 2 * (gathered + whole) * 3 // 4
    assert plan.memory.of_the_model < plan_processes(CONFIG, 4, "ddp", "cuda").memory.of_the_model


def test_one_process_sends_nothing() -> None:
    assert plan_processes(CONFIG, 1, "ddp", "cpu").bytes_sent_per_step == 0
    assert plan_processes(CONFIG, 1, "fsdp", "cpu").memory.gathered == 0


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
        plan_processes(CONFIG.replace(**changes), devices, parallel, "cpu")
