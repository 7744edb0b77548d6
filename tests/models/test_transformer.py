"""The Transformer of CoupledQK has the exact sizes, losses and starting weights of the paper, and refuses bad input."""

import json

import pytest
import torch
import torch.nn.functional as F

from attractor.attention import PRESETS, Attention, Rope, build
from attractor.attention.hooks import capture
from attractor.errors import InputError
from attractor.models import SIZES, ImportedConfig, TransformerConfig
from attractor.models.families import model_config
from tiers import tiered

SMALL = TransformerConfig(vocab_size=61, d_model=32, n_heads=4, n_layers=2, d_ff=48, max_seq_len=40)
IMPORTED = ImportedConfig.of(SMALL)

# The counts follow tables 3, 8 and 11 of CoupledQK. Medium GQA and `large` follow its specification, since the printed
# 144.4M and "~350M" fit no whole number of heads and no MLP of that width.
STANDARD = {"small": 60_343_296, "medium": 152_256_000, "large": 454_690_816, "large-354m": 353_978_368}
PUBLISHED = {(size, "standard"): count for size, count in (STANDARD | {"tiny": 6_442_240}).items()}
PUBLISHED |= {("small", "differential"): 60_343_360, ("small", "mlp-only"): 60_408_832}
PUBLISHED |= {("small", "gqa"): 57_197_568, ("medium", "gqa"): 141_639_168}
for integrator in ("coupled-euler", "coupled-hamiltonian"):
    PUBLISHED |= {("small", integrator): 60_408_896, ("medium", integrator): 152_354_448}


def tokens(batch: int = 2, length: int = 12, vocab_size: int = 61) -> torch.Tensor:
    return torch.randint(0, vocab_size, (batch, length), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("size", "attention"), PUBLISHED)
def test_parameter_counts_are_exact(size: str, attention: str) -> None:
    with torch.device("meta"):
        model = SIZES[size].replace(attention=attention).build()
    assert sum(p.numel() for p in model.parameters()) == PUBLISHED[size, attention]


def test_tied_embeddings_count_once_and_untied_ones_twice() -> None:
    models = [SMALL.replace(tied_embeddings=tied).build(0) for tied in (True, False)]
    tied, untied = (sum(p.numel() for p in model.parameters()) for model in models)
    assert untied - tied == 61 * 32


@pytest.mark.parametrize("attention", tiered(PRESETS))
def test_loss_is_the_cross_entropy_of_the_logits(attention: str) -> None:
    model = SMALL.replace(attention=attention).build(0)
    inputs, targets = tokens(), tokens().roll(-1, 1)
    logits, aux_loss = model(inputs)
    loss, aux_of_loss = model.loss(inputs, targets)
    torch.testing.assert_close(loss, F.cross_entropy(logits.flatten(0, 1), targets.flatten()))
    assert aux_loss.shape == aux_of_loss.shape == ()


OF_OTHER_FAMILIES: list[dict[str, object]] = [
    *({"mlp": name} for name in ("gelu", "geglu", "geglu-tanh")),
    *({"norms_per_block": 4}, {"post_norm": True}, {"qkv_bias": True}, {"embedding_scale": 5.0}),
    {"qk_norm": True, "qk_norm_across": True},
    {"positions": "rope", "rope_scaling": "llama3:8:1:4:16"},
    {"attention": "coupled-euler", "zero_start": True},
    {"stream_norm": "layernorm", "qkv_bias": True, "out_bias": True, "mlp_bias": True, "mlp": "gelu-tanh"},
    {"stream_norm": "layernorm-no-bias", "parallel_branches": True, "norms_per_block": 1, "logit_scale": 0.25},
    {"parallel_branches": True, "positions": "rope", "rope_fraction": 0.5},
    {"branch_scale": 0.5, "attention_scale": 0.1, "positions": "rope", "no_rope_every": 2},
    {"positions": "rope", "rope_scaling": "dynamic:4:8"},
    {"positions": "rope", "rope_scaling": "yarn:4:64:32:1:1.1"},
    {"positions": "rope", "rope_scaling": "longrope:8:1.1:1,1,2,2:1,2,3,4"},
]


@pytest.mark.parametrize("changes", OF_OTHER_FAMILIES)
def test_other_families_train_and_decode_and_their_fields_are_stored_only_where_they_are_used(
    changes: dict[str, object],
) -> None:
    """The sequence is shorter than the length beyond which a RoPE scaling depends on the length. If more fields were
    stored, the config hash of earlier runs would change."""
    config, asked = IMPORTED.replace(**changes), tokens(2, 8)
    model = config.build(0)
    model.loss(asked, asked)[0].backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    with torch.no_grad():
        cache = model.eval().new_cache()
        parts = [model(part, cache=cache)[0] for part in asked.split([3, 1, 1, 2, 1], dim=1)]
        torch.testing.assert_close(torch.cat(parts, 1), model(asked)[0], rtol=0, atol=1e-5)
    stored = json.loads(json.dumps(config.to_dict()))
    assert stored.keys() - SMALL.to_dict().keys() <= changes.keys()
    back = model_config(stored)
    assert isinstance(back, TransformerConfig)
    assert ImportedConfig.of(back) == config
    assert isinstance(back, ImportedConfig) == any(not hasattr(SMALL, name) for name in changes)
    assert not {"post_norm", "embedding_scale", "zero_start", "rope_scaling", "qk_norm_eps"} & SMALL.to_dict().keys()


@torch.no_grad()
def test_post_norm_normalises_the_output_of_a_branch_and_not_its_input() -> None:
    """Criterion: the attention branch equals the norm of attention of the unnormalised input, with a mean square of
    1."""
    block = IMPORTED.replace(post_norm=True).build(0).layers[0].eval()
    x = torch.randn(2, 7, 32)
    attended, _ = block.attend(x, True, None, None)
    torch.testing.assert_close(attended.square().mean(-1), torch.ones(2, 7), rtol=1e-2, atol=0)
    torch.testing.assert_close(attended, block.attention_post_norm(block.attention(x)[0]))


@torch.no_grad()
def test_the_scale_of_embeddings_does_not_apply_to_the_tied_readout() -> None:
    scaled, plain = IMPORTED.replace(embedding_scale=3.0).build(0).eval(), SMALL.build(0).eval()
    scaled.positions.weight.zero_()
    plain.positions.weight.zero_()
    plain.embedding.weight.mul_(3)
    logits = scaled(tokens())[0]
    assert torch.equal(scaled.readout, scaled.embedding.weight)
    torch.testing.assert_close(3 * logits, plain(tokens())[0])


def test_decoding_beyond_the_length_of_a_scaling_is_refused_only_with_a_cache() -> None:
    model = SMALL.replace(positions="rope", rope_scaling="dynamic:4:8").build(0).eval()
    with pytest.raises(InputError, match="must stay within 8 positions under rope_scaling 'dynamic', got 9"):
        model.generate(tokens(2, 6), max_new_tokens=8)
    assert model.generate(tokens(2, 6), max_new_tokens=8, use_cache=False).shape == (2, 14)


@torch.no_grad()
def test_parallel_branches_read_the_same_stream() -> None:
    """Criterion: a block adds the sum of both branches at its input; with one norm, both branches read that norm's
    output."""
    x = torch.randn(2, 7, 32)
    block = IMPORTED.replace(parallel_branches=True).build(0).layers[0].eval()
    torch.testing.assert_close(block(x)[0] - x, block.attend(x, True, None, None)[0] + block.transform(x))
    shared = IMPORTED.replace(parallel_branches=True, norms_per_block=1).build(0).layers[0].eval()
    shared.attention_norm.weight.normal_()
    n = shared.attention_norm(x)
    torch.testing.assert_close(shared(x)[0] - x, shared.attention(n)[0] + shared.mlp(n))
    assert not list(shared.mlp_norm.parameters())


@torch.no_grad()
def test_multipliers_multiply_logits_branches_and_scores() -> None:
    model, asked = SMALL.build(0).eval(), tokens()
    scaled = IMPORTED.replace(logit_scale=0.5).build(0).eval()
    torch.testing.assert_close(scaled(asked)[0], 0.5 * model(asked)[0])
    targets = asked.roll(1, 1)
    cross_entropy = F.cross_entropy(scaled(asked)[0].flatten(0, 1), targets.flatten())
    torch.testing.assert_close(scaled.loss(asked, targets)[0], cross_entropy)
    x, block = torch.randn(2, 7, 32), model.layers[0]
    halved = IMPORTED.replace(branch_scale=0.5).build(0).layers[0].eval()
    torch.testing.assert_close(halved.transform(x), 0.5 * block.transform(x))
    torch.testing.assert_close(halved.attend(x, True, None, None)[0], 0.5 * block.attend(x, True, None, None)[0])
    with capture("logits") as seen:
        IMPORTED.replace(attention_scale=2 * 8**-0.5).build(0)(asked)
        model(asked)
    layers = len(seen["logits"]) // 2
    torch.testing.assert_close(seen["logits"][0], 2 * seen["logits"][layers])


@torch.no_grad()
def test_rope_rotates_a_fraction_of_each_head_and_skips_every_nth_layer() -> None:
    config = IMPORTED.replace(positions="rope", rope_fraction=0.5, no_rope_every=2, n_layers=4)
    with capture("q", "q_coupled") as seen:
        config.build(0)(tokens())
    for number, (before, after) in enumerate(zip(seen["q"], seen["q_coupled"], strict=True), start=1):
        assert torch.equal(before[..., 4:], after[..., 4:])
        assert torch.equal(before[..., :4], after[..., :4]) == (number % 2 == 0)


@torch.no_grad()
@pytest.mark.parametrize("attention", ["gqa", "differential", "coupled-euler", "mla"])
def test_qk_norm_across_normalises_all_heads_of_a_position_together(attention: str) -> None:
    """Criterion: the mean square over all heads is 1 while single heads differ; with one head it is the usual
    QK-norm."""
    torch.manual_seed(0)
    layer = build(attention, 32, 4, qk_norm=True, qk_norm_across=True).eval()
    with capture("q_coupled", "k_coupled") as seen:
        layer(100 * torch.randn(2, 7, 32))  # so large that the norm's epsilon does not count
    for x in (seen["q_coupled"][0], seen["k_coupled"][0]):
        by_head = x.square().mean(-1)
        torch.testing.assert_close(by_head.mean(1), torch.ones(2, 7), rtol=1e-5, atol=0)
        assert x.shape[1] == 1 or by_head.std(1).min() > 1e-2
    alone, across = (build("standard", 32, 1, qk_norm=True, qk_norm_across=across) for across in (False, True))
    across.load_state_dict(alone.state_dict())
    x = torch.randn(2, 7, 32)
    torch.testing.assert_close(across(x)[0], alone(x)[0])


@pytest.mark.parametrize("attention", ["gqa", "coupled-euler", "differential", "gated", "mla", "uniform"])
def test_models_of_one_seed_share_every_weight_that_both_have(attention: str) -> None:
    """Criterion: parameters with the same name and shape start with the same values, which pairs the runs of a
    comparison."""
    ours, theirs = SMALL.build(5).state_dict(), SMALL.replace(attention=attention).build(5).state_dict()
    shared = [name for name in ours if name in theirs and ours[name].shape == theirs[name].shape]
    assert any("mlp" in name for name in shared)
    assert all(torch.equal(ours[name], theirs[name]) for name in shared)


def test_seeds_differ_and_building_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    one, other = SMALL.build(1), SMALL.build(2)
    assert torch.equal(before, torch.get_rng_state())
    assert not torch.equal(one.embedding.weight, other.embedding.weight)


def test_without_a_seed_the_weights_follow_torchs_generator() -> None:
    torch.manual_seed(3)
    one = SMALL.build()
    torch.manual_seed(3)
    assert torch.equal(one.embedding.weight, SMALL.build().embedding.weight)


@pytest.mark.parametrize(
    ("global_layers", "expected"),
    [(None, []), ("every:3", [2, 5]), ("first:2", [0, 1]), ("0,4", [0, 4]), ("every:9", []), ("first:9", [*range(7)])],
)
def test_global_layers_have_no_window(global_layers: str | None, expected: list[int]) -> None:
    config = SMALL.replace(n_layers=7, window=5, global_layers=global_layers)
    with torch.device("meta"):
        layers = config.build().layers
    assert [index for index, layer in enumerate(layers) if layer.attention.window is None] == expected
    assert {layer.attention.window for layer in layers} <= {None, 5}
    assert config.layer_equivalents == len(expected)
    if global_layers is not None:
        linear = SMALL.replace(n_layers=7, attention="decay", attention_global="standard", global_layers=global_layers)
        assert linear.layer_equivalents == len(expected)
    assert TransformerConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert not {"window", "global_layers"} & SMALL.to_dict().keys()


def test_layers_with_a_window_may_have_a_rope_of_their_own() -> None:
    """Criterion: they rotate at `local_rope_theta`, without the scaling of the global layers."""
    config = SMALL.replace(window=5, global_layers="0", positions="rope", rope_theta=1e6, rope_scaling="linear:4")
    model = ImportedConfig.of(config).replace(local_rope_theta=1e3).build(0)
    x = torch.randn(1, 9, 32)
    rotations = model.rotations(model.placement(tokens(1, 9), None, None))
    for rotation, rope in zip(rotations, (Rope(8, 1e6, "linear:4"), Rope(8, 1e3)), strict=True):
        assert torch.equal(rotation(x.view(1, 4, 9, 8)), rope.at(torch.arange(9))(x.view(1, 4, 9, 8)))
    assert SMALL.to_dict().keys().isdisjoint({"local_rope_theta", "logit_softcap"})


def test_soft_capped_logits_are_those_of_the_loss() -> None:
    """Criterion: the logits, their losses and likeliest tokens, and the generated tokens agree."""
    plain, capped = SMALL.build(0).eval(), IMPORTED.replace(logit_softcap=0.1).build(0).eval()
    inputs, targets = tokens(), tokens().roll(-1, 1)
    logits, _ = capped(inputs)
    torch.testing.assert_close(logits, 0.1 * (plain(inputs)[0] / 0.1).tanh())
    torch.testing.assert_close(capped.loss(inputs, targets)[0], F.cross_entropy(logits.mT, targets))
    torch.testing.assert_close(capped.judge(inputs, targets)[0], F.cross_entropy(logits.mT, targets, reduction="none"))
    torch.testing.assert_close(capped.next_logits(inputs), logits[:, -1])


def test_a_sequence_longer_than_the_learned_positions_is_refused_and_rope_has_no_limit() -> None:
    with pytest.raises(InputError, match=r"max_seq_len .* got 40 for 41 tokens; .*positions='rope'"):
        SMALL.build(0)(tokens(1, 41))
    assert SMALL.replace(positions="rope").build(0)(tokens(1, 41))[0].shape == (1, 41, 61)


@pytest.mark.parametrize("attention", tiered(PRESETS))
def test_a_layer_in_the_model_equals_the_same_layer_alone(attention: str) -> None:
    """Criterion: a layer of the model and a layer built alone with the same config and weights have the same output."""
    model = SMALL.replace(attention=attention).build(0).eval()
    alone = build(attention, d_model=32, n_heads=4, layer_index=1).eval()
    alone.load_state_dict(model.layers[1].attention.state_dict())
    x = torch.randn(2, 7, 32)
    assert torch.equal(alone(x)[0], model.layers[1].attention(x)[0])


HYBRIDS: dict[str, dict[str, object]] = {
    "three windows, one full": {"window": 5, "global_layers": "every:4"},
    "window and decay": {"window": 5, "attention_global": "decay", "global_layers": "every:2"},
    "decay and exclusive": {"attention": "decay", "attention_global": "xsa", "global_layers": "1,3"},
    "convolved and gated": {"attention": "short-conv", "attention_global": "gated-heads", "global_layers": "first:1"},
    "value residual in windows": {"attention": "value-residual", "window": 5, "global_layers": "every:2"},
}


@pytest.mark.parametrize("positions", ["rope", "learned"])
@pytest.mark.parametrize("name", HYBRIDS)
def test_layers_of_two_mechanisms_decode_and_skip_padding_as_in_the_full_pass(name: str, positions: str) -> None:
    """Criterion: cached in parts equals the whole to 1e-10 in fp64, each layer with its own cache; left padding
    changes nothing; no logit depends on a later token."""
    model = SMALL.replace(n_layers=4, positions=positions, **HYBRIDS[name]).build(0).double().eval()
    assert len(set(map(str, [layer.attention.config for layer in model.layers]))) == 2
    ids = tokens()
    whole = model(ids)[0]
    for first in (0, 4):  # without and with left padding of the first sequence
        real = torch.ones_like(ids, dtype=torch.bool)
        real[0, :first] = False
        cache, at = model.new_cache(), 0
        for part in ids.split([5, 1, 4, 2], dim=1):
            logits, _ = model(part, cache, real[:, at : at + part.shape[1]])
            expected = whole[1, at : at + part.shape[1]]
            torch.testing.assert_close(logits[1], expected, rtol=1e-10, atol=1e-10)
            at += part.shape[1]
        for layer, held in zip(model.layers, cache.layers, strict=True):
            assert layer.attention.window is None or held.n_held == layer.attention.window < ids.shape[1]
        alone = model(ids[:1, first:])[0][0]
        torch.testing.assert_close(model(ids, real=real)[0][0, first:], alone, rtol=1e-10, atol=1e-10)
    changed = ids.clone()
    changed[:, 7:] = (changed[:, 7:] + 1) % 61
    assert torch.equal(model(changed)[0][:, :7], whole[:, :7])


@pytest.mark.parametrize("checkpointing", [False, True])
def test_value_residual_mixes_the_values_of_the_first_layer(checkpointing: bool) -> None:
    """Criterion: share = 0 is the standard model; under share = 1 the value matrices of later layers do nothing, and
    under .5 all matrices of values have the gradients of finite differences, also where activations are recomputed."""
    standard, none, all_of_first, half = (
        SMALL.replace(attention=attention).build(0).double()
        for attention in ("standard", *(f"value-residual:share={share}" for share in (0.0, 1.0, 0.5)))
    )
    torch.testing.assert_close(none(tokens())[0], standard(tokens())[0])
    before = all_of_first(tokens())[0]
    with torch.no_grad():
        all_of_first.layers[1].attention.project.value.weight.zero_()
    assert torch.equal(all_of_first(tokens())[0], before)
    half.activation_checkpointing = checkpointing
    half.train()
    for layer in half.layers:
        weight = layer.attention.project.value.weight
        direction = torch.randn(weight.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        (gradient,) = torch.autograd.grad(half.loss(tokens(), tokens())[0], weight)
        sides = []
        for step in (1e-5, -2e-5, 1e-5):
            sides.append(half.loss(tokens(), tokens())[0].item())
            with torch.no_grad():
                weight += step * direction
        slope = (sides[1] - sides[2]) / 2e-5
        torch.testing.assert_close((gradient * direction).sum().item(), slope, rtol=1e-4, atol=1e-8)


def test_a_short_convolution_is_that_of_torch_and_stays_within_its_document() -> None:
    """Criterion: the input of the projections is x and its depthwise convolution; two documents in a row are as two
    rows; weights of zero are standard attention."""
    torch.manual_seed(0)
    layer, x = build("short-conv", 32, 4).double(), torch.randn(2, 9, 32, dtype=torch.float64)
    kernel = layer.project.convolution.kernel
    z = x + F.conv1d(F.pad(x.mT, (3, 0)), kernel.flip(0).T.unsqueeze(1), groups=32).mT
    for found, expected in zip(layer.project(x), build_like(layer).project(z), strict=True):
        torch.testing.assert_close(found, expected)
    both = torch.cat([x[:1], x[1:]], dim=1)
    document = torch.arange(18) // 9
    mask = (document[:, None] == document).tril()
    torch.testing.assert_close(layer(both, mask)[0].view(2, 9, 32), layer(x)[0])
    with torch.no_grad():
        kernel.zero_()
    torch.testing.assert_close(layer(x)[0], build_like(layer)(x)[0])


def build_like(layer: Attention) -> Attention:
    """Return standard attention with the weights of a layer."""
    standard = build("standard", 32, 4).double()
    standard.load_state_dict(layer.state_dict(), strict=False)
    return standard
