"""What is said of the machine: devices, FLOPs, the share of the peak."""

import pytest
import torch

from attractor.errors import InputError
from attractor.models import TransformerConfig
from attractor.train.console import in_numbers
from attractor.train.hardware import PeakMemory, model_flops_utilisation, resolve_device, training_flops_per_token

SMALL = TransformerConfig(vocab_size=10, d_model=4, n_heads=2, n_layers=1, d_ff=6, max_seq_len=8, positions="rope")


def test_flops_are_three_times_two_for_each_weight_and_each_causal_product() -> None:
    """By hand, d_model 4, 2 heads of width 2, d_ff 6, vocabulary 10, 7 tokens. Weights: readout 40, q k v o 64, MLP 72.
    A token attends to 4 on average of 1 to 7, and each costs a dot product and a weighted sum of width 4 over both
    heads: 4 x 8 = 32."""
    assert training_flops_per_token(SMALL.build(0), seq_len=7) == 6 * (40 + 64 + 72 + 32)


def test_two_layers_double_what_is_inside_them() -> None:
    assert training_flops_per_token(SMALL.replace(n_layers=2).build(0), 7) == 6 * (40 + 2 * (64 + 72 + 32))


def test_what_is_looked_up_is_not_multiplied() -> None:
    """Learned positions cost nothing, and an untied embedding is paid for once, as the readout."""
    once = training_flops_per_token(SMALL.build(0), 7)
    assert training_flops_per_token(SMALL.replace(positions="learned").build(0), 7) == once
    assert training_flops_per_token(SMALL.replace(tied_embeddings=False).build(0), 7) == once


def test_forward_flops_agree_with_torchs_own_counter() -> None:
    """Criterion: without a mask a third of the formula, with T keys for every token, is what torch counts."""
    from torch.utils.flop_counter import FlopCounterMode

    model = SMALL.replace(n_layers=2).build(0)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        hidden, _ = model.hidden(torch.zeros(3, 7, dtype=torch.long))
        hidden @ model.readout.T
    all_pairs = training_flops_per_token(model, seq_len=2 * 7 - 1)  # (seq_len + 1) / 2 keys are then 7
    assert counter.get_total_flops() == 3 * 7 * all_pairs / 3


@pytest.mark.parametrize("name", ["cud", "gpu", "", "cuda:99"])
def test_a_device_that_is_not_there_is_refused_with_what_to_try(name: str) -> None:
    with pytest.raises(InputError) as caught:
        resolve_device(name)
    assert str(caught.value) == f"device must be one that torch can use here, got '{name}'; try cpu, cuda or auto"


def test_auto_is_a_device_that_works() -> None:
    assert resolve_device("cpu") == torch.device("cpu")
    assert resolve_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


def test_mfu_is_known_only_for_hardware_that_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert model_flops_utilisation(1e12, torch.device("cpu")) is None
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    assert model_flops_utilisation(98.9e12, torch.device("cuda")) == pytest.approx(0.1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100 PCIe")
    assert model_flops_utilisation(75.6e12, torch.device("cuda")) == pytest.approx(0.1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "A device of tomorrow")
    assert model_flops_utilisation(1e12, torch.device("cuda")) is None


def test_the_console_says_n_a_where_nothing_is_known() -> None:
    record = {"loss": 2.5, "tokens_per_second": 45_100.0, "memory": 70_000_000, "mfu": None, "skipped_steps": 0}
    assert in_numbers(record) == "loss 2.500  45.1k tok/s  70 MB  MFU n/a"
    assert in_numbers(record | {"mfu": 0.4567, "skipped_steps": 3}).endswith("70 MB  MFU 45.7%  3 skipped")
    assert in_numbers({"loss": None}) == in_numbers({"loss": float("nan")}) == "loss not finite"


def test_peak_memory_never_falls() -> None:
    memory = PeakMemory(torch.device("cpu"))
    before = memory.read()
    held = torch.ones(30_000_000)
    during = memory.read()
    del held
    assert 0 <= before <= during <= memory.read()
