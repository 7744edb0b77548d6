"""The contract of every mechanism, over every name in PRESETS: a new preset is covered as soon as it is in the table.

`pytest tests/test_contract.py -k NAME` tests every preset with NAME in its name, `-k "[NAME]"` that one alone. Each
preset is tested as it is and with each option of its stages; exactness is tested in fp64.

The fast tests check the causality, the cached decoding and the configuration of every preset. The rest of the contract
runs there on the fewest presets that together have every class of every stage, and on the others among the slow tests.
"""

import copy
import json
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attractor.attention import PRESETS, Attention, AttentionConfig, Rope, Rotation, build
from attractor.attention.config import STAGES
from attractor.attention.hooks import TAPS, capture
from attractor.attention.score.differential import Differential
from attractor.errors import InputError
from tiers import tiered

WIDTH, HEADS, LENGTH = 16, 4, 6
OPTIONS: dict[str, Any] = {
    "qk_norm": True,
    "softcap": 2.0,
    "n_kv_heads": 2,
    "latent_norm": True,
    "qkv_bias": True,
    "n_steps": 2,
    "shared_force": True,
}
# The numbers cached for one position at d_model = 64, H = 8, K = 8, written as keys + values.
CACHED = {
    "standard": 8 * 8 + 8 * 8,
    "gqa": 2 * 8 + 2 * 8,
    "mqa": 8 + 8,
    "mla": 16 + 4,  # the cache has the latent and the shared rope key
    "differential": 8 * 8 + 8 * 8,
    "differential-original": 8 * 8 + 8 * 8,
    "differential-v2": 8 * 8 + 8 * 8,  # twice the queries, with the usual keys
    "mlp-only": 8 * 8 + 8 * 8,
    "coupled-euler": 8 * 8 + 8 * 8,
    "coupled-hamiltonian": 8 * 8 + 8 * 8,
    "coupled-symplectic": 8 * 8 + 8 * 8,
    "coupled-linear": 8 * 8 + 8 * 8,
    "coupled-differential": 8 * 8 + 8 * 8,
    "coupled-gated": 8 * 8 + 8 * 8,
    "coupled-gqa": 2 * 8 + 2 * 8,
    "coupled-mla": 8 * (8 + 4) + 8 * 8,  # coupled keys and values of all heads, without absorption
    "phase": 8 * 16 + 8 * 8,  # scored keys have both parts, cos and sin
    "psiqrh": 8 * 64 + 8 * 32,  # the latent is 4 d_model wide
    "gated": 8 * 8 + 8 * 8,
    "decay": 8 * 8 + 8 * (8 + 1),  # every value has the decay of its head
    "uniform": 8 * 8,  # the cache has values only
}


every_preset = pytest.mark.parametrize("name", PRESETS)
each_class_fast = pytest.mark.parametrize("name", tiered(PRESETS))


def layer_of(name: str, **changes: Any) -> Attention:
    """Build a layer in fp64 whose parameters are all moved off their special starting values."""
    torch.manual_seed(0)
    layer = build(name, d_model=WIDTH, n_heads=HEADS, layer_index=1, **changes).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return layer


def settings(name: str) -> list[dict[str, Any]]:
    """Return the options of the preset as it is, then with each of OPTIONS that one of its stages has."""
    stages = [getattr(PRESETS[name], stage) for stage in STAGES]
    known = {f.name for stage in stages for f in fields(stage)}
    return [{}] + [{option: value} for option, value in OPTIONS.items() if option in known]


def cases(name: str) -> Iterator[tuple[Attention, Rope | None]]:
    """Yield every setting without rope and, for mechanisms that use positions, with rope."""
    for changes in settings(name):
        layer = layer_of(name, **changes)
        yield layer, None
        if layer.rope_width:
            yield layer, Rope(layer.rope_width)


def inputs(batch: int = 2, length: int = LENGTH, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, length, WIDTH, generator=generator, dtype=torch.float64).to(dtype)


def triangle(length: int = LENGTH) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool).tril()


def influence(layer: Attention, x: Tensor, mask: bool | Tensor, rope: Rope | None = None) -> Tensor:
    """Return max |d (w . out_t) / d x_s| for a random w, as B T S."""
    x = x.clone().requires_grad_()
    out, _ = layer(x, mask, rope)
    probed = (out * torch.randn_like(out)).sum((0, 2))
    rows = [torch.autograd.grad(value, x, retain_graph=True)[0].abs().amax(-1) for value in probed]
    return torch.stack(rows, dim=1)


def assert_same(found: Tensor, expected: Tensor, layer: Attention) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10, msg=lambda text: f"{layer.config}: {text}")


def decode(layer: Attention, x: Tensor, chunks: list[int], rope: Rope | None = None) -> Tensor:
    cache = layer.new_cache()
    return torch.cat([layer(chunk, True, rope, cache)[0] for chunk in x.split(chunks, dim=1)], dim=1)


@every_preset
def test_no_output_depends_on_a_later_input(name: str) -> None:
    """Criterion: the gradient of out_t by x_s is exactly zero for all s > t, and not all zero for each s <= t."""
    for layer, rope in cases(name):
        found = influence(layer, inputs(batch=1), True, rope)[0]
        assert (found[~triangle()] == 0).all(), layer.config
        assert (found[triangle()] > 0).all(), layer.config


@every_preset
def test_cached_decoding_equals_the_full_pass(name: str) -> None:
    """Criterion: they agree to 1e-10 in fp64, token by token and in chunks, one of which adds several tokens to a
    cache."""
    x = inputs(length=5)
    for layer, rope in cases(name):
        whole, _ = layer(x, True, rope)
        for chunks in ([1] * 5, [2, 1, 2]):
            assert_same(decode(layer, x, chunks, rope), whole, layer)


@pytest.mark.parametrize("name", CACHED)
def test_cache_holds_exactly_the_numbers_that_the_mechanism_needs(name: str) -> None:
    layer = build(name, d_model=64, n_heads=8)
    cache = layer.new_cache()
    layer(torch.randn(3, 5, 64), cache=cache)
    assert cache.n_numbers == 5 * CACHED[name]


@each_class_fast
def test_weights_are_distributions_over_the_allowed_keys(name: str) -> None:
    """Criterion: their shape is B H T S (2 H for the difference of two maps), rows sum to one where the score says so,
    and forbidden keys have exactly 0."""
    n_maps = HEADS * (2 if isinstance(PRESETS[name].score, Differential) else 1)
    mask = triangle(4)
    mask[2, 0] = False
    for layer, rope in cases(name):
        with capture("weights") as seen:
            layer(inputs(length=4), mask, rope)
            layer(inputs(length=4), True, rope)
            cache = layer.new_cache()
            if PRESETS[name].score.keeps_state:
                with pytest.raises(InputError, match=r"^cache must be None while weights .* are observed"):
                    layer(inputs(length=4), True, rope, cache)
            else:
                for chunk in inputs(length=4).split([1, 3], dim=1):
                    layer(chunk, True, rope, cache)
        allowed = [mask, triangle(4), triangle(4)[:1, :1], triangle(4)[1:]][: len(seen["weights"])]
        assert [tuple(w.shape) for w in seen["weights"]] == [(2, n_maps, *rows.shape) for rows in allowed]
        assert len(allowed) == (2 if PRESETS[name].score.keeps_state else 4)
        for weights, rows in zip(seen["weights"], allowed, strict=True):
            assert (weights[..., ~rows] == 0).all(), layer.config
            assert (weights[..., rows] > 0).all(), layer.config
            if PRESETS[name].score.normalised:
                torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))


@each_class_fast
def test_observing_changes_no_bit(name: str) -> None:
    """Criterion: output and all gradients are equal bit by bit, and recording ends with the `with` block."""

    def run(layer: Attention) -> list[Tensor]:
        x = inputs().requires_grad_()
        out, _ = layer(x)
        return [out, *torch.autograd.grad(out.square().sum(), [x, *layer.parameters()])]

    for changes in settings(name):
        layer = layer_of(name, **changes)
        alone = run(layer)
        with capture(*TAPS) as seen:
            observed = run(layer)
        counts = {tap: len(recorded) for tap, recorded in seen.items()}
        run(layer)
        assert all(torch.equal(a, b) for a, b in zip(alone, observed, strict=True)), changes
        assert counts["weights"] == 1
        assert {tap: len(recorded) for tap, recorded in seen.items()} == counts


@each_class_fast
def test_boolean_mask_is_obeyed(name: str) -> None:
    """Criterion: for masks T S and B 1 T S, the gradient by a forbidden key is exactly zero and by an allowed one is
    not. The content of keys that are only forbidden changes no bit."""
    others = torch.arange(LENGTH) != 3
    diagonal = torch.eye(LENGTH, dtype=torch.bool)
    by_sequence = torch.rand(2, 1, LENGTH, LENGTH, generator=torch.Generator().manual_seed(2)) < 0.5
    by_sequence = (
        by_sequence | diagonal
    ) & others  # no query attends to position 3, and its own query attends to nothing
    x = inputs()
    changed = x.clone()
    changed[:, 3] = 100 * torch.randn(2, WIDTH, dtype=torch.float64)
    for layer, rope in cases(name):
        for mask in (by_sequence, by_sequence[0, 0]):
            found, allowed = influence(layer, x, mask, rope), mask.expand(2, 1, -1, -1)[:, 0]
            if name not in ("short-conv", "gated-deltanet"):  # their keys hold what the keys' positions may see
                assert (found[~allowed & ~diagonal] == 0).all(), layer.config
            assert (found[allowed] > 0).all(), layer.config
            before, after = layer(x, mask, rope)[0], layer(changed, mask, rope)[0]
            assert torch.equal(before[:, others], after[:, others]), layer.config


@each_class_fast
def test_query_that_may_attend_to_nothing_gets_a_zero_context(name: str) -> None:
    """Criterion: in fp64, fp32 and bf16 its output is exactly that of a zero context, and all values and gradients are
    finite."""
    mask = triangle().repeat(2, 1, 1, 1)
    mask[1, 0, 2] = False
    for changes in settings(name):
        for dtype in (torch.float64, torch.float32, torch.bfloat16):
            layer = layer_of(name, **changes).to(dtype)
            x = inputs(dtype=dtype).requires_grad_()
            with capture("weights") as seen:
                out, _ = layer(x, mask)
            nothing = layer.output(torch.zeros(2, HEADS, LENGTH, layer.layout.value, dtype=dtype), x)
            assert torch.equal(out[1, 2], nothing[1, 2]), (changes, dtype)
            assert (seen["weights"][0][1, :, 2] == 0).all(), (changes, dtype)
            gradients = torch.autograd.grad(out.square().sum(), [x, *layer.parameters()])
            assert all(tensor.isfinite().all() for tensor in [out, *gradients]), (changes, dtype)


@each_class_fast
def test_left_padding_changes_nothing(name: str) -> None:
    """Criterion: a padded sequence and the same sequence alone agree to 1e-10, in the full pass and token by token."""
    n_padded, length = 2, 7
    real = torch.ones(2, length, dtype=torch.bool)
    real[1, :n_padded] = False
    mask = triangle(length) & real[:, None, None, :]
    positions = (real.cumsum(1) - 1).clamp(min=0)
    x = inputs(length=length)
    for layer, rope in cases(name):
        alone, _ = layer(x[1:, n_padded:], True, rope)
        whole, _ = layer(x, mask, rope and rope.at(positions))
        cache = layer.new_cache()
        steps = [
            layer(x[:, t : t + 1], mask[:, :, t : t + 1, : t + 1], rope and rope.at(positions[:, t : t + 1]), cache)[0]
            for t in range(length)
        ]
        for found in (whole, torch.cat(steps, dim=1)):
            assert_same(found[1:, n_padded:], alone, layer)
            assert_same(found[:1], layer(x[:1], True, rope)[0], layer)


@each_class_fast
def test_rows_of_a_batch_are_independent(name: str) -> None:
    layer, x = layer_of(name), inputs()
    changed = torch.stack([x[0], -3 * x[1]])
    before, after = layer(x)[0], layer(changed)[0]
    assert torch.equal(before[0], after[0])
    assert not torch.equal(before[1], after[1])


@every_preset
def test_config_survives_json_and_builds_the_same_layer(name: str) -> None:
    for changes in [*settings(name), {"dropout": 0.1}]:
        config = PRESETS[name].replace(**changes)
        restored = AttentionConfig.from_dict(json.loads(json.dumps(config.to_dict())))
        assert restored == config
        layers = []
        for each in (config, restored):
            torch.manual_seed(3)
            layers.append(build(each, WIDTH, HEADS).double().eval())
        assert torch.equal(*(layer(inputs())[0] for layer in layers))


@each_class_fast
def test_half_precision_stays_close(name: str) -> None:
    """Criterion: the output is within 3% of fp32 in the Euclidean norm, with module and input in bf16 and under
    autocast."""
    for layer, rope in cases(name):
        layer = layer.float()
        x = inputs(dtype=torch.float32)
        wide, _ = layer(x, True, rope)
        half, _ = copy.deepcopy(layer).bfloat16()(x.bfloat16(), True, rope)
        assert half.dtype == torch.bfloat16
        with torch.autocast("cpu", dtype=torch.bfloat16):
            mixed, _ = layer(x, True, rope)
        for found in (half, mixed):
            assert (found.float() - wide).norm() < 0.03 * wide.norm(), layer.config


@each_class_fast
def test_gradients_are_those_of_the_forward_pass(name: str) -> None:
    """Criterion: torch's gradcheck passes in fp64 by x and by every parameter (finite differences along random
    directions), and every parameter has a nonzero gradient."""
    for layer, rope in cases(name):
        names, parameters = zip(*layer.named_parameters(), strict=True)

        def forward(x: Tensor, *values: Tensor, names=names, layer=layer, rope=rope) -> Tensor:
            return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (x, True, rope))[0]

        x = inputs(batch=1, length=3).requires_grad_()
        assert torch.autograd.gradcheck(forward, (x, *parameters), fast_mode=True), layer.config
        gradients = torch.autograd.grad(forward(x, *parameters).square().sum(), parameters)
        idle = [name for name, gradient in zip(names, gradients, strict=True) if not gradient.any()]
        assert not idle, layer.config


@pytest.mark.parametrize("name", [name for name in PRESETS if {"n_kv_heads": 2} in settings(name)])
def test_grouped_keys_are_shared_keys(name: str) -> None:
    """Criterion: 2 key heads for 4 query heads equal 4 key heads with equal weights within a group, at half the cache.
    Under coupling the queries of a group agree, too, since only then do equal keys stay equal."""
    torch.manual_seed(0)
    grouped, full = (build(name, WIDTH, HEADS, n_kv_heads=n).double() for n in (2, 4))
    query = grouped.project.get_submodule("query") if hasattr(grouped.project, "query") else None
    if grouped.config.couple.moves:
        assert isinstance(query, nn.Linear)
        with torch.no_grad():
            by_head = query.weight.unflatten(0, (2, 2, -1))
            by_head[:, 1] = by_head[:, 0]
    shared = grouped.state_dict()
    for key, value in full.state_dict().items():
        if shared[key].shape != value.shape:
            shared[key] = shared[key].unflatten(0, (2, -1)).repeat_interleave(2, dim=0).flatten(0, 1)
    full.load_state_dict(shared)
    x, caches = inputs(), [grouped.new_cache(), full.new_cache()]
    outputs = [layer(x, cache=cache)[0] for layer, cache in zip((grouped, full), caches, strict=True)]
    assert_same(*outputs, grouped)
    of_keys = [cache.n_numbers - sum(x[0].numel() for x in cache.state) for cache in caches]
    assert 2 * of_keys[0] == of_keys[1]


@each_class_fast
def test_a_layer_built_on_meta_can_be_filled(name: str) -> None:
    """Criterion: it has as many parameters without memory, and after `to_empty` the modules' `reset_parameters` fill
    every one."""
    for changes in settings(name):
        with torch.device("meta"):
            layer = build(name, WIDTH, HEADS, **changes)
            out, _ = layer(torch.empty(2, LENGTH, WIDTH))
        assert out.shape == (2, LENGTH, WIDTH)
        assert all(parameter.is_meta for parameter in layer.parameters())
        real = layer_of(name, **changes)
        assert [p.shape for p in layer.parameters()] == [p.shape for p in real.parameters()]
        layer = layer.to_empty(device="cpu")
        with torch.no_grad():
            for module in layer.modules():
                own = list(module.parameters(recurse=False))
                for parameter in own:
                    parameter.fill_(float("nan"))
                if own:
                    module.reset_parameters()
        assert all(parameter.isfinite().all() for parameter in layer.parameters()), changes


@each_class_fast
def test_auxiliary_loss_is_a_finite_scalar(name: str) -> None:
    out, aux_loss = layer_of(name)(inputs())
    assert out.shape == (2, LENGTH, WIDTH)
    assert aux_loss.shape == ()
    assert aux_loss.is_floating_point()
    assert aux_loss.isfinite()


@each_class_fast
def test_mask_of_wrong_kind_is_refused(name: str) -> None:
    """Criterion: an InputError names the field, the required shape, and the dtype and shape of the mask."""
    layer, x = layer_of(name), inputs()
    right = torch.ones(LENGTH, LENGTH, dtype=torch.bool)
    wrong = {
        "give `mask == 0` for an additive mask": right.float(),
        "a mask of keys alone": right[:, 1:],
        "T=": right[None],
        "all heads share one mask": right.expand(2, HEADS, -1, -1),
    }
    for reason, mask in wrong.items():
        with pytest.raises(InputError, match=r"^causal_mask must be boolean .*T S or B 1 T S") as error:
            layer(x, mask)
        assert f"got {mask.dtype} of shape {tuple(mask.shape)}" in str(error.value)
        assert f"T={LENGTH}, S={LENGTH}" in str(error.value)
        assert reason in str(error.value)


@each_class_fast
def test_a_mask_per_sequence_is_accepted_with_and_without_a_dimension_for_heads(name: str) -> None:
    layer, x = layer_of(name), inputs(batch=2)
    mask = torch.ones(2, LENGTH, LENGTH, dtype=torch.bool).tril()
    mask[1, :, 0] = False
    mask[1, 0, 0] = True
    torch.testing.assert_close(layer(x, mask)[0], layer(x, mask[:, None])[0])


def test_invalid_masks_and_ropes_are_refused_with_the_valid_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Criterion: this also holds without a type checker on the signatures, as in a user's process."""
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)
    layer, x = layer_of("standard"), inputs()
    with pytest.raises(InputError, match=r"^causal_mask must be True, False or a boolean tensor, got NoneType; "):
        layer(x, None)
    half = torch.arange(LENGTH)[:, None] * torch.ones(layer.rope_width // 2)
    cos, sin = (torch.cat([x, x], -1) for x in (half.cos(), half.sin()))
    with pytest.raises(InputError, match=r"^rope must be a Rope or a Rotation, got tuple; .*Rotation\(") as error:
        layer(x, rope=(cos, sin))
    assert "x[..., : x.shape[-1] // 2]" in str(error.value)
    rotation = Rotation(*(x[..., : x.shape[-1] // 2] for x in (cos, sin)))
    assert layer(x, rope=rotation)[0].isfinite().all()


@each_class_fast
def test_rope_of_wrong_width_is_refused(name: str) -> None:
    """Criterion: an InputError names both widths; a layer without scores ignores any rope."""
    layer, x = layer_of(name), inputs()
    wrong = Rope(layer.rope_width + 2)
    if not layer.rope_width:
        assert torch.equal(layer(x, rope=wrong)[0], layer(x)[0])
        return
    with pytest.raises(InputError, match=rf"^rope width must be {layer.rope_width} .*got {wrong.width}$"):
        layer(x, rope=wrong)


def test_mask_for_another_batch_is_refused() -> None:
    mask = torch.ones(3, 1, LENGTH, LENGTH, dtype=torch.bool)
    with pytest.raises(InputError, match=r"^causal_mask must be boolean .*got torch.bool of shape \(3, 1, 6, 6\)"):
        layer_of("standard")(inputs(batch=2), mask)
