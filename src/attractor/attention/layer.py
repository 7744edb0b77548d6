"""The attention layer, which runs the four stages of any mechanism.

    q, k, v = project(x);  q, k = couple(q, k);  QK-norm;  position;  c = score(q, k, v);  out = output(c, x)

Every mechanism is called in the same way: `out, aux_loss = layer(x, causal_mask, rope, cache)`.
"""

import warnings
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attractor.attention.cache import Cache
from attractor.attention.config import AttentionConfig
from attractor.attention.couple.norm_and_position import NormalisingCoupling, NormAndPosition
from attractor.attention.hooks import tap
from attractor.attention.mask import Mask, resolve_mask
from attractor.attention.named import resolved
from attractor.attention.norm import RMSNorm, RMSNormAcross
from attractor.attention.position import Rope, Rotation
from attractor.attention.project.heads import OrthogonalLinear
from attractor.attention.project.latent import LatentProjection
from attractor.attention.score.softmax import Softmax, logit_penalty
from attractor.attention.stage import HeadLayout, Shape
from attractor.attention.surroundings import FirstValues, Surroundings
from attractor.attention.whole import Whole, WholeLayer
from attractor.errors import InputError, require, require_count


def build(
    attention: Any,
    d_model: int,
    n_heads: int,
    layer_index: int = 0,
    head_dim: int | None = None,
    **changes: Any,
) -> "Attention | WholeLayer":
    """Build a layer from a mechanism or its name; further keywords replace fields of the mechanism."""
    config = resolved(attention).replace(**changes)
    if isinstance(config, Whole):
        return config.build(d_model, n_heads, layer_index)
    return Attention(config, d_model, n_heads, layer_index, head_dim)


def warn_of_redundancy(config: AttentionConfig) -> None:
    """Warn of interventions that QK-norm makes redundant. They are not refused, since a study may compare them."""
    if not config.couple.qk_norm:
        return
    softcap = getattr(config.score, "softcap", None)
    if softcap is not None:
        warnings.warn(
            f"softcap={softcap:g} is redundant with qk_norm: normalised queries and keys bound the logits "
            "already, by the weights of their norms; leave one of the two out",
            stacklevel=4,
        )
    if config.project.sigma_reparam:
        warnings.warn(
            "sigma_reparam is redundant with qk_norm: the norm undoes the scale of a matrix, whether divided out or "
            "not; leave one of the two out",
            stacklevel=4,
        )


def qk_norm(config: AttentionConfig, n_heads: int, width: int) -> nn.Module:
    """Return the norm of the scored queries or keys; the identity without QK-norm."""
    couple = config.couple
    if not couple.qk_norm or not width:
        return nn.Identity()
    if couple.qk_norm_across:
        return RMSNormAcross(n_heads, width, couple.qk_norm_eps)
    return RMSNorm(width, eps=couple.qk_norm_eps)


def refuse_unsuited_score(config: AttentionConfig, layout: HeadLayout) -> None:
    """Refuse a score that cannot read what the projection gives."""
    if layout.extra != config.score.extra:
        special = {1: "DecayedHeads", 2: "DeltaHeads"}
        right = special.get(config.score.extra, f"any other than {special.get(layout.extra)}")
        rule = f"{right} for score {type(config.score).__name__}"
        require(False, "project", rule, config.project, "these projections give a decay, which only their scores read")
    if config.score.halves:
        for field, width in (("head width", layout.free), ("rope_dim", layout.rotary)):
            require(width % 2 == 0, field, "even under differential attention", width, "it scores two halves")


def rotated_width(config: AttentionConfig, layout: HeadLayout, rotatable: int) -> int:
    """Return how many of the coordinates that RoPE may rotate it does rotate."""
    fraction = config.couple.rope_fraction
    if layout.rotary or config.score.halves or config.couple.parts > 1:
        rule = "1 under MLA, differential attention in halves and phase activation"
        require(fraction == 1, "rope_fraction", rule, fraction)
    width = int(rotatable * fraction)
    rule = f"1, or at least {2 / max(rotatable, 1):.3g} to rotate a pair of the {rotatable} coordinates"
    require(fraction == 1 or width >= 2, "rope_fraction", rule, fraction)
    even = f"1, or a share that rotates an even number of the {rotatable} coordinates"
    require(fraction == 1 or width % 2 == 0, "rope_fraction", even, f"{fraction} ({width} coordinates)")
    return width


class Attention(nn.Module):
    def __init__(
        self,
        config: AttentionConfig,
        d_model: int,
        n_heads: int,
        layer_index: int = 0,
        head_dim: int | None = None,
    ) -> None:
        super().__init__()
        if layer_index == 0:  # one warning for a model, whose layers are alike
            warn_of_redundancy(config)
        require_count("d_model", d_model)
        require_count("n_heads", n_heads)
        require_count("layer_index", layer_index, 0, "the first layer has 0")
        if head_dim is None:
            require(d_model % n_heads == 0, "d_model", f"divisible by n_heads={n_heads}", d_model, "or give head_dim")
            head_dim = d_model // n_heads
        require_count("head_dim", head_dim)
        self.config, self.d_model = config, d_model
        shape = Shape(d_model, n_heads, head_dim, layer_index, config.score.query_maps)
        self.project = config.project.build(shape)
        self.layout = layout = cast(HeadLayout, self.project.layout)
        refuse_unsuited_score(config, layout)
        self.segments = [layout.free] * config.couple.parts + [layout.rotary] * bool(layout.rotary)
        maps = 2 if config.score.halves else 1
        rotatable = (layout.rotary or layout.free) // maps
        self.rope_width = rotated_width(config, layout, rotatable) if config.score.rotates else 0
        self.rotated_part = "trailing" if layout.rotary else "whole" if self.rope_width == rotatable else "leading"
        # The scale follows the width of the projected head. Phase activation doubles the scored width, not the scale.
        default_scale = max((layout.free + layout.rotary) // maps, 1) ** -0.5
        scale = cast(float | None, getattr(config.score, "attention_scale", None)) or default_scale

        self.couple = config.couple.build(layout)
        norm_width = sum(self.segments) // maps
        self.query_norm = qk_norm(config, layout.n_queries * maps, norm_width)
        self.key_norm = qk_norm(config, layout.n_kv_heads * maps, norm_width)
        self.scale, self.softcap = scale, cast(float | None, getattr(config.score, "softcap", None))
        self.window = config.window
        self.z_loss = cast(float, getattr(config.score, "z_loss", 0.0))  # attention without logits has no such fields
        self.score = config.score.build(shape, layout, scale, config.dropout)
        self.output = config.output.build(shape, layout)
        if getattr(config.project, "orthogonal_values", False):  # the output's matrix is orthogonal, too
            bias = cast(nn.Linear, self.output.out).bias is not None
            self.output.out = OrthogonalLinear(n_heads * layout.value, d_model, bias=bias)
        # MLA's keys can stay in latent form only if nothing changes them between projection and dot product.
        self.absorbs = (
            isinstance(self.project, LatentProjection)
            and not config.couple.moves
            and not config.couple.qk_norm
            and type(config.score) is Softmax
        )

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        causal_mask: bool | Tensor = True,
        rope: Rope | Rotation | None = None,
        cache: Cache | None = None,
        first_values: FirstValues | None = None,
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, ""]]:
        """Return the output and the auxiliary loss.

        causal_mask: True, False, or a boolean tensor (True = may attend) of shape T S, B T S or B 1 T S, where S counts
        all past positions too, even those outside the window. rope: a Rope counts positions from the end of the
        cache; a Rotation (`rope.at(positions)`) states its positions. first_values: what carries the values of a
        model's first layer to the later ones, where a mechanism mixes them in.
        """
        if x.dim() != 3 or x.shape[-1] != self.d_model:
            rule = f"B T {self.d_model}, the width of the layer"
            raise InputError(f"x must be of shape {rule}, got {' x '.join(map(str, x.shape))}; build the layer for it")
        if cache is not None and cache.window != self.window:
            rule = f"of window={self.window}, as the layer"
            require(False, "cache", rule, cache.window, "make it by layer.new_cache()")
        past = 0 if cache is None else cache.length
        aux_loss = torch.zeros((), device=x.device)
        rotation = self._rotation(rope, past, x)
        mask = resolve_mask(causal_mask, x.shape[0], x.shape[1], past + x.shape[1], x.device, self.window)
        of_values = rotation is not None and rotation.of_values
        if cache is not None and self.absorbs and not of_values:
            context = self._absorbed_context(x, mask, rotation, cache)
        else:
            around = [Surroundings(mask, cache, first_values)] * self.config.project.reads_more
            q, k, v = self.project(x, *around)
            if rotation is not None and of_values:
                v = rotation.values(v)
            q, k = self._couple(tap("q", q), tap("k", k), self._norm_and_position(rotation, v.dtype))
            q, k = tap("q_coupled", q), tap("k_coupled", k)
            if cache is not None and not self.config.score.keeps_state:
                k, v = cache.append(k, v)
            elif self.training and self.z_loss:
                aux_loss = self.z_loss * logit_penalty(q, k, mask, self.scale, self.softcap)
            context = self.score(q, k, v, mask, x, *[cache] * self.config.score.keeps_state)
            if rotation is not None and of_values:
                context = rotation.outputs(context)
        return self.output(context, x), aux_loss

    def _absorbed_context(self, x: Tensor, mask: Mask, rotation: Rotation | None, cache: Cache) -> Tensor:
        """Decode MLA from a cache of latents and rotated rope keys, without unfolding keys.

        The taps show the absorbed queries and the latents in the place of queries and keys.
        """
        project = cast(LatentProjection, self.project)
        q, k = project.absorbed(x)
        q, k = self._norm_and_position(rotation, q.dtype)(tap("q", q), tap("k", k))
        (k,) = cache.append(tap("k_coupled", k))
        return project.unfold(self.score(tap("q_coupled", q), k, k[..., : project.kv_latent], mask, x))

    def _norm_and_position(self, rotation: Rotation | None, dtype: torch.dtype) -> NormAndPosition:
        return NormAndPosition(self.query_norm, self.key_norm, rotation, self.rotated_part, dtype)

    def _couple(self, q: Tensor, k: Tensor, norm_and_position: NormAndPosition) -> tuple[Tensor, Tensor]:
        """Couple the position-free part, split heads into sub-heads if the score needs them, normalise and rotate."""
        if isinstance(self.couple, NormalisingCoupling) and not (self.layout.rotary or self.config.score.halves):
            return self.couple.couple_and_normalise(q, k, norm_and_position)
        if self.config.couple.moves:
            rotary = self.layout.rotary
            (q_free, q_rope), (k_free, k_rope) = (
                (x[..., : x.shape[-1] - rotary], x[..., x.shape[-1] - rotary :]) for x in (q, k)
            )
            q_free, k_free = self.couple(q_free, k_free)
            q, k = (torch.cat([q_free, q_rope], -1), torch.cat([k_free, k_rope], -1)) if rotary else (q_free, k_free)
        if self.config.score.halves:
            q, k = self._halves(q), self._halves(k)
        return norm_and_position(q, k)

    def _halves(self, x: Float[Tensor, "B H T K"]) -> Float[Tensor, "B 2*H T K/2"]:
        """Return the first halves of all heads, then the second halves. Every segment of a head is halved."""
        first, second = zip(*(segment.chunk(2, dim=-1) for segment in x.split(self.segments, dim=-1)), strict=True)
        return torch.cat([torch.cat(first, dim=-1), torch.cat(second, dim=-1)], dim=1)

    def _rotation(self, rope: Rope | Rotation | None, past: int, x: Tensor) -> Rotation | None:
        if not isinstance(rope, Rope | Rotation | None):
            raise InputError(
                f"rope must be a Rope or a Rotation, got {type(rope).__name__}; give attractor.attention.Rope(width), "
                "or, for cos and sin of Hugging Face, Rotation(*(x[..., : x.shape[-1] // 2] for x in (cos, sin)))"
            )
        if rope is None or self.rope_width == 0:
            return None
        if rope.width != self.rope_width:
            raise InputError(
                f"rope width must be {self.rope_width} for this layer (`layer.rope_width`), got {rope.width}"
            )
        if isinstance(rope, Rope):
            positions = torch.arange(past, past + x.shape[1], device=x.device)
            rope.refuse_other_rotation(past, positions)
            return rope.at(positions)
        if rope.n_positions != x.shape[1]:
            raise InputError(
                f"rope must be the rotation at the {x.shape[1]} positions of x, got one at {rope.n_positions}; "
                "give rope.at(positions)"
            )
        return rope

    @property
    def outputs(self) -> list[nn.Linear]:
        """The linear map into the residual stream."""
        return [cast(nn.Linear, self.output.out)]

    def new_cache(self) -> Cache:
        return Cache(self.window)
