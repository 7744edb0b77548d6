"""Every pair of interventions on the logits is computed as both define, draws a warning, or is refused with the
reason."""

import itertools
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

from attractor.attention import PRESETS, Attention, Rope, build
from attractor.models import TransformerConfig
from several_processes import together

WIDTH, HEADS = 16, 4
INTERVENTIONS: dict[str, Any] = {"qk_norm": True, "softcap": 2.0, "sigma_reparam": True, "z_loss": 0.1}
REDUNDANT = {
    "softcap": "softcap=2 is redundant with qk_norm",
    "sigma_reparam": "sigma_reparam is redundant with qk_norm",
}


def some_x(length: int = 6) -> Tensor:
    return torch.randn(2, length, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def layer_of(name: str, **changes: Any) -> Attention:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return build(name, WIDTH, HEADS, **changes).double()


@pytest.mark.parametrize("name", ["standard", "gqa", "mla", "differential", "coupled-euler", "psiqrh"])
@pytest.mark.parametrize("pair", list(itertools.combinations(INTERVENTIONS, 2)), ids="+".join)
def test_every_pair_trains_and_decodes(name: str, pair: tuple[str, str]) -> None:
    """Criterion: every parameter has a finite gradient (a gain whose scale QK-norm undoes may have zero), and decoding
    equals the full pass."""
    layer = layer_of(name, **{field: INTERVENTIONS[field] for field in pair})
    out, penalty = layer(some_x())
    (out.square().sum() + penalty).backward()
    assert (penalty > 0) == ("z_loss" in pair)
    for parameter, value in layer.named_parameters():
        assert value.grad is not None, parameter
        assert value.grad.isfinite().all(), parameter
    layer.eval()
    x, rope, cache = some_x(), Rope(layer.rope_width), layer.new_cache()
    parts = [layer(chunk, rope=rope, cache=cache)[0] for chunk in x.split([1, 2, 3], dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), layer(x, rope=rope)[0], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("field", REDUNDANT)
def test_a_redundant_pair_is_valid_and_warns_with_the_reason(field: str) -> None:
    """Criterion: a model warns once, however many layers it has, and a penalty beside either draws none."""
    changes = {"qk_norm": True, field: INTERVENTIONS[field]}
    with pytest.warns(UserWarning, match=f"^{REDUNDANT[field]}: "):
        build("standard", WIDTH, HEADS, layer_index=0, **changes)
    build("standard", WIDTH, HEADS, layer_index=1, **changes)
    build("standard", WIDTH, HEADS, z_loss=0.1, **{field: INTERVENTIONS[field]})


@pytest.mark.slow
def test_interventions_compile_without_a_graph_break() -> None:
    """Criterion: loss, gradients and vectors are the same over two steps. The test runs in a process of its own, since
    the shape checks that conftest adds to signatures cannot be traced."""
    together(1, compile_two)


def compile_two() -> None:
    compile_whole("mla", sigma_reparam=True)
    compile_whole("differential", z_loss=0.1, softcap=2.0)


def compile_whole(attention: str, **changes: Any) -> None:
    config = TransformerConfig(vocab_size=31, d_model=WIDTH, n_heads=HEADS, n_layers=1, d_ff=16, max_seq_len=16)
    config = config.replace(attention=PRESETS[attention].replace(**changes))
    tokens = torch.randint(0, 31, (2, 8), generator=torch.Generator().manual_seed(0))
    ends = []
    for compiled in (False, True):
        model = config.build(seed=0)
        torch.compiler.reset()
        loss_of = torch.compile(model.loss, fullgraph=True, backend="aot_eager") if compiled else model.loss
        for _ in range(2):
            loss = sum(loss_of(tokens, tokens))
            gradients = torch.autograd.grad(loss, list(model.parameters()))  # type: ignore[arg-type]
        ends.append((gradients, dict(model.named_buffers())))
    torch.testing.assert_close(ends[0], ends[1])
