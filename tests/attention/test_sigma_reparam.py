"""Under sigmaReparam the gain is the spectral norm of the acting weight; its vectors follow the weight in training."""

import copy
import io
import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attractor.attention import PRESETS, Attention, AttentionConfig, build
from attractor.attention.acting_weight import acting_weight
from attractor.attention.sigma_reparam import Sigma, SigmaLinear, sigma_reparametrize
from attractor.control.heads import query_key_heads
from attractor.errors import InputError
from attractor.models import TransformerConfig
from attractor.runs.configuration import config_hash
from attractor.train.config import TrainConfig
from attractor.train.stacked_loop import stackable

WIDTH, HEADS = 16, 4
MODEL = TransformerConfig(vocab_size=31, d_model=WIDTH, n_heads=HEADS, n_layers=2, d_ff=16, max_seq_len=16)
REPARAMETRIZED: dict[str, set[str]] = {name: {"query", "key"} for name in ("standard", "gqa", "psiqrh")}
REPARAMETRIZED |= {"mla": {"query_down", "query_up", "query_rope", "down", "key_up", "key_rope"}, "uniform": set()}


def layer_of(name: str, **changes: Any) -> Attention:
    """Build a layer in evaluation mode and fp64 with its gains moved off their starting values."""
    torch.manual_seed(0)
    layer = build(name, WIDTH, HEADS, sigma_reparam=True, **changes).double().eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    settle(layer)
    return layer


def settle(module: nn.Module, n_iterations: int = 100) -> None:
    """Let the vectors converge to the singular vectors of the current weights."""
    for linear in module.modules():
        if isinstance(linear, SigmaLinear):
            for _ in range(n_iterations):
                linear.sigma.iterate(linear.weight)


def some_x(length: int = 5) -> Tensor:
    return torch.randn(2, length, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def norm(matrix: Tensor) -> Tensor:
    return torch.linalg.matrix_norm(matrix.detach(), ord=2)


@pytest.mark.parametrize("name", REPARAMETRIZED)
def test_queries_and_keys_start_at_a_spectral_norm_of_one(name: str) -> None:
    """Criterion: the matrices of queries and keys start at a spectral norm of exactly 1; all starting weights are those
    of the model without sigmaReparam."""
    model = MODEL.replace(attention=PRESETS[name].replace(sigma_reparam=True)).build(seed=0)
    plain = MODEL.replace(attention=name).build(seed=0)
    for parameter, value in plain.named_parameters():
        assert torch.equal(model.get_parameter(parameter), value)
    for block in model.layers:
        found = {n for n, module in block.attention.project.named_children() if isinstance(module, SigmaLinear)}
        assert found == REPARAMETRIZED[name]
        for part in found:
            linear = block.attention.project.get_submodule(part)
            assert isinstance(linear, SigmaLinear)
            torch.testing.assert_close(norm(acting_weight(linear)), torch.tensor(1.0))


def test_only_the_direction_of_the_weight_matters() -> None:
    """Criterion: the output does not change with the weight's scale, and grows with the gain."""
    linear = layer_of("standard").project.get_submodule("query")
    assert isinstance(linear, SigmaLinear)
    x = some_x()
    before = linear(x)
    with torch.no_grad():
        linear.weight *= 7
    torch.testing.assert_close(linear(x), before)
    with torch.no_grad():
        linear.sigma.gain *= 3
    torch.testing.assert_close(linear(x), 3 * before)


def test_gradients_are_those_with_the_vectors_held() -> None:
    """Criterion: gradcheck passes in fp64; with exact vectors, the gradient is that of W / ||W|| itself."""
    torch.manual_seed(0)
    linear = SigmaLinear(5, 4, bias=True).double().eval()
    settle(linear)
    x = torch.randn(3, 5, dtype=torch.float64)

    def forward(weight: Tensor, gain: Tensor) -> Tensor:
        return torch.func.functional_call(linear, {"weight": weight, "sigma.gain": gain}, (x,))

    inputs = (linear.weight, linear.sigma.gain)
    assert torch.autograd.gradcheck(forward, inputs)
    exact = linear.weight / torch.linalg.matrix_norm(linear.weight, ord=2)
    probe = torch.randn(4, 5, dtype=torch.float64)
    wanted = torch.autograd.grad((exact * probe).sum(), linear.weight)[0]
    found = torch.autograd.grad((acting_weight(linear) * probe).sum(), linear.weight)[0]
    torch.testing.assert_close(found, wanted)
    assert abs(float((found * linear.weight).sum().detach())) < 1e-10  # the gradient does not change the scale


def moved() -> tuple[SigmaLinear, Tensor]:
    """Return a layer whose vectors do not belong to its weight, and an input."""
    torch.manual_seed(0)
    linear = SigmaLinear(6, 5)
    with torch.no_grad():
        linear.weight += torch.randn_like(linear.weight)
    return linear, torch.randn(2, 6)


def test_vectors_move_in_training_alone() -> None:
    linear, x = moved()
    before = copy.deepcopy(dict(linear.named_buffers()))
    linear.eval()(x)
    assert all(torch.equal(before[name], value) for name, value in linear.named_buffers())
    linear.train()
    errors = []
    for _ in range(60):
        linear(x)
        errors.append(float((norm(acting_weight(linear)) - 1).abs()))
    assert errors[-1] < 1e-4 < errors[0]


def test_a_second_forward_pass_leaves_the_gradients_of_the_first() -> None:
    """Criterion: the second forward pass moves the vectors and leaves the gradients of the first unchanged."""
    linear, x = moved()
    twin = copy.deepcopy(linear)
    first = linear(x).sum()
    linear(x)
    first.backward()
    twin(x).sum().backward()
    assert linear.weight.grad is not None
    assert twin.weight.grad is not None
    assert torch.equal(linear.weight.grad, twin.weight.grad)


@pytest.mark.parametrize("name", ["standard", "mla"])
def test_recomputed_and_resumed_training_ends_bit_for_bit_where_plain_training_ends(name: str) -> None:
    """Criterion: six steps, the same under activation checkpointing, and three before and three after storage."""
    tokens = torch.randint(0, 31, (2, 8), generator=torch.Generator().manual_seed(0))
    config = MODEL.replace(attention=PRESETS[name].replace(sigma_reparam=True))

    def train(model: nn.Module, n_steps: int) -> nn.Module:
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        for _ in range(n_steps):
            optimizer.zero_grad()
            model.loss(tokens, tokens)[0].backward()  # type: ignore[operator]
            optimizer.step()
        return model

    recomputing = config.build(seed=0)
    recomputing.activation_checkpointing = True
    file, resumed = io.BytesIO(), config.build(seed=1)
    torch.save(train(config.build(seed=0), 3).state_dict(), file)
    file.seek(0)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    plain = train(config.build(seed=0), 6).state_dict()
    for other in (train(recomputing, 6), train(resumed, 3)):
        assert all(torch.equal(plain[name], value) for name, value in other.state_dict().items())


@pytest.mark.parametrize(
    "qk_norm", [False, pytest.param(True, marks=pytest.mark.filterwarnings("ignore:sigma_reparam"))]
)
@pytest.mark.parametrize("name", ["standard", "gqa", "mla", "coupled-mla", "differential"])
def test_cached_decoding_equals_the_full_pass(name: str, qk_norm: bool) -> None:
    """Criterion: both agree within 1e-10 in fp64; MLA's absorbed form unfolds keys with the reparametrised weight."""
    layer, x = layer_of(name, qk_norm=qk_norm), some_x(7)
    assert layer.absorbs == (name == "mla" and not qk_norm)
    whole, _ = layer(x)
    for chunks in ([1] * 7, [3, 4]):
        cache = layer.new_cache()
        parts = [layer(chunk, cache=cache)[0] for chunk in x.split(chunks, dim=1)]
        torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-10, atol=1e-10)


def test_half_precision_stays_close() -> None:
    """Criterion: the output is within 3% in bf16 and under autocast, where the norm stays that of fp32."""
    layer, x = layer_of("mla").float(), some_x().float()
    wide, _ = layer(x)
    half, _ = copy.deepcopy(layer).bfloat16()(x.bfloat16())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed, _ = layer(x)
    for found in (half, mixed):
        assert (found.float() - wide).norm() < 0.03 * wide.norm()


def test_a_layer_built_on_meta_can_be_filled() -> None:
    """Criterion: after `to_empty`, `reset_parameters` fills parameters and vectors."""
    with torch.device("meta"):
        linear = SigmaLinear(6, 5)
    linear.to_empty(device="cpu")
    for tensor in [*linear.parameters(), *linear.buffers()]:
        tensor.detach().fill_(torch.nan)
    linear.reset_parameters()
    assert all(tensor.isfinite().all() for tensor in [*linear.parameters(), *linear.buffers()])
    torch.testing.assert_close(norm(acting_weight(linear)), torch.tensor(1.0))


@pytest.mark.parametrize("name", ["standard", "mla", "psiqrh"])
def test_heads_are_seen_as_before(name: str) -> None:
    """Criterion: the head views name the weights that optimizers move."""
    (view,) = query_key_heads(layer_of(name))
    (plain,) = query_key_heads(build(name, WIDTH, HEADS))
    for part, rows in view.parts().items():
        assert isinstance(rows.weight, nn.Parameter)
        assert (rows.starts, rows.width) == (plain.parts()[part].starts, plain.parts()[part].width)


@pytest.mark.parametrize("name", PRESETS)
def test_stored_configs_keep_their_form_and_name(name: str) -> None:
    """Criterion: at its default the field is not stored, so hashes stay the same; another value survives JSON."""
    config = PRESETS[name]
    for value, is_stored in ((False, False), (True, True)):
        changed = config.replace(sigma_reparam=value)
        assert ("sigma_reparam" in changed.to_dict()["project"]) == is_stored
        assert AttentionConfig.from_dict(json.loads(json.dumps(changed.to_dict()))) == changed
    assert "z_loss" not in config.to_dict()["score"]


def test_the_hash_of_a_stored_config_is_unchanged() -> None:
    """Criterion: two mechanisms keep the hashes that they had before the fields were added."""
    assert config_hash(PRESETS["standard"].to_dict()) == "49b9ea271b5a"
    assert config_hash(PRESETS["mla"].to_dict()) == "1ecf43f88c60"


def test_stacked_seeds_are_refused() -> None:
    model = MODEL.replace(attention=PRESETS["standard"].replace(sigma_reparam=True))
    assert stackable(TrainConfig(model=model, seq_len=8)) == "the model keeps a state beside its parameters"


def test_a_matrix_of_zeros_is_refused_and_unchanged() -> None:
    linear = nn.Linear(3, 2)
    nn.init.zeros_(linear.weight)
    with pytest.raises(InputError, match=r"^weight must be other than 0 for sigmaReparam, which divides by its norm"):
        sigma_reparametrize(linear)
    assert not torch.nn.utils.parametrize.is_parametrized(linear)


def test_any_linear_layer_is_reparametrised_in_place() -> None:
    """Criterion: the output stays the same at first; then the gain alone sets the scale, and both parameters have
    gradients."""
    torch.manual_seed(0)
    linear, x = nn.Linear(6, 5), torch.randn(3, 6)
    before = linear(x)
    sigma_reparametrize(linear)
    torch.testing.assert_close(linear(x), before)
    names = {name for name, _ in linear.named_parameters()}
    assert names == {"bias", "parametrizations.weight.original", "parametrizations.weight.0.gain"}
    sigma = linear.parametrizations.weight[0]  # type: ignore[union-attr,index]
    assert isinstance(sigma, Sigma)
    with torch.no_grad():
        sigma.gain *= 2
        linear.parametrizations.weight.original *= 5  # type: ignore[union-attr,operator]
    torch.testing.assert_close(linear(x), 2 * before - linear.bias)
    linear(x).sum().backward()
    assert all(parameter.grad is not None for parameter in linear.parameters())
