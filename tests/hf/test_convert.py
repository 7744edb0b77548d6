"""A converted model starts with the outputs of the original, bit for bit, and learns from there."""

from pathlib import Path

import pytest
import torch
from foreign import saved, tokens

from attractor.attention import PRESETS
from attractor.attention.couple.dynamics import Dynamics
from attractor.errors import InputError
from attractor.hf.convert import convert_model, convert_run
from attractor.hf.import_models import import_model
from attractor.hf.import_runs import import_run
from attractor.models import FastSlowConfig, ImportedConfig, Transformer, TransformerConfig
from attractor.runs.run_folder import RunFolder
from attractor.train.config import Runtime, TrainConfig
from attractor.train.finished import finished_run
from attractor.train.loop import train
from attractor.train.optimizer import optimizer_groups
from attractor.train.saved_tokenizer import tokenizer_of_run

BASE = TransformerConfig(vocab_size=96, d_model=32, n_heads=4, n_kv_heads=2, n_layers=2, d_ff=48, positions="rope")
IMPORTED = ImportedConfig.of(BASE)
SOURCES = {
    "grouped queries": BASE,
    "learned positions": BASE.replace(n_kv_heads=None, positions="learned"),
    "QK-norm": BASE.replace(qk_norm=True),
    "QK-norm across": IMPORTED.replace(qk_norm=True, qk_norm_across=True, post_norm=True, qk_norm_eps=1e-3),
    "a part of each head": IMPORTED.replace(rope_fraction=0.5, stream_norm="layernorm", parallel_branches=True),
    "biases and multipliers": IMPORTED.replace(qkv_bias=True, out_bias=True, attention_scale=0.3, branch_scale=0.5),
    "gqa": BASE.replace(n_kv_heads=None, attention="gqa"),
    "gated": BASE.replace(attention="gated"),
    "differential": BASE.replace(attention="differential"),
    "differential-original": BASE.replace(attention="differential-original"),
    "mla": BASE.replace(n_kv_heads=None, attention="mla"),
    "coupled-euler": BASE.replace(attention="coupled-euler"),
}
PLAIN = ["mlp-only", "gated", "gated-few"]
PLAIN += [name for name, preset in PRESETS.items() if isinstance(preset.couple, Dynamics)]
COUPLED_SOFTMAX = [name for name in PLAIN if name not in ("coupled-differential", "coupled-mla")]
CASES = [
    *(("grouped queries", name) for name in COUPLED_SOFTMAX),
    *((source, "coupled-euler") for source in ("learned positions", "QK-norm", "QK-norm across", "gqa")),
    ("gated", "coupled-gated"),
    ("differential", "coupled-differential"),
    ("differential-original", "coupled-differential"),
    ("mla", "coupled-mla"),
    ("coupled-euler", "coupled-gated"),
]


def model(source: str) -> Transformer:
    """Build the model with all weights moved off their initial values, as after training."""
    made = SOURCES[source].build(0).eval()
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in made.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return made


@torch.no_grad()
@pytest.mark.parametrize(("source", "attention"), CASES)
def test_the_converted_model_starts_as_the_original_bit_for_bit(source: str, attention: str) -> None:
    original = model(source)
    before = {name: weight.clone() for name, weight in original.state_dict().items()}
    made = convert_model(original, attention)
    assert made.config.attention_config != original.config.attention_config
    assert source != "grouped queries" or made.config.attention_config.output == PRESETS[attention].output
    assert torch.equal(made(tokens())[0], original(tokens())[0])
    assert all(torch.equal(weight, before[name]) for name, weight in original.state_dict().items())
    if source == "mla":  # its cache differs, since coupled keys cannot be computed from the latent
        return
    cache, original_cache = made.new_cache(), original.new_cache()
    for part in tokens().split(8, dim=1):
        assert torch.equal(made(part, cache=cache)[0], original(part, cache=original_cache)[0])


@torch.no_grad()
@pytest.mark.parametrize("attention", ["coupled-euler", "coupled-gated", "mlp-only"])
def test_the_start_is_exact_in_half_precision_too(attention: str) -> None:
    original = model("grouped queries").to(torch.bfloat16)
    made = convert_model(original, attention)
    assert {weight.dtype for weight in made.parameters()} == {torch.bfloat16}
    assert torch.equal(made(tokens())[0], original(tokens())[0])


@pytest.mark.parametrize("attention", COUPLED_SOFTMAX)
def test_new_weights_learn(attention: str) -> None:
    """Criterion: the first loss is that of the original, the loss falls, and after four steps every new weight has a
    gradient. In the first step, the closed gates block these gradients."""
    original = model("grouped queries")
    made = convert_model(original, attention).train()
    new = [weight for name, weight in made.named_parameters() if name not in dict(original.named_parameters())]
    optimizer = torch.optim.AdamW(made.parameters(), lr=1e-2)
    inputs, targets = tokens(), tokens().roll(-1, 1)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        losses.append(made.loss(inputs, targets)[0])
        losses[-1].backward()
        optimizer.step()
    assert losses[0] == original.loss(inputs, targets)[0]
    assert losses[-1] < losses[0]
    assert new
    assert all(weight.grad is not None and weight.grad.abs().max() > 0 for weight in new)


def test_gates_open_the_coupling() -> None:
    """Criterion: at the start, only the gates among the new weights have a gradient. They may have their own learning
    rate."""
    made = convert_model(model("grouped queries"), "coupled-euler").train()
    made.loss(tokens(), tokens().roll(-1, 1))[0].backward()
    moved = {name for name, weight in made.named_parameters() if ".couple." in name and weight.grad.abs().max() > 0}
    assert moved == set(made.config.gates)
    config = TrainConfig(model=made.config, gate_lr=0.1)
    (gates,) = [group for group in optimizer_groups(made, config) if "gates" in group["name"]]
    assert [name for name, _ in gates["params"]] == list(made.config.gates)
    assert BASE.replace(attention="coupled-euler").gates == ()


@pytest.mark.parametrize(
    ("source", "attention", "words"),
    [
        ("grouped queries", "differential", ["got 'differential', whose score stage is Differential", "coupled-euler"]),
        ("grouped queries", "coupled-mla", ["whose project stage is Latent where the model has Heads"]),
        ("grouped queries", "psiqrh", ["whose project stage is Shared"]),
        ("grouped queries", "phase", ["which has no gradient where it changes nothing"]),
        ("grouped queries", "gqa", ["which the model has already"]),
        ("grouped queries", "coupled-euler:softcap=1.0", ["softcap must be left out of", "keeps its own, got 1.0"]),
        ("grouped queries", "gated:n_kv_heads=1", ["n_kv_heads must be left out of", "keeps its own, got 1"]),
        ("grouped queries", "gated:activation=silu", ["whose gates start at 0"]),
        ("grouped queries", "eular", ["unknown attention 'eular'"]),
        ("coupled-euler", "coupled-hamiltonian", ["whose couple stage is Leapfrog where the model has Euler"]),
        (
            "gated",
            "coupled-euler",
            ["whose output stage is Plain where the model has Gated", "choose among: coupled-g"],
        ),
        ("differential", "coupled-euler", ["whose score stage is Softmax", "choose among: coupled-differential"]),
        ("mla", "gated", ["whose project stage is Heads where the model has Latent", "choose among: coupled-mla"]),
    ],
)
def test_inexact_conversions_are_refused_with_the_possible_ones(source: str, attention: str, words: list[str]) -> None:
    with pytest.raises(InputError) as refused:
        convert_model(model(source), attention)
    assert "\n" not in str(refused.value)
    for word in words:
        assert word in str(refused.value)


def test_other_families_are_refused() -> None:
    with pytest.raises(InputError, match="must be a transformer to be converted, got the family fast-slow"):
        convert_model(FastSlowConfig(vocab_size=31, d_model=32, d_ff=48).build(0), "coupled-euler")


@torch.no_grad()
def test_a_hugging_face_folder_and_its_imported_run_are_converted_alike(tmp_path: Path) -> None:
    """Criterion: both give the same logits and tokenizer, and the run's label is the name of the mechanism."""
    saved(tmp_path / "llama")
    import_run(tmp_path / "llama", tmp_path / "run")
    expected = import_model(tmp_path / "llama")(tokens())[0]
    spelled = tokenizer_of_run(RunFolder.open(tmp_path / "run")).encode("the can").tolist()
    for source, out in (("llama", "one"), ("run", "other")):
        made = convert_run(tmp_path / source, "coupled-euler", tmp_path / out)
        run = finished_run(made.path, torch.device("cpu"))
        assert torch.equal(run.model(tokens())[0], expected)
        assert run.config.label == "coupled-euler"
        assert (made.summary() or {})["converted"]["from"] == source
        assert tokenizer_of_run(made).encode("the can").tolist() == spelled


def test_a_converted_run_is_fine_tuned_below_the_original(tmp_path: Path) -> None:
    """Criterion: a trained run that is converted and trained further ends with a lower loss and open gates."""
    (tmp_path / "text.txt").write_text("the cat sat on the mat, and the hat on the cat.\n" * 80)
    model = TransformerConfig(vocab_size=320, d_model=32, n_heads=4, n_layers=1, d_ff=48, positions="rope")
    config = TrainConfig(model, n_steps=20, warmup_steps=0, batch_size=4, seq_len=32, eval_every=20, eval_batches=4)
    config = config.replace(corpus=str(tmp_path / "text.txt"))
    runtime = Runtime(device="cpu", telemetry_every=None)
    first = train(config, tmp_path / "run", runtime)
    convert_run(tmp_path / "run", "coupled-euler", tmp_path / "coupled")
    start = finished_run(tmp_path / "coupled", torch.device("cpu")).config
    again = start.replace(start=str(tmp_path / "coupled"), gate_lr=0.05, n_steps=30, eval_every=30)
    second = train(again, tmp_path / "tuned", runtime)
    assert second["valid_loss"] < first["valid_loss"]
    tuned = finished_run(tmp_path / "tuned", torch.device("cpu")).model
    assert all(tuned.get_parameter(name).abs().max() > 0 for name in tuned.config.gates)
