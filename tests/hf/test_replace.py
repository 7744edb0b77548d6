"""A model of transformers with another mechanism keeps what transformers does with it: caches, padding, adapters."""

import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from foreign import COMMON, FAST, saved, theirs, tokens
from torch import Tensor, nn
from transformers import StaticCache
from wrapped_models import drawn

from attractor.attention.config import AttentionConfig
from attractor.attention.couple.euler import Euler
from attractor.attention.project.heads import Heads
from attractor.attention.score.softmax import Softmax
from attractor.control import query_key_heads
from attractor.errors import InputError
from attractor.evaluate.causal import load_causal
from attractor.hf import ReplacedModel, convert_model, export_replaced, import_model, replace_attention
from attractor.hf.cache import CACHE_NAME
from attractor.models import SIZES

ARCHITECTURES = [name for name in FAST if not name.startswith(("deepseek", "diffllama"))]
EXACT = ["coupled-euler", "coupled-hamiltonian", "coupled-linear", "mlp-only", "gated", "gated-few", "coupled-gated"]
SCORED = ["uniform", "differential", "differential-original", "coupled-differential", "xsa", "sinks"]
CASES = [
    *((name, "coupled-gated") for name in ARCHITECTURES),
    *(("llama", name) for name in (*EXACT, *SCORED)),
    *((name, "coupled-differential") for name in ("qwen3", "gpt2", "phi3", "olmo2", "gemma3-linear-capped")),
]


def original(name: str, attention: str = "") -> Any:
    model = theirs(name)
    if attention in SCORED:
        model.set_attn_implementation("sdpa")
    return model


def new_weights(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: weight for name, weight in model.named_parameters() if ".attractor." in name}


def replaced(name: str, attention: str, **options: Any) -> Any:
    """Return the model with the mechanism and all of its weights away from their initial values."""
    model = replace_attention(original(name, attention), attention, **options)
    drawn(new_weights(model).values(), 2, 0.3)
    return model


def logits(model: nn.Module, given: Tensor, **options: Any) -> Tensor:
    with torch.no_grad():
        return model(given, **options).logits


@pytest.mark.parametrize(("name", "attention"), CASES)
def test_the_cache_padding_and_generated_text_are_right(name: str, attention: str) -> None:
    """Criterion: the mechanism acts; token by token the logits are those of the whole to 1e-5; so are those of a row
    that is padded on the left; greedy search finds the same tokens without a cache; later tokens have no gradient."""
    model, given = replaced(name, attention), tokens(12).clamp(min=3)
    whole = logits(model, given)
    assert (whole - logits(original(name, attention), given)).abs().max() > 1e-3
    cache, parts = None, []
    for part in (given[:, :5], *given[:, 5:].split(1, dim=1)):
        with torch.no_grad():
            out = model(part, use_cache=True, **{CACHE_NAME: cache})
        cache = out[CACHE_NAME]
        parts.append(out.logits)
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-5, atol=1e-5)
    padded = torch.cat([torch.zeros_like(given[:, :4]), given], 1)
    mask = (padded != 0).long()
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    alone = logits(model, padded, attention_mask=mask, position_ids=positions)[:, 4:]
    torch.testing.assert_close(alone, whole, rtol=1e-5, atol=1e-5)
    options = {"max_new_tokens": 4, "do_sample": False, "attention_mask": mask}
    with_cache, without = (model.generate(padded, use_cache=use_cache, **options) for use_cache in (True, False))
    assert torch.equal(with_cache, without)
    embedded = model.get_input_embeddings()(given).detach().requires_grad_()
    model(inputs_embeds=embedded).logits[:, 6].sum().backward()
    assert embedded.grad is not None
    assert embedded.grad[:, 7:].eq(0).all()
    assert embedded.grad[:, :7].ne(0).any(-1).all()


@pytest.mark.parametrize("attention", SCORED)
def test_a_static_cache_whose_last_places_are_empty_gives_the_logits_of_the_whole(attention: str) -> None:
    model, given = replaced("llama", attention), tokens(12)
    whole = logits(model, given, use_cache=False)
    for parts in ((given,), given.split(1, dim=1)):
        cache = StaticCache(config=model.config, max_cache_len=20)
        found = torch.cat([logits(model, part, **{CACHE_NAME: cache}) for part in parts], 1)
        torch.testing.assert_close(found, whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "attention"), [*((name, "coupled-gated") for name in ARCHITECTURES), *(("llama", name) for name in EXACT)]
)
def test_the_model_starts_as_the_original_bit_for_bit_and_is_that_of_convert(
    name: str, attention: str, tmp_path: Path
) -> None:
    """Criterion: the first logits are those of the original; with the same new weights, the model of `convert` has the
    logits of the replaced one to 1e-4, and controls read the same heads in both. Cohere's heads have another order of
    coordinates there, so other weights."""
    model = saved(tmp_path, name, spelled=False)
    before = logits(model, tokens())
    replace_attention(model, attention)
    assert torch.equal(logits(model, tokens()), before)
    if name == "cohere":
        return
    converted = convert_model(import_model(tmp_path, torch.float32), attention).eval()
    new = new_weights(model)
    assert new
    drawn(new.values(), 2, 0.3)
    with torch.no_grad():
        for place, weight in new.items():
            layer, part = place.split(".attractor.")
            number = next(part for part in layer.split(".") if part.isdigit())
            where = f"blocks.{number}.attention.{part.replace('gate.weight', 'output.gate.weight')}"
            converted.get_parameter(where).copy_(weight)
    torch.testing.assert_close(converted(tokens())[0], logits(model, tokens()), rtol=1e-4, atol=1e-4)
    for ours, view in zip(query_key_heads(converted), query_key_heads(model), strict=True):
        assert (view.reads, view.n_heads) == (ours.reads, ours.n_heads)
        assert view.obstacle == ours.obstacle or ("QK-norm" in view.obstacle and "QK-norm" in ours.obstacle)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, whose compiler uses its older functions
def test_a_compiled_model_copies_and_half_precision() -> None:
    """Criterion: one graph gives the logits to 1e-5; a copy has its own weights; in bf16 the start is exact, too."""
    model = replaced("llama", "coupled-gated")
    expected = logits(model, tokens())
    torch.testing.assert_close(logits(torch.compile(model, fullgraph=True), tokens()), expected, rtol=1e-5, atol=1e-5)
    copied = deepcopy(model)
    drawn(new_weights(copied).values(), 3)
    assert torch.equal(logits(model, tokens()), expected)
    assert not torch.equal(logits(copied, tokens()), expected)
    half = original("llama").to(torch.bfloat16)
    before = logits(half, tokens())
    replace_attention(half, "coupled-gated")
    assert {weight.dtype for weight in half.parameters()} == {torch.bfloat16}
    assert torch.equal(logits(half, tokens()), before)


def test_gates_and_layers_are_as_asked() -> None:
    model = replace_attention(original("llama"), "coupled-euler", layers=[2], gate=0.25, seed=3)
    again = replace_attention(original("llama"), "coupled-euler", gate=0.25, seed=3)
    other = replace_attention(original("llama"), "coupled-euler", gate=None)
    assert {name.split(".")[2] for name in new_weights(model)} == {"2"}
    for name, weight in new_weights(model).items():
        assert torch.equal(weight, again.get_parameter(name))
        assert not name.endswith("gate") or weight.eq(0.25).all()
    assert not any(name.endswith("gate") for name in new_weights(other))
    replace_attention(model, AttentionConfig(couple=Euler(n_steps=2)), layers=[0])
    assert {name.split(".")[2] for name in new_weights(model)} == {"0", "2"}


def test_layers_that_keep_their_score_compute_as_before() -> None:
    """Criterion: the first layer's output is that of the original, the last layer's is not."""
    model = original("llama", "uniform")
    before = model(tokens(), output_hidden_states=True).hidden_states
    after = replace_attention(model, "uniform", layers=[2])(tokens(), output_hidden_states=True).hidden_states
    assert torch.equal(after[1], before[1])
    assert not torch.allclose(after[-1], before[-1])


PEFT_READS = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")


@pytest.mark.parametrize(("scale", "same"), [(8**-0.5, True), (0.1, False)])
def test_a_softmax_with_the_scale_of_the_layer_is_the_original(scale: float, same: bool) -> None:
    model, mechanism = original("llama", "uniform"), AttentionConfig(score=Softmax(attention_scale=scale))
    before = logits(model, tokens())
    after = logits(replace_attention(model, mechanism), tokens())
    assert torch.allclose(after, before, rtol=1e-5, atol=1e-5) == same


@PEFT_READS
@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "v_proj"]])
def test_adapters_of_projections_act_before_the_coupling(targets: Any) -> None:
    """Criterion: the gates get a gradient; merged adapters give the logits to 1e-5, and the cache changes no token."""
    model = replace_attention(original("llama"), "coupled-gated")
    config = peft.LoraConfig(target_modules=targets, modules_to_save=["attractor"], r=4, task_type="CAUSAL_LM")
    tuned = peft.get_peft_model(model, config).train()
    tuned(tokens(), labels=tokens()).loss.backward()
    gates = [weight for name, weight in tuned.named_parameters() if name.endswith("gate") and weight.requires_grad]
    assert len(gates) == COMMON["num_hidden_layers"]
    assert all(gate.grad is not None and gate.grad.any() for gate in gates)
    drawn((weight for weight in tuned.parameters() if weight.requires_grad), 2)
    tuned.eval()
    expected = logits(tuned, tokens())
    texts = [tuned.generate(tokens(), max_new_tokens=4, do_sample=False, use_cache=cached) for cached in (True, False)]
    assert torch.equal(*texts)
    torch.testing.assert_close(logits(tuned.merge_and_unload(), tokens()), expected, rtol=1e-5, atol=1e-5)


@PEFT_READS
def test_adapters_that_leave_the_gates_frozen_are_warned_of() -> None:
    model = replace_attention(original("llama"), "coupled-euler")
    tuned = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"], r=4)).train()
    with pytest.warns(UserWarning, match=r"gates of a coupling are 0 and frozen.*modules_to_save=\['attractor'\]"):
        tuned(tokens(), labels=tokens())


def test_a_saved_model_is_loaded_with_its_mechanisms(tmp_path: Path) -> None:
    """Criterion: class, config and logits are the same, also where `attractor evaluate` loads the folder."""
    model = replace_attention(original("llama", "differential"), "coupled-gated", layers=[1])
    replace_attention(model, "coupled-differential", layers=[0])
    drawn(new_weights(model).values(), 2, 0.3)
    model.save_pretrained(tmp_path)
    saved(tmp_path / "plain")
    (tmp_path / "tokenizer.json").write_bytes((tmp_path / "plain" / "tokenizer.json").read_bytes())
    loaded = ReplacedModel.from_pretrained(tmp_path).eval()
    assert type(loaded) is type(model)
    assert loaded.config.replaced_attention == model.config.replaced_attention
    assert torch.equal(logits(loaded, tokens()), logits(model, tokens()))
    measured = load_causal(tmp_path, torch.device("cpu")).model
    assert torch.equal(logits(measured, tokens()), logits(model, tokens()))
    with pytest.raises(InputError, match="every weight must have a place"):
        import_model(tmp_path)
    with pytest.raises(InputError, match=r"replaced_attention must be in config\.json"):
        ReplacedModel.from_pretrained(tmp_path / "plain")


OWN = """
from dataclasses import dataclass

from torch import nn

from attractor.attention.stage import Coupling


@dataclass(frozen=True)
class Halved(Coupling):
    divisor: float = 2.0

    def build(self, layout):
        return Half(self.divisor)


class Half(nn.Module):
    def __init__(self, divisor):
        super().__init__()
        self.divisor = divisor

    def forward(self, q, k):
        return q / self.divisor, k


class Summed(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()

    def forward(self, x):
        return x.cumsum(1)
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "replacing.py").write_text(OWN)
    return tmp_path / "replacing.py"


def test_a_stage_of_ones_own_file_is_named_as_in_every_command(own: Path) -> None:
    """Criterion: halved queries are those of half the scale; the saved model has the logits where the file is known,
    and is refused as a folder with code, and a whole layer as a part of this model, in a line with a next step."""
    model = replace_attention(original("llama", "uniform"), f"{own}:Halved")
    halved = AttentionConfig(score=Softmax(attention_scale=8**-0.5 / 2))
    expected = logits(replace_attention(original("llama", "uniform"), halved), tokens())
    torch.testing.assert_close(logits(model, tokens()), expected, rtol=1e-5, atol=1e-5)
    same = logits(replace_attention(original("llama"), f"{own}:Halved:divisor=1.0"), tokens())
    assert torch.equal(same, logits(original("llama"), tokens()))
    model.save_pretrained(own.parent / "saved")
    loaded = ReplacedModel.from_pretrained(own.parent / "saved").eval()
    assert torch.equal(logits(loaded, tokens()), logits(model, tokens()))
    with pytest.raises(InputError, match=r"attention must be of attractor's own stages.*'replacing.py:Halved'.*; save"):
        export_replaced(model, own.parent / "exported")
    assert not (own.parent / "exported").exists()
    words = r"got 'replacing.py:Summed', which joins whole.*; write its coupling, .* or choose among: differential, "
    for change, of in ((replace_attention, original("llama")), (convert_model, SIZES["1b-2m"].build(seed=0))):
        with pytest.raises(InputError, match=words if change is replace_attention else "which joins whole"):
            change(of, f"{own}:Summed")


REFUSED: dict[str, tuple[str, Any, dict[str, Any], str]] = {
    "a name": ("llama", "eular", {}, "unknown attention 'eular'"),
    "its own": ("llama", "gqa", {}, "which the model has already; choose among: differential, differential-original"),
    "latents": ("llama", "mla", {}, "whose project stage Latent needs other projections"),
    "decay": ("llama", "decay", {}, "whose project stage DecayedHeads needs other projections"),
    "more queries": ("llama", "differential-v2", {}, "which needs twice the queries"),
    "wider heads": ("llama", "phase", {}, "whose queries and keys are wider"),
    "a norm": ("llama", AttentionConfig(couple=Euler(qk_norm=True)), {}, "whose qk_norm acts in models of attractor"),
    "a loss": ("llama", AttentionConfig(score=Softmax(z_loss=0.1)), {}, "whose z_loss acts in models of attractor"),
    "values": ("llama", AttentionConfig(project=Heads(orthogonal_values=True)), {}, "whose orthogonal_values acts"),
    "key heads": ("llama", "coupled-euler:n_kv_heads=1", {}, "whose n_kv_heads acts in models of attractor"),
    "dropout": ("llama", "coupled-euler:dropout=0.5", {}, "whose rope_fraction and dropout are those of the model"),
    "a layer": ("llama", "coupled-euler", {"layers": [3]}, "not replaced: 0, 1, 2, got 3"),
    "a gate": ("llama", "mlp-only", {"gate": 0.5}, "gate must be 0 or None for 'mlp-only'"),
    "a seed": ("llama", "mlp-only", {"seed": -1}, "seed must be"),
    "an architecture": ("deepseek-v3", "coupled-euler", {}, "layers must be of queries and keys with a matrix each"),
    "odd pairs": ("gemma", "differential", {}, "must be of an even number"),
    "eager": ("gemma2", "uniform", {}, "attn_implementation must be 'sdpa' before another score is set, got 'eager'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_impossible_is_refused_and_changes_nothing(case: str) -> None:
    name, attention, options, words = REFUSED[case]
    model = original(name)
    before = logits(model, tokens())
    with pytest.raises(InputError) as refused:
        replace_attention(model, attention, **options)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not new_weights(model)
    assert torch.equal(logits(model, tokens()), before)


def test_a_second_replacement_must_name_its_layers() -> None:
    model = replace_attention(original("llama"), "gated", layers=[0])
    with pytest.raises(InputError, match="layers must be given where layers have been replaced before"):
        replace_attention(model, "gated")
    with pytest.raises(InputError, match="not replaced: 1, 2, got 0"):
        replace_attention(model, "coupled-euler", layers=[0])


def test_layers_of_attractor_are_refused() -> None:
    with pytest.raises(InputError, match="model must be a model of transformers, got 'Linear'"):
        replace_attention(nn.Linear(2, 2), "coupled-euler")
