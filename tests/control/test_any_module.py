"""Modules of no library that is known by name: what they score is observed, and QK-clip holds its bound on them."""

import copy
import gc
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from scaling import Observe, holds
from subjects import of_family, small, tokens
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.optim import AdamW, Muon, Optimizer
from torch.utils.checkpoint import checkpoint

from attractor.control import LogitProbe, QKClip, QuacK, observe, query_key_heads, register_view
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
        return logits_of(ScoreInputs(call.q, call.k, call.scale))[0].transpose(0, 1), torch.zeros(1)

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
    theirs = query_key_heads(of_family("llama"))[0]
    theirs.module.__class__ = type("Mine", (type(theirs.module),), {})  # a subclass of one that can be observed
    LogitMaxima([theirs]).remove()


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
    """Criterion: QuacK acts, and QK-clip, which would do nothing, is refused; where `qk_norm` is false, neither is."""

    class Normed(CausalSelfAttention):
        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.heads(x)
            return self.attend(nn.functional.rms_norm(q, (W,)), nn.functional.rms_norm(k, (W,)), v)

    model = made(Normed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert QuacK(model, optimizer).rates == {}
    with pytest.raises(InputError, match=r"QK-norm \(rms_norm\) undoes any scaling.*clipping would do nothing"):
        QKClip(model, optimizer)
    model[0].qk_norm = False
    assert not query_key_heads(model)[0].obstacle


def test_attention_of_any_name_is_found_and_never_clipped_unseen() -> None:
    """Criterion: a class that calls scaled_dot_product_attention is refused while its rows are unknown; one that took
    its slow path, as nanoGPT's does without that function, is refused at the first step, before its weights pass."""
    with pytest.raises(InputError, match="all 1 attention modules are not: Grouped '0'"):
        query_key_heads(made(Grouped))

    class Slow(CausalSelfAttention):
        fast = False

        def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return super().attend(q, k, v) if self.fast else (q @ k.mT).softmax(-1) @ v

    model = made(Slow)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    QKClip(model, optimizer)
    model(inputs()).sum().backward()
    with pytest.raises(InputError, match=r"must see the attention logits of '0', but saw none .*observe\(self, q, k"):
        optimizer.step()


# Most of these libraries are no dependencies of the tests, so modules with the structure of their attention stand in.


def by_group(rows: Tensor) -> list[Tensor]:
    """Split rows [queries k v] of two groups into heads, B T H W."""
    groups = rows.unflatten(-1, (2, H // 2 + 2, W))
    return [groups[..., :-2, :].flatten(2, 3), groups[..., -2, :], groups[..., -1, :]]


class InnerAttention(nn.Module):
    """A part that scores B T H W, and keeps what it scored. With a mask, it stands in for a kernel of a GPU."""

    window_size = (2, 0)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, attention_masks: Any = None) -> Tensor:
        self.q, self.k = q.transpose(1, 2).detach(), k.transpose(1, 2).detach()
        if attention_masks is not None:
            return torch.zeros_like(q)
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)


class TitanAttention(nn.Module):
    def __init__(self, fuse: bool) -> None:
        super().__init__()
        self.head_dim, self.n_heads, self.n_kv_heads = W, H, 2
        widths = {"wqkv": (H + 4) * W} if fuse else {"wq": D, "wk": 2 * W, "wv": 2 * W}
        self.qkv_linear = nn.ModuleDict({name: nn.Linear(D, width) for name, width in widths.items()})
        self.inner_attention, self.wo = InnerAttention(), nn.Linear(D, D)

    def forward(self, x: Tensor, masks: Any = None) -> Tensor:
        parts = [linear(x) for linear in self.qkv_linear.values()]
        heads = by_group(parts[0]) if len(parts) == 1 else [part.unflatten(-1, (-1, W)) for part in parts]
        return self.wo(self.inner_attention(*heads, attention_masks=masks).flatten(2))


class CoreAttention(nn.Module):
    """Local attention that may divide the logits by the number of its layer, and multiply them in the softmax."""

    def __init__(self, layer_number: int) -> None:
        super().__init__()
        self.softmax_scale = W**-0.5 / layer_number
        self.scale_mask_softmax = SimpleNamespace(scale=layer_number if layer_number > 1 else None)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, attention_mask: Tensor) -> Tensor:
        q, k, v = (x.permute(1, 2, 0, 3).repeat_interleave(H // x.shape[2], 1) for x in (q, k, v))  # from T B H W
        logits = q @ k.mT * self.softmax_scale * (self.scale_mask_softmax.scale or 1)
        self.logits = logits.masked_fill(attention_mask, float("-inf"))
        return (self.logits.softmax(-1) @ v).permute(2, 0, 1, 3)


class MegatronAttention(nn.Module):
    def __init__(self, layer_number: int) -> None:
        super().__init__()
        self.num_attention_heads_per_partition, self.num_query_groups_per_partition = H, 2
        self.hidden_size_per_attention_head = W
        self.linear_qkv, self.linear_proj = nn.Linear(D, (H + 4) * W), nn.Linear(D, D)
        self.core_attention = CoreAttention(layer_number)

    def forward(self, x: Tensor) -> Tensor:
        heads = by_group(self.linear_qkv(x.transpose(0, 1)))
        return self.linear_proj(self.core_attention(*heads, ~LOWER[None, None]).flatten(2))


class TitanLatent(nn.Module):
    """torchtitan's DeepSeek-V3: rows [nope rope] a head of queries, [latent rope], and [key value] a head."""

    def __init__(self, query_rank: int) -> None:
        super().__init__()
        self.n_heads, self.kv_lora_rank = H, 12
        self.qk_nope_head_dim, self.qk_rope_head_dim, self.v_head_dim = 6, 2, W
        if query_rank:
            self.wq_a, self.wq_b = nn.Linear(D, query_rank), nn.Linear(query_rank, D, bias=False)
            self.q_norm = nn.RMSNorm(query_rank)
        else:
            self.wq = nn.Linear(D, D)
        self.wkv_a, self.wkv_b = nn.Linear(D, 12 + 2), nn.Linear(12, H * (6 + W), bias=False)
        self.kv_norm = nn.RMSNorm(12)
        self.inner_attention, self.wo = InnerAttention(), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        q = self.wq(x) if hasattr(self, "wq") else self.wq_b(self.q_norm(self.wq_a(x)))
        latent, rope = self.wkv_a(x).split([12, 2], -1)
        k, v = self.wkv_b(self.kv_norm(latent)).unflatten(-1, (H, -1)).split([6, W], -1)
        k = torch.cat([k, rope[..., None, :].expand(-1, -1, H, -1)], -1)
        return self.wo(self.inner_attention(q.unflatten(-1, (H, W)), k, v).flatten(2))


class Separate(nn.Module):
    """Three matrices, whose query heads share keys. Names and fields are those of a library."""

    def __init__(self, names: str, **fields: int) -> None:
        super().__init__()
        for name, width in zip(names.split(), (D, 2 * W, 2 * W, D), strict=True):
            self.add_module(name, nn.Linear(D, width))
        for field, size in fields.items():
            setattr(self, field, size)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (-1, W)).transpose(1, 2) for part in [*self.children()][:3])
        return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2).flatten(2)


class Attend(nn.Module):
    """The part of x-transformers that scores, with matrices or by torch's function."""

    scale, causal = 0.3, True

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, attn_bias: None = None) -> Tensor:
        logits = self.scale * q @ k.repeat_interleave(2, 1).mT
        return logits.masked_fill(~LOWER, float("-inf")).softmax(-1) @ v.repeat_interleave(2, 1)


class XTransformers(Separate):
    def __init__(self) -> None:
        super().__init__("to_q to_k to_v to_out", heads=H, kv_heads=2)
        self.attend = Attend()

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (-1, W)).transpose(1, 2) for part in (self.to_q, self.to_k, self.to_v))
        padding = torch.ones(B, T, dtype=torch.bool)
        return self.attend(q, k, v, mask=padding, attn_bias=None).transpose(1, 2).flatten(2)


class Timm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.fused_attn = H, W, True
        self.qkv, self.proj = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.q_norm, self.k_norm = nn.Identity(), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, H, W)).permute(2, 0, 3, 1, 4)
        return self.proj(scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class OfTorch(nn.Module):
    def __init__(self, need_weights: bool, **options: Any) -> None:
        super().__init__()
        self.attention, self.need_weights = nn.MultiheadAttention(D, H, **options), need_weights

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.attention.batch_first else x.transpose(0, 1)
        return self.attention(x, x, x, None, self.need_weights, ~LOWER)[0]


def encoder_layer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(D, H, 2 * D, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)


STRUCTURES: dict[str, Callable[[], nn.Module]] = {
    "nanoGPT": CausalSelfAttention,
    "a registered view": Grouped,
    "megatron": lambda: MegatronAttention(1),
    "megatron, by layer": lambda: MegatronAttention(2),
    "torchtitan, fused": lambda: TitanAttention(True),
    "torchtitan": lambda: TitanAttention(False),
    "torchtitan's latents": lambda: TitanLatent(0),
    "torchtitan's latents of queries": lambda: TitanLatent(10),
    "Meta's Llama": lambda: Separate("wq wk wv wo", n_local_heads=H, n_local_kv_heads=2, head_dim=W),
    "nanochat": lambda: Separate("c_q c_k c_v c_proj", n_head=H, n_kv_head=2, head_dim=W),
    "x-transformers": XTransformers,
    "timm": Timm,
    "torch": lambda: OfTorch(need_weights=False, batch_first=True),
    "torch, with weights": lambda: OfTorch(need_weights=True, bias=False),
    "torch's encoder": encoder_layer,
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_the_structure_of_a_library(name: str) -> None:
    """Criterion: the rows of a head decide its logits alone, and after a clip none passes the threshold."""
    register_view(grouped_view)
    model = made(STRUCTURES[name])
    (view,) = query_key_heads(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    quack = QuacK(model, optimizer)
    model(inputs()).sum().backward()
    optimizer.step()
    assert quack.rates[view.name].keys() == view.parts().keys()
    quack.remove()
    for norm in ("q_norm", "kv_norm"):  # the norms of latents, in which scaling would be lost
        if hasattr(model[0], norm):
            setattr(model[0], norm, nn.Identity())
    (view,) = query_key_heads(model)
    holds(view, observer(model, view, lambda: model(inputs())))
    if name.startswith("megatron"):
        (now,) = seen(model, lambda: model(inputs()))
        torch.testing.assert_close(now, model[0].core_attention.logits.detach().amax((0, 2, 3)))
    after, threshold = clip_on(model, lambda: model(inputs()))
    assert (after <= threshold * BOUND).all()


OF_HEADS = torch.stack([LOWER, WINDOW, LOWER, WINDOW] * B)
PADDING = torch.arange(T) >= torch.tensor([[T], [4]])


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("added", [True, False])
@pytest.mark.parametrize("allowed", [LOWER, OF_HEADS, None])
@pytest.mark.parametrize("padding", [PADDING, None])
def test_masks_of_torch(allowed: Tensor | None, padding: Tensor | None, added: bool, batch_first: bool) -> None:
    """Criterion: the largest logit is that of the pairs in which a query attends. Where padding makes the encoder build
    nested tensors, it computes none of the padding's."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(D, H, 2 * D, dropout=0.0, batch_first=batch_first)
    model, x = nn.TransformerEncoder(layer, 1, enable_nested_tensor=batch_first), inputs()

    def given(mask: Tensor | None) -> Tensor | None:
        return torch.zeros(mask.shape).masked_fill(mask, float("-inf")) if mask is not None and added else mask

    mask = None if allowed is None else ~allowed
    batch = x if batch_first else x.transpose(0, 1)
    probe = LogitProbe(model, lambda: model(batch, mask=given(mask), src_key_padding_mask=given(padding)))
    attention = model.layers[0].self_attn
    rows = zip(attention.in_proj_weight.chunk(3)[:2], attention.in_proj_bias.chunk(3)[:2], strict=True)
    q, k = (nn.functional.linear(x, *row).unflatten(-1, (H, W)).transpose(1, 2) for row in rows)
    forbidden = torch.zeros(B, H, T, T, dtype=torch.bool)
    if mask is not None:
        forbidden |= mask if mask.ndim == 2 else mask.view(B, H, T, T)
    if padding is not None:
        forbidden |= padding[:, None, None]
    if padding is not None and mask is None and batch_first:
        forbidden |= padding[:, None, :, None]
    wanted = (W**-0.5 * q @ k.mT).masked_fill(forbidden, float("-inf"))
    torch.testing.assert_close(torch.tensor(probe.look()["max_logit"]), wanted.amax((0, 2, 3))[None])


def test_masks_of_torchtitan() -> None:
    """Criterion: the maxima under a mask of flex attention, and of packed documents, are those of the allowed pairs."""
    from torch.nn.attention.flex_attention import create_block_mask

    attention = TitanAttention(fuse=True)
    flex = create_block_mask(lambda b, h, t, s: (t >= s) & (t - s < 3), None, None, T, T, device="cpu")
    starts = torch.tensor([0, 3, T, T + 5, 2 * T], dtype=torch.int32)
    packed = SimpleNamespace(cu_seq_q=starts)
    near = LOWER & ~LOWER.roll(3, 0).tril(-3)
    document = torch.bucketize(torch.arange(B * T), starts, right=True).view(B, 1, T)
    for mask, allowed in ((flex, near), (packed, near & (document.mT == document)[:, None])):
        (now,) = seen(attention, lambda mask=mask: attention(inputs(), mask))
        logits = W**-0.5 * attention.inner_attention.q @ attention.inner_attention.k.repeat_interleave(2, 1).mT
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


def test_two_lines_in_a_loop_of_torchtitan() -> None:
    """Criterion: QuacK and QK-clip attach in one line each to a container of two optimizers, control every layer, and
    act once a step: clipped alone, without rates, no largest logit of the first layer passes the threshold again."""
    model = small(qkv_bias=True)
    matrices, others = ([p for p in model.parameters() if (p.ndim == 2) == is_matrix] for is_matrix in (True, False))
    optimizers = Container(Muon(matrices, lr=1e-2), AdamW(others, lr=1e-2))

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
