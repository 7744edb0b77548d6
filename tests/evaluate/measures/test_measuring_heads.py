"""Softmax maps computed from recorded queries and keys equal those of the models, for every attention
implementation."""

from copy import deepcopy
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from attractor import capture
from attractor.control.score_inputs import ScoreInputs
from attractor.errors import InputError
from attractor.evaluate.measures.heads import COPIES, head_measures, softmax_maps
from attractor.evaluate.measures.sample import layers_of
from attractor.evaluate.measures.score_recorder import ScoreRecorder
from attractor.hf import replace_attention
from attractor.models import FastSlowConfig, TransformerConfig
from saved_tensors import Largest

SIZES: dict[str, Any] = {"vocab_size": 11, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
GROUPED = SIZES | {"intermediate_size": 16, "num_key_value_heads": 2}
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}
ENDS = {"bos_token_id": 0, "eos_token_id": 0}
THEIRS = {
    "llama": transformers.LlamaConfig(**GROUPED),
    "gpt2": transformers.GPT2Config(**ENDS, vocab_size=11, n_embd=16, n_layer=2, n_head=4, n_positions=16),
    "gpt-neox": transformers.GPTNeoXConfig(**ENDS, **SIZES, intermediate_size=16),
    "gemma2": transformers.Gemma2Config(**GROUPED, head_dim=4, sliding_window=4, attn_logit_softcapping=0.5),
    "qwen3": transformers.Qwen3Config(**GROUPED, head_dim=4),
    "olmo2": transformers.Olmo2Config(**GROUPED, pad_token_id=0),
    "gpt-oss": transformers.GptOssConfig(**GROUPED, **EXPERTS, head_dim=4, sliding_window=4),
    "diffllama": transformers.DiffLlamaConfig(**GROUPED),
}
ONLY_EAGER = ("gemma2", "gpt-oss")  # sdpa lacks soft-caps and sinks
OURS = ["standard", "gqa", "mla", "differential", "differential-v2", "coupled-gqa", "coupled-mla", "gated", "sinks"]
OURS += ["value-residual"]
T = 9
TOKENS = torch.randint(11, (1, T), generator=torch.Generator().manual_seed(0))


def their_model(name: str, attend: str) -> nn.Module:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(deepcopy(THEIRS[name]), attn_implementation=attend).eval()
    for parameter in model.parameters():
        parameter.data.normal_(std=0.4)
    return model


def our_model(attention: str, **changes: Any) -> nn.Module:
    sizes = {"vocab_size": 11, "d_model": 32, "n_heads": 4, "n_layers": 3, "d_ff": 16, "max_seq_len": 16}
    model = TransformerConfig(**sizes, attention=attention, **changes).build(seed=0).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0 if parameter.ndim > 1 else 1.0)
    return model


def maps_of(model: nn.Module) -> list[Tensor]:
    """Return the maps H T T of each layer."""
    found = []
    layers = layers_of(model, TOKENS)
    with ScoreRecorder(model) as scores, torch.no_grad():
        for step, state in zip(layers.steps, layers.states, strict=False):
            _, seen = scores.during(step, state)
            ((module, scored),) = seen.items()
            found.append(softmax_maps(module, scored, torch.arange(scored.q.shape[1]))[2])
    return found


@pytest.mark.parametrize(
    ("name", "attend"), [(n, a) for n in THEIRS for a in ("eager", "sdpa") if a == "eager" or n not in ONLY_EAGER]
)
def test_weights_are_those_that_the_eager_model_shows(name: str, attend: str) -> None:
    """Criterion: the weights equal output_attentions to 1e-6, also with soft-caps, windows, sinks and groups, for every
    attention function."""
    with torch.no_grad():
        shown = their_model(name, "eager")(TOKENS, output_attentions=True, use_cache=False).attentions
    assert len(shown) == 2
    for weights, theirs in zip(maps_of(their_model(name, attend)), shown, strict=True):
        torch.testing.assert_close(weights, theirs[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize(("attention", "softcap"), [*((name, None) for name in OURS), ("standard", 0.3)])
def test_weights_are_those_that_taps_show(attention: str, softcap: float | None) -> None:
    """Criterion: the maps of a layer are the same, in any order. For differential attention, these are both softmax
    maps of each head."""
    model = our_model(attention, softcap=softcap)
    with capture("weights") as seen, torch.no_grad():
        model(TOKENS)
    for weights, tapped in zip(maps_of(model), seen["weights"], strict=True):
        mine, theirs = (sorted(maps.flatten(1).tolist()) for maps in (weights, tapped[0]))
        torch.testing.assert_close(torch.tensor(mine), torch.tensor(theirs), rtol=0, atol=1e-6)


@pytest.mark.parametrize("attention", ["sinks", "coupled-euler:softcap=1.0", "coupled-euler:attention_scale=3.0"])
def test_weights_under_a_replaced_score_are_those_that_act(attention: str) -> None:
    model = replace_attention(their_model("llama", "sdpa"), attention, gate=None)
    with capture("weights") as seen, torch.no_grad():
        model(TOKENS, use_cache=False)
    for weights, acting in zip(maps_of(model), seen["weights"], strict=True):
        torch.testing.assert_close(weights, acting[0], rtol=0, atol=1e-6)


def test_each_round_of_two_timescales_has_its_own_maps() -> None:
    """Criterion: the maps of the fast path's steps, including the injection, equal those of the model's own forward
    pass."""
    model = FastSlowConfig(vocab_size=11, d_model=32, n_heads=4, max_seq_len=16).build(seed=0).eval()
    with capture("weights") as seen, torch.no_grad():
        model(TOKENS)
    layers = layers_of(model, TOKENS)
    mine = []
    with ScoreRecorder(model) as scores, torch.no_grad():
        for step, state in zip(layers.steps, layers.states, strict=False):
            for module, scored in scores.during(step, state)[1].items():
                mine.append(softmax_maps(module, scored, torch.arange(scored.q.shape[1]))[2])
    assert len(mine) == len(seen["weights"]) > 2
    for weights, tapped in zip(mine, seen["weights"], strict=True):
        torch.testing.assert_close(weights, tapped[0], rtol=0, atol=1e-5)


def test_attention_without_softmax_records_nothing_and_recording_ends() -> None:
    for model in (our_model("uniform"), replace_attention(their_model("llama", "sdpa"), "uniform")):
        layers = layers_of(model, TOKENS)
        with ScoreRecorder(model) as scores:
            assert scores.during(layers.steps[0], layers.states[0])[1] == {}
    model = our_model("standard")
    layers = layers_of(model, TOKENS)
    with ScoreRecorder(model) as scores:
        assert len(scores.during(layers.steps[0], layers.states[0])[1]) == 1
    assert scores.during(layers.steps[0], layers.states[0])[1] == {}


def scored(n_heads: int = 4, seed: int = 0, size: float = 1.0, causal: bool = True) -> ScoreInputs:
    generator = torch.Generator().manual_seed(seed)
    q, k = (size * torch.randn(1, n, T, 4, generator=generator) for n in (n_heads, n_heads // 2))
    return ScoreInputs(q, k, 0.5, causal=causal)


def test_scores_of_zero_are_uniform_attention() -> None:
    """Criterion: the measures have their known values for weights of 1 / (t + 1) up to the diagonal."""
    found = head_measures(nn.Identity(), scored(size=0.0), 10**9)
    rows = torch.arange(1, T + 1).float()
    expected = {"entropy": rows.log().mean(), "entropy_after_first": rows[1:].log().mean()}
    expected |= {"normalised_entropy": torch.tensor(1.0), "sink_mass": (1 / rows[1:]).mean()}
    expected |= dict.fromkeys(("logit_mean", "logit_std", "logit_max"), torch.tensor(0.0))
    for name, value in expected.items():
        torch.testing.assert_close(found[name].float(), value.expand(4), msg=name)


def test_logits_are_those_that_the_mask_allows() -> None:
    given = scored(size=3.0)
    logits = given.q @ given.k.repeat_interleave(2, dim=1).mT * 0.5
    below = [head[torch.ones(T, T).tril().bool()] for head in logits[0]]
    found = head_measures(nn.Identity(), given, 10**9)
    for name, reduced in (("logit_mean", Tensor.mean), ("logit_max", Tensor.amax)):
        torch.testing.assert_close(found[name].float(), torch.stack([reduced(head) for head in below]))
    deviations = torch.stack([head.std(correction=0) for head in below])
    torch.testing.assert_close(found["logit_std"].float(), deviations)


def test_a_bias_is_part_of_the_map_and_not_of_the_logits() -> None:
    """Criterion: this holds for an additive mask with a slope by distance for each head, as in ALiBi."""
    given = scored(causal=False)
    distance = (torch.arange(T).view(-1, 1) - torch.arange(T)).float()
    bias = -torch.tensor([0.1, 0.2, 0.4, 0.8]).view(1, -1, 1, 1) * distance
    mask = bias.masked_fill(distance < 0, torch.finfo(torch.float32).min)
    logits, _, weights = softmax_maps(nn.Identity(), ScoreInputs(given.q, given.k, 0.5, allowed=mask), torch.arange(4))
    torch.testing.assert_close(weights, (logits + mask[0]).softmax(-1))
    torch.testing.assert_close(logits, (given.q @ given.k.repeat_interleave(2, dim=1).mT * 0.5)[0])


@pytest.mark.parametrize("n_at_once", [1, 3, 100])
def test_the_memory_limit_sets_the_number_of_heads_at_once_and_no_result(n_at_once: int) -> None:
    """Criterion: no tensor is larger than one copy of the maps that fit, and the numbers are the same."""
    given = ScoreInputs(torch.randn(1, 8, 64, 4), torch.randn(1, 8, 64, 4), 0.5, causal=True)
    everything = head_measures(nn.Identity(), given, 10**9)
    limit = n_at_once * COPIES * 64 * 64 * 4
    with Largest() as largest:
        found = head_measures(nn.Identity(), given, limit)
    assert largest.n_bytes <= 2 * limit / COPIES  # the factor 2 is for sums in fp64
    for name, values in everything.items():
        torch.testing.assert_close(found[name], values, msg=name)


def test_a_map_beyond_memory_is_refused() -> None:
    with pytest.raises(InputError, match=r"memory must be at least 2.6e-06 GB for a head's map of 9 x 9, got 1e-06"):
        head_measures(nn.Identity(), scored(), 1000)
