"""The head views of Hugging Face's models, checked on tiny random models, and the models that are refused."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from scaling import Observe, equal, holds, scaled, times, unsettle
from subjects import COMMON, FAMILIES, HEADS, LATENT, tokens
from torch import Tensor, nn

from attractor.attention import build
from attractor.control.heads import query_key_heads
from attractor.control.layouts import register_view
from attractor.control.views import DotProduct, LatentHeads, QueryKeyHeads, head_rows
from attractor.errors import InputError

GROUPED = COMMON | HEADS
WIDE = GROUPED | {"head_dim": 16}  # the heads together are wider than the model
SINGLE = COMMON | {"num_attention_heads": 4}
CTRL = {"n_embd": 32, "n_layer": 2, "n_head": 4, "dff": 8, "vocab_size": 40}
NORMED: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": FAMILIES["qwen3"],
    "gemma3": ("Gemma3TextConfig", WIDE),
    "olmo2": ("Olmo2Config", GROUPED),
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{family: FAMILIES[family] for family in FAMILIES.keys() - NORMED.keys()},
    "llama, wide and biased": ("LlamaConfig", WIDE | {"attention_bias": True}),
    "phi3 multi-query": ("Phi3Config", GROUPED | {"num_key_value_heads": 1}),
    "deepseek-v2 with query latent": (
        "DeepseekV2Config",
        COMMON | LATENT | {"q_lora_rank": 20, "head_dim": 6, "attention_bias": True},
    ),
    "deepseek-v3 without query latent": ("DeepseekV3Config", COMMON | LATENT | {"q_lora_rank": None}),
    "bert": ("BertConfig", SINGLE | {"is_decoder": True}),
    "ctrl": ("CTRLConfig", CTRL),
    "bitnet": ("BitNetConfig", GROUPED),
    "gated": ("HrmTextConfig", SINGLE | {"num_layers_per_stack": 1, "L_cycles": 1, "H_cycles": 1}),
    "modernbert": ("ModernBertDecoderConfig", SINGLE),
}


class Recorder:
    """An attention function that records the logits before cap and mask, and the values, of each calling module."""

    def __init__(self) -> None:
        self.calls: list[tuple[nn.Module, Tensor, Tensor]] = []

    def __call__(
        self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scaling: float, **options: Any
    ) -> tuple[Tensor, None]:
        groups = q.shape[1] // k.shape[1]
        logits = q @ k.repeat_interleave(groups, 1).mT * scaling
        self.calls.append((module, logits, v))
        allowed = torch.ones(logits.shape[-2:], dtype=torch.bool).tril()
        weights = logits.masked_fill(~allowed, float("-inf")).softmax(-1)
        return (weights @ v.repeat_interleave(groups, 1)).transpose(1, 2).contiguous(), None


RECORDER = Recorder()
transformers.AttentionInterface.register("recorder", RECORDER)


def model_of(config_name: str, fields: dict[str, Any]) -> nn.Module:
    config = getattr(transformers, config_name)(**fields)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="recorder").eval()
    unsettle(model)
    return model


def observer(model: nn.Module, view: QueryKeyHeads) -> Observe:
    @torch.no_grad()
    def observe() -> tuple[Tensor, Tensor]:
        RECORDER.calls.clear()
        model(tokens(0), use_cache=False)
        # DiffLlama calls the function twice, with the same queries and keys and half of the values each time.
        calls = [(logits, values) for module, logits, values in RECORDER.calls if module is view.module]
        return calls[0][0], torch.cat([values for _, values in calls])

    return observe


def without(norms: str, model: nn.Module) -> nn.Module:
    """Remove norms by name, so that scaling the rows before them shows."""
    for module in model.modules():
        for norm in norms.split():
            if getattr(module, norm, None) is not None:
                setattr(module, norm, nn.Identity())
    return model


@pytest.mark.parametrize("case", sorted(CASES))
def test_scaling_a_heads_rows_scales_its_logits_and_nothing_else(case: str) -> None:
    config, fields = CASES[case]
    model = without("q_a_layernorm kv_a_layernorm", model_of(config, fields))  # no norm follows the rows of heads
    views = query_key_heads(model)
    assert len(views) == 2
    for view in views:
        assert view.obstacle == ""
        assert view.n_heads == 4
        assert (view.key if isinstance(view, DotProduct) else view.uk).n_heads == fields.get("num_key_value_heads", 4)
        assert model.get_submodule(view.name) is view.module
        holds(view, observer(model, view))


@pytest.mark.parametrize("case", sorted(case for case in CASES if case.startswith("deepseek")))
def test_norms_on_latents_are_no_obstacle(case: str) -> None:
    """Criterion: the rows of heads, which follow the norms, scale exactly; a norm undoes scaling of the latent rows
    before it up to its epsilon."""
    config, fields = CASES[case]
    model = model_of(config, fields)
    view = query_key_heads(model)[1]
    assert isinstance(view, LatentHeads)
    assert (view.dq is None) == (fields["q_lora_rank"] is None)
    observe = observer(model, view)
    logits, values = observe()
    for head in range(view.n_heads):
        with scaled((view.uq, head), (view.qr, head)):
            doubled, same = observe()
        equal(doubled, times(logits, [head]))
        equal(same, values)
    with scaled((view.dkv, 0), (view.dq, 0)):
        undone, also_undone = observe()
    torch.testing.assert_close(undone, logits, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(also_undone, values, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", NORMED)
def test_qk_norm_undoes_scaling(case: str) -> None:
    """Criterion: scaling all heads alike leaves the logits unchanged up to the norm's epsilon, and the obstacle names
    the norm."""
    model = model_of(*NORMED[case])
    for view in query_key_heads(model):
        assert isinstance(view, DotProduct)
        assert "q_norm, k_norm" in view.obstacle
        observe = observer(model, view)
        logits, _ = observe()
        for rows in (view.query, view.key):
            with scaled(*((rows, head) for head in range(rows.n_heads))):
                torch.testing.assert_close(observe()[0], logits, rtol=1e-4, atol=1e-4)


def test_a_norm_that_is_switched_off_is_no_obstacle() -> None:
    model = without("q_norm k_norm", model_of(*NORMED["qwen3"]))
    view = query_key_heads(model)[0]
    assert not view.obstacle
    holds(view, observer(model, view))


def test_clipped_projections_are_an_obstacle() -> None:
    views = query_key_heads(model_of("OlmoConfig", GROUPED | {"clip_qkv": 0.1}))
    assert all("clip_qkv" in view.obstacle for view in views)
    assert not any(view.obstacle for view in query_key_heads(model_of("OlmoConfig", GROUPED)))


class StrangeAttention(nn.Module):
    """Attention whose three projections have unknown names, as in models by other people."""

    def __init__(self) -> None:
        super().__init__()
        self.to_queries, self.to_keys, self.to_values = (nn.Linear(8, 8) for _ in range(3))


def register_strange(offset: int = 0, reads: tuple[int, ...] = (0, 1)) -> None:
    def view(name: str, module: nn.Module) -> QueryKeyHeads | None:
        if not isinstance(module, StrangeAttention):
            return None
        keys = head_rows(module.to_keys, 2, 4, offset=offset)
        return DotProduct(name, module, head_rows(module.to_queries, 2, 4), keys, reads)

    register_view(view)


def test_unknown_attention_is_refused_with_its_names_and_an_example_that_works() -> None:
    """Criterion: the example code of the error, with its dots filled in, makes the model known."""
    model = nn.Sequential(*(StrangeAttention() for _ in range(5)))
    listed = ", ".join(f"StrangeAttention '{number}'" for number in range(3))
    with pytest.raises(InputError, match=f"all 5 attention modules are not: {listed} and 2 more") as caught:
        query_key_heads(model)
    assert "attractor.control.register_view(view)" in str(caught.value)
    assert "\n" not in str(caught.value)
    example = str(caught.value).split("`")[1].replace("attractor.control.", "")
    for gap, filled in {"query=head_rows(...)": "query=rows(module)", "key=head_rows(...)": "key=rows(module)"}.items():
        assert gap in example
        example = example.replace(gap, filled)
    scope = {"DotProduct": DotProduct, "rows": lambda module: head_rows(module.to_queries, 2, 4)}
    exec(example.replace("reads=(...)", "reads=(0, 1)"), scope)
    register_view(scope["view"])
    assert [view.name for view in query_key_heads(model)] == [*"01234"]


BELOW = "rows of key in '0' must be below 8, the number of rows of the weight, got"
ONE_EACH = "reads of '0' must be for each of the 2 query heads one of the 2 key heads, got"


@pytest.mark.parametrize(
    ("offset", "reads", "said"),
    [
        (8, (0, 1), f"{BELOW} '8 to 15'; count offset"),
        (4, (0, 1), f"{BELOW} '4 to 11'"),
        (0, (0,), f"{ONE_EACH} (0,)"),
        (0, (0, 9), f"{ONE_EACH} (0, 9)"),
    ],
)
def test_a_view_of_rows_that_do_not_exist_is_refused(offset: int, reads: tuple[int, ...], said: str) -> None:
    register_strange(offset, reads)
    with pytest.raises(InputError, match=re.escape(said)):
        query_key_heads(nn.Sequential(StrangeAttention()))


def test_the_view_of_gated_queries_in_the_documentation() -> None:
    """Criterion: without the norms, the rows are exact, and the gate is in none of them."""
    page = (Path(__file__).parents[2] / "docs" / "control.md").read_text()
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "def gated(" in block]
    exec(code, {})
    fields = WIDE | {"layer_types": ["full_attention"] * 2, "num_experts": 2, "num_experts_per_tok": 1}
    model = without("q_norm k_norm", model_of("Qwen3NextConfig", fields))
    for view in query_key_heads(model):
        holds(view, observer(model, view))


def test_a_registered_view_takes_precedence() -> None:
    """A user's view may describe a known architecture better than the built-in one."""
    model = model_of(*CASES["qwen2"])

    def one_wide_head(name: str, module: nn.Module) -> QueryKeyHeads | None:
        if not hasattr(module, "q_proj"):
            return None
        return DotProduct(name, module, head_rows(module.q_proj, 1, 32), head_rows(module.k_proj, 1, 16), (0,))

    register_view(one_wide_head)
    assert [view.n_heads for view in query_key_heads(model)] == [1, 1]


def test_a_partly_known_model_is_refused() -> None:
    """Otherwise a rule would control some of the attention layers and appear to control all."""
    model = nn.ModuleDict({"known": model_of(*CASES["llama"]), "unknown": StrangeAttention()})
    with pytest.raises(InputError, match=r"1 of 3 attention modules are not: StrangeAttention 'unknown'"):
        query_key_heads(model)
    with pytest.raises(InputError, match=r"1 of 2 attention modules are not: StrangeAttention 'unknown'"):
        query_key_heads(nn.ModuleDict({"ours": build("standard", 8, 2), "unknown": StrangeAttention()}))
    register_strange()
    assert len(query_key_heads(model)) == 3


def test_a_module_that_contains_attention_is_not_taken_for_attention() -> None:
    class AttentionBlock(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = build("standard", 8, 2)
            self.feed_forward = nn.Linear(8, 8)

    class AttentionStack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([AttentionBlock(), AttentionBlock()])
            self.control = build("uniform", 8, 2)  # it forms no scores, so it needs no view

    assert [view.name for view in query_key_heads(AttentionStack())] == ["blocks.0.attention", "blocks.1.attention"]


@pytest.mark.parametrize(
    ("part", "replaced"),
    [
        ("q_gate", lambda q_proj: nn.Linear(32, 4)),  # another part between projection and scores
        ("q_proj", lambda q_proj: nn.Linear(32, 2 * q_proj.out_features)),  # with a gate, as Qwen3-Next has
    ],
)
def test_what_only_looks_like_llama_is_not_guessed(part: str, replaced: Callable[[nn.Linear], nn.Module]) -> None:
    model = model_of(*CASES["llama"])
    for module in [module for module in model.modules() if hasattr(module, "q_proj")]:
        setattr(module, part, replaced(module.q_proj))
    with pytest.raises(InputError, match="all 2 attention modules are not: LlamaAttention"):
        query_key_heads(model)


@pytest.mark.parametrize(
    ("config", "fields"),
    [
        ("BartConfig", {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 40}),
        ("GPT2Config", FAMILIES["gpt2"][1] | {"add_cross_attention": True}),
    ],
)
def test_cross_attention_is_refused(config: str, fields: dict[str, Any]) -> None:
    model = transformers.AutoModel.from_config(getattr(transformers, config)(**fields))
    with pytest.raises(InputError, match="must be self-attention, got cross-attention"):
        query_key_heads(model)


class Packed(nn.Module):
    """A quantised layer, which has no floating-point parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("qweight", torch.zeros(4, 4, dtype=torch.int32))


class SelfAdapted(nn.Linear):
    """A linear layer that carries the adapter's parameters itself."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__(base.in_features, base.out_features)
        self.lora_A = nn.Parameter(torch.zeros(2, base.in_features))


def converted(linear: nn.Linear, dtype: torch.dtype) -> nn.Module:
    linear.weight = nn.Parameter(linear.weight.detach().to(dtype), requires_grad=False)
    return linear


@pytest.mark.parametrize(
    ("replace", "held"),
    [
        (lambda linear: converted(linear, torch.int8), "torch.int8"),
        (lambda linear: converted(linear, torch.float8_e4m3fn), "torch.float8_e4m3fn"),
        (lambda linear: Packed(), "Packed with parameters none"),
        (SelfAdapted, "weight, bias, lora_A|lora_A, weight, bias"),
        (nn.utils.parametrizations.spectral_norm, "parametrizations.weight.original"),
    ],
)
@pytest.mark.parametrize("part", ["q_proj", "k_proj"])
def test_weights_that_cannot_be_scaled_in_place_are_refused(replace: Any, held: str, part: str) -> None:
    model = model_of(*CASES["qwen2"])
    attention = model.get_submodule("model.layers.1.self_attn")
    setattr(attention, part, replace(attention.get_submodule(part)))
    with pytest.raises(InputError, match=rf"model.layers.1.self_attn.{part} must hold a floating-point .*({held})"):
        query_key_heads(model)


def test_half_precision_is_floating_point() -> None:
    assert len(query_key_heads(model_of(*CASES["gpt2"]).bfloat16())) == 2
