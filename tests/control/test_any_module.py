"""Modules of no library that is known by name: what they score is observed, and QK-clip holds its bound on them."""

import copy
import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from scaling import Observe, holds
from subjects import small, tokens
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.optim import AdamW, Muon, Optimizer
from torch.utils.checkpoint import checkpoint

from attractor.control import QKClip, QuacK, layouts, observe, query_key_heads, register_view
from attractor.control.logit_maxima import LogitMaxima
from attractor.control.probe import logits_of
from attractor.control.score_inputs import ScoreInputs, ScoreObserver
from attractor.control.views import DotProduct, QueryKeyHeads, grouped, head_rows
from attractor.errors import InputError

B, T, D, H, W = 2, 7, 32, 4, 8
BOUND = 1 + 1e-5


class CausalSelfAttention(nn.Module):
    """The structure of nanoGPT's attention: one linear layer for queries, keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.n_head, self.n_embd = H, D
        self.c_attn, self.c_proj = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.attn_dropout = nn.Dropout(0.0)

    def heads(self, x: Tensor) -> list[Tensor]:
        return [part.unflatten(-1, (H, W)).transpose(1, 2) for part in self.c_attn(x).chunk(3, dim=-1)]

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        return self.c_proj(self.attend(q, k, v).transpose(1, 2).flatten(2))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return scaled_dot_product_attention(q, k, v, is_causal=True)


class Manual(CausalSelfAttention):
    """Attention that computes its logits itself, and says so in one line."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        observe(self, q, k, scale=0.5, causal=True)
        return (0.5 * q @ k.mT).masked_fill(~LOWER, float("-inf")).softmax(-1) @ v


class Hooked(CausalSelfAttention):
    """Attention that computes its logits in a part, on which a hook calls `observe`."""

    def __init__(self) -> None:
        super().__init__()
        self.core = Core()
        self.core.register_forward_pre_hook(lambda _, inputs: observe(self, *inputs[:2], causal=True))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.core(q, k, v)


class Core(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (W**-0.5 * q @ k.mT).masked_fill(~LOWER, float("-inf")).softmax(-1) @ v


LOWER = torch.ones(T, T).tril().bool()
WINDOW = LOWER & ~LOWER.roll(3, 0)


def with_options(**options: Any) -> type[CausalSelfAttention]:
    class Optional(CausalSelfAttention):
        def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return scaled_dot_product_attention(q, k, v, **options)

    return Optional


KINDS: dict[str, type[CausalSelfAttention]] = {
    "causal": CausalSelfAttention,
    "everything": with_options(),
    "scale": with_options(scale=0.3, is_causal=True),
    "boolean mask": with_options(attn_mask=WINDOW),
    "added mask": with_options(attn_mask=torch.zeros(T, T).masked_fill(~WINDOW, float("-inf"))),
    "mask of heads": with_options(attn_mask=torch.stack([LOWER, WINDOW, LOWER, WINDOW])),
    "manual": Manual,
    "hooked": Hooked,
}


class Grouped(nn.Module):
    """Attention with other names, whose query heads share keys."""

    def __init__(self) -> None:
        super().__init__()
        self.queries, self.keys, self.values = nn.Linear(D, D), nn.Linear(D, D // 2), nn.Linear(D, D // 2)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (-1, W)).transpose(1, 2) for part in (self.queries, self.keys, self.values))
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def grouped_view(name: str, module: nn.Module) -> QueryKeyHeads | None:
    if not isinstance(module, Grouped):
        return None
    query, key = head_rows(module.queries, H, W), head_rows(module.keys, H // 2, W)
    return DotProduct(name, module, query, key, grouped(H, H // 2))


@pytest.fixture(autouse=True)
def same_views_as_before() -> Iterator[None]:
    before = list(layouts.VIEWS)
    yield
    layouts.VIEWS[:] = before


def made(kind: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(kind())


def inputs() -> Tensor:
    return torch.randn(B, T, D, generator=torch.Generator().manual_seed(1))


def seen(model: nn.Module, run: Callable[[], object]) -> list[Tensor]:
    recording = LogitMaxima(query_key_heads(model))
    run()
    read = recording.read()
    recording.remove()
    return [of.logits for of in read.values()]


def clip_on(model: nn.Module, run: Callable[[], Tensor]) -> tuple[Tensor, float]:
    """Clip half of the heads of a model with one layer; return the maxima after it, and the threshold."""
    (before,) = seen(model, run)
    threshold = float(before.median())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    clip = QKClip(model, optimizer, threshold)
    run().sum().backward()
    optimizer.step()
    assert clip.n_clipped == (before > threshold).sum() > 0
    clip.remove()
    return seen(model, run)[0], threshold


def observer(model: nn.Module, view: QueryKeyHeads, run: Callable[[], object]) -> Observe:
    """Return the logits that are observed, and zeros in place of values."""

    @torch.no_grad()
    def observed() -> tuple[Tensor, Tensor]:
        calls: list[ScoreInputs] = []
        watch = ScoreObserver(view.module, lambda _, scored: calls.append(scored))
        run()
        watch.remove()
        (call,) = calls
        unmasked = ScoreInputs(call.q, call.k, call.scale)
        return logits_of(unmasked)[0].transpose(0, 1), torch.zeros(1)

    return observed


@pytest.mark.parametrize("kind", KINDS)
def test_the_bound_holds_however_a_module_scores(kind: str) -> None:
    """Criterion: the maxima are those of the module's logits, and after a clip at most the threshold."""
    model = made(KINDS[kind])
    q, k, _ = model[0].heads(inputs())
    masks = {"everything": LOWER | True, "boolean mask": WINDOW, "added mask": WINDOW}
    masks["mask of heads"] = torch.stack([LOWER, WINDOW, LOWER, WINDOW])
    scale = {"scale": 0.3, "manual": 0.5}.get(kind, W**-0.5)
    logits = (scale * q @ k.mT).masked_fill(~masks.get(kind, LOWER), float("-inf"))
    (now,) = seen(model, lambda: model(inputs()))
    torch.testing.assert_close(now, logits.amax((0, 2, 3)))
    after, threshold = clip_on(model, lambda: model(inputs()))
    assert (after <= threshold * BOUND).all()


def test_grouped_keys_are_observed() -> None:
    register_view(grouped_view)
    model = made(Grouped)
    holds(query_key_heads(model)[0], observer(model, query_key_heads(model)[0], lambda: model(inputs())))
    after, threshold = clip_on(model, lambda: model(inputs()))
    assert (after <= threshold * BOUND).all()


def test_the_rows_of_a_fused_linear_layer() -> None:
    model = made(CausalSelfAttention)
    (view,) = query_key_heads(model)
    holds(view, observer(model, view, lambda: model(inputs())))


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputation_is_observed(reentrant: bool) -> None:
    model = made(CausalSelfAttention)

    def run() -> None:
        checkpoint(model, inputs().requires_grad_(), use_reentrant=reentrant).sum().backward()

    torch.testing.assert_close(seen(model, run), seen(model, lambda: model(inputs())))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["causal", "manual", "hooked"])
def test_a_model_that_is_compiled_afterwards_is_observed(kind: str) -> None:
    model = made(KINDS[kind])

    def run() -> None:
        torch._dynamo.reset()
        torch.compile(model, backend="aot_eager")(inputs()).sum().backward()

    torch.testing.assert_close(seen(model, run), seen(model, lambda: model(inputs())))


def test_observation_leaves_nothing_behind() -> None:
    """Criterion: outputs are the same to the bit while observed, an error in the pass leaves no mode, a copy is not
    observed, and `remove` restores the module."""
    model = made(CausalSelfAttention)
    before, plain = dict(vars(model[0])), model(inputs())
    calls: list[ScoreInputs] = []
    watches = [ScoreObserver(model[0], lambda _, scored: calls.append(scored)) for _ in range(2)]
    assert torch.equal(model(inputs()), plain)
    assert len(calls) == 2
    with pytest.raises(RuntimeError):
        model(inputs()[..., 1:])
    assert torch.overrides._get_current_function_mode() is None
    twin = copy.deepcopy(model)
    assert torch.equal(twin(inputs()), plain)
    assert twin[0].forward.args[0] is twin[0]
    assert len(calls) == 2
    watches[0].remove()
    model(inputs())
    assert len(calls) == 3
    watches[1].remove()
    assert vars(model[0]).keys() == before.keys()
    model(inputs())
    assert len(calls) == 3


def test_a_model_that_is_deleted_while_it_is_observed_is_freed() -> None:
    model = made(CausalSelfAttention)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    clip = QKClip(model, optimizer)
    model(inputs()).sum().backward()
    optimizer.step()
    attention = weakref.ref(model[0])
    del model, optimizer, clip
    gc.collect()
    assert attention() is None


def test_a_forward_that_was_wrapped_before_is_kept() -> None:
    """Libraries that move weights between devices put their own `forward` on a module."""
    model = made(CausalSelfAttention)
    theirs = model[0].forward
    model[0].forward = wrapped = lambda x: 2 * theirs(x)
    watch = ScoreObserver(model[0], lambda *_: None)
    assert torch.equal(model(inputs()), 2 * theirs(inputs()))
    watch.remove()
    assert model[0].forward is wrapped


def test_a_module_that_cannot_be_observed_is_refused() -> None:
    model = made(CausalSelfAttention)
    silent = type("Silent", (nn.Module,), {"__module__": "colorsys"})()  # a module of code without scores
    view = query_key_heads(model)[0]
    with pytest.raises(InputError, match=r"'own' must attend through .* Silent calls neither: add .*observe\(self"):
        LogitMaxima([DotProduct("own", silent, view.query, view.key, view.reads)])


def test_wrong_shapes_are_refused_where_a_control_needs_them() -> None:
    model = made(CausalSelfAttention)
    observe(model[0], torch.zeros(2), torch.zeros(3))  # without a control, nothing is read
    watch = ScoreObserver(model[0], lambda *_: None)
    for q, k in ((torch.zeros(B, T, D), torch.zeros(B, T, D)), (torch.zeros(B, 4, T, W), torch.zeros(B, 3, T, W))):
        with pytest.raises(InputError, match=r"q and k must have the shapes B H T K and B J S K.*transpose"):
            observe(model[0], q, k)
    watch.remove()


def test_heads_of_another_number_are_refused() -> None:
    model = made(with_options())
    recording = LogitMaxima(query_key_heads(model))
    with pytest.raises(InputError, match=r"'0' must score 4 query heads at most, as its view says, got 7.*B H T K"):
        observe(model[0], torch.zeros(B, T, H, W), torch.zeros(B, T, H, W))
    recording.remove()


def test_a_norm_that_is_a_function_is_not_overlooked() -> None:
    class NormedAttention(CausalSelfAttention):
        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.heads(x)
            return self.attend(nn.functional.rms_norm(q, (W,)), nn.functional.rms_norm(k, (W,)), v)

    with pytest.raises(InputError, match="all 1 attention modules are not: NormedAttention"):
        query_key_heads(made(NormedAttention))


# torchtitan and Megatron are no dependencies of the tests.
TITAN = "install torchtitan==0.3.0 to test its own attention"
MEGATRON = "install megatron-core==0.16.1 to test its own attention"
THEIR_WARNINGS = pytest.mark.filterwarnings("ignore")


def titan_attention(fuse: bool) -> nn.Module:
    pytest.importorskip("torchtitan", reason=TITAN)
    from torchtitan.models.common import ComplexRoPE
    from torchtitan.models.common.attention import ScaledDotProductAttention
    from torchtitan.models.common.config_utils import make_gqa_config

    init = {"weight": lambda weight: nn.init.normal_(weight, std=0.3)}
    return make_gqa_config(
        dim=D,
        n_heads=H,
        n_kv_heads=2,
        wqkv_param_init=init,
        wo_param_init=init,
        inner_attention=ScaledDotProductAttention.Config(),
        fuse_qkv=fuse,
        rope=ComplexRoPE.Config(dim=W, max_seq_len=64, theta=10000.0),
    ).build()


@THEIR_WARNINGS
@pytest.mark.parametrize("fuse", [True, False])
def test_torchtitan_attention(fuse: bool) -> None:
    attention = titan_attention(fuse)
    attention.init_states()
    (view,) = query_key_heads(attention)
    assert isinstance(view, DotProduct)
    assert view.key.n_heads == 2

    def run() -> Tensor:
        return attention(inputs(), None)

    holds(view, observer(attention, view, run))
    after, threshold = clip_on(attention, run)
    assert (after <= threshold * BOUND).all()


@THEIR_WARNINGS
def test_masks_of_torchtitan() -> None:
    """Criterion: the maxima under a mask of flex attention, and of packed documents, are those of the allowed pairs.
    The kernels train on a GPU only, so a part that returns its values stands in for them."""
    attention = titan_attention(fuse=True)
    attention.init_states()
    from torch.nn.attention.flex_attention import create_block_mask
    from torchtitan.models.common.attention import VarlenMetadata, get_sliding_window_mask_mod

    class Kernel(nn.Module):
        window_size = (2, 0)

        def forward(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
            self.q, self.k = (x.transpose(1, 2).detach() for x in (q, k))
            return torch.zeros_like(q)

    attention.inner_attention = kernel = Kernel()
    flex = create_block_mask(get_sliding_window_mask_mod(3), None, None, T, T, device="cpu")
    starts = torch.tensor([0, 3, T, T + 5, 2 * T], dtype=torch.int32)
    packed = VarlenMetadata(starts, starts, T, T)
    near = LOWER & ~LOWER.roll(3, 0).tril(-3)
    document = torch.bucketize(torch.arange(B * T), starts, right=True).view(B, 1, T)
    for mask, allowed in ((flex, near), (packed, near & (document.mT == document)[:, None])):
        (now,) = seen(attention, lambda mask=mask: attention(inputs(), mask))
        logits = W**-0.5 * kernel.q @ kernel.k.repeat_interleave(2, 1).mT
        torch.testing.assert_close(now, logits.masked_fill(~allowed, float("-inf")).amax((0, 2, 3)))


class Container(Optimizer):
    """The structure of torchtitan's container: its own step takes those of the optimizers inside."""

    def __init__(self, *optimizers: Optimizer) -> None:
        self.optimizers = list(optimizers)
        super().__init__([parameter for one in optimizers for of in one.param_groups for parameter in of["params"]], {})

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for optimizer in self.optimizers:
            optimizer.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none)


def alike() -> tuple[nn.Module, Optimizer]:
    model = small(qkv_bias=True)
    matrices = [parameter for parameter in model.parameters() if parameter.ndim == 2]
    others = [parameter for parameter in model.parameters() if parameter.ndim != 2]
    return model, Container(Muon(matrices, lr=1e-2), AdamW(others, lr=1e-2))


def of_torchtitan() -> tuple[nn.Module, Optimizer]:
    """Return torchtitan's Llama 3 and its container, with an optimizer for matrices and another for the rest."""
    pytest.importorskip("torchtitan", reason=TITAN)
    from torchtitan.components.optimizer import OptimizersContainer, ParamGroupConfig
    from torchtitan.models.common.attention import ScaledDotProductAttention
    from torchtitan.models.llama3 import llama3_configs

    config = llama3_configs["debugmodel"](attn_backend="flex")
    del config.layers[2:]
    for layer in config.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()  # flex attention trains on a GPU only
    model = config.build()
    model.init_states()
    groups = [("norm", "Adam"), (".*", "AdamW")]
    settings = OptimizersContainer.Config(
        param_groups=[ParamGroupConfig(pattern=p, optimizer_name=o, optimizer_kwargs={"lr": 1e-2}) for p, o in groups],
        implementation="for-loop",
    )
    return model, settings.build(model_parts=[model])


@THEIR_WARNINGS
@pytest.mark.parametrize("made_of", [alike, of_torchtitan])
def test_two_lines_in_a_loop_of_torchtitan(made_of: Callable[[], tuple[nn.Module, Optimizer]]) -> None:
    """Criterion: QuacK and QK-clip attach in one line each to a container of two optimizers, control every layer, and
    act once a step: clipped alone, without rates, no largest logit of the first layer passes the threshold again."""
    model, optimizers = made_of()

    quack = QuacK(model, optimizers)
    clip = QKClip(model, optimizers, threshold=0.05)

    assert len(quack.optimizers) == len(clip.optimizers) == 2
    for step in range(4):
        for group in (group for optimizer in clip.optimizers for group in optimizer.param_groups if step > 1):
            group["lr"] = 0.0
        optimizers.zero_grad()
        out = model(tokens(0))
        (out[0] if isinstance(out, tuple) else out).square().mean().backward()
        optimizers.step()
    assert len(clip.last) == len(quack.rates) == 2
    assert clip.n_clipped > 0
    assert (next(iter(clip.last.values())).logits <= 0.05 * BOUND).all()


@pytest.fixture(scope="module")
def one_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    pytest.importorskip("megatron.core", reason=MEGATRON)
    from megatron.core import parallel_state

    store = tmp_path_factory.mktemp("group") / "store"
    torch.distributed.init_process_group("gloo", f"file://{store}", rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    yield
    parallel_state.destroy_model_parallel()
    torch.distributed.destroy_process_group()


@THEIR_WARNINGS
@pytest.mark.parametrize("by_layer", [False, True])
def test_megatron_attention(one_process: None, by_layer: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Criterion: also where the logits are divided by the layer's number and multiplied in the softmax."""
    from megatron.core import tensor_parallel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.transformer_config import TransformerConfig

    # Their code asks for the current GPU and its random state.
    monkeypatch.setattr(torch.cuda, "current_device", lambda: "cpu")
    monkeypatch.setattr(tensor_parallel, "get_cuda_rng_tracker", lambda: SimpleNamespace(fork=nullcontext))
    config = TransformerConfig(
        num_layers=2,
        hidden_size=D,
        num_attention_heads=H,
        num_query_groups=2,
        use_cpu_initialization=True,
        attention_dropout=0.0,
        apply_query_key_layer_scaling=by_layer,
        masked_softmax_fusion=False,
        add_qkv_bias=True,
    )
    spec = get_gpt_layer_local_spec().submodules.self_attention
    attention = spec.module(config, spec.submodules, layer_number=2, **spec.params)
    (view,) = query_key_heads(attention)
    mask = ~LOWER[None, None]

    def run() -> Tensor:
        return attention(inputs().transpose(0, 1), mask)[0]

    holds(view, observer(attention, view, run))
    after, threshold = clip_on(attention, run)
    assert (after <= threshold * BOUND).all()
