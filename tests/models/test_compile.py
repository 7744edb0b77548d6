"""torch.compile takes every mechanism and family without a graph break, with the same loss and gradients."""

import pkgutil
from dataclasses import is_dataclass
from importlib import import_module

import pytest
import torch

import attractor.attention
import attractor.models
from attractor.attention import PRESETS
from attractor.attention.couple.norm_and_position import NormAndPosition
from attractor.equilibrium import fixed_point
from attractor.models import (
    AKOrNConfig,
    FastSlowConfig,
    ImportedConfig,
    ItrSAConfig,
    PreNormItrSAConfig,
    RecursiveConfig,
    TransformerConfig,
)
from attractor.models.config import ModelConfig
from attractor.models.language_model import LanguageModel
from attractor.models.recurrent import RecurrentModel
from several_processes import together
from tiers import REPRESENTATIVES

SMALL = TransformerConfig(vocab_size=31, d_model=16, n_heads=4, n_layers=1, d_ff=16, max_seq_len=16, positions="rope")
TWO_TIMESCALES = FastSlowConfig(vocab_size=31, d_model=16, d_ff=16, max_seq_len=16, n_rounds=1, n_slow=1, pool_factor=2)
IMPORTED = ImportedConfig.of(SMALL)
WINDOW = IMPORTED.replace(window=16, global_layers="every:2", n_layers=2, max_seq_len=160).replace(
    local_rope_theta=100.0, logit_softcap=5.0
)
OF_OTHER_FAMILIES = {
    "parallel": IMPORTED.replace(stream_norm="layernorm", parallel_branches=True, rope_fraction=0.5, mlp_bias=True),
    "multipliers": IMPORTED.replace(branch_scale=0.5, logit_scale=0.5, attention_scale=0.3, no_rope_every=1),
    "dynamic": SMALL.replace(rope_scaling="dynamic:4:4"),
    "longrope": SMALL.replace(rope_scaling="longrope:4:1.1:1,2:2,4"),
}
MODELS = {name: SMALL.replace(attention=name) for name in PRESETS} | OF_OTHER_FAMILIES
MODELS |= {"fast-slow": TWO_TIMESCALES, "window": WINDOW}
BOARDS = {"vocab_size": 31, "d_model": 16, "n_heads": 4, "max_seq_len": 16, "n_iterations": 2}
MODELS |= {
    "itrsa": ItrSAConfig(**BOARDS, d_ff=16, energy="multi"),
    "itrsa-pre-norm": PreNormItrSAConfig(**BOARDS, d_ff=16),
    "akorn": AKOrNConfig(**BOARDS, d_ff=16),
    "akorn-as-published": AKOrNConfig(**BOARDS, d_ff=16, positions="rope", as_published=True),
    "recursive": RecursiveConfig(**BOARDS, d_ff=16, n_segments=2, n_layers=1, n_inner=2),
}


@pytest.mark.slow
def test_every_model_compiles_without_a_graph_break() -> None:
    """The test runs in a process of its own, since the shape checks that conftest adds to signatures cannot be
    traced."""
    together(1, compile_all)


def test_what_a_model_calls_has_the_hash_of_its_identity() -> None:
    """torch.compile in torch 2.11 takes the hash of a called object whose fields are not set yet, which fails if the
    hash is made of the fields. Criterion: no dataclass that can be called has one, in attention, models and solvers."""
    modules = [fixed_point]
    for package in (attractor.attention, attractor.models):
        found = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        modules += [import_module(module.name) for module in found]
    members = [member for module in modules for member in vars(module).values()]
    called = [member for member in members if is_dataclass(member) and "__call__" in vars(member)]
    assert NormAndPosition in called
    assert any(kind.__module__ == fixed_point.__name__ for kind in called)
    assert not [kind for kind in called if kind.__hash__ is not object.__hash__]


def compile_all() -> None:
    for name, config in MODELS.items():
        compile_whole(config, "eager" if name in PRESETS.keys() - REPRESENTATIVES else "aot_eager")


def compile_whole(config: ModelConfig[LanguageModel], backend: str) -> None:
    """Compile with `fullgraph`, which refuses any graph break.

    The backends only trace, which shows breaks and is quick: `eager` the forward pass, and `aot_eager` gradients, too,
    of the presets that together have every stage, and of every family.
    """
    model = config.build(0)
    if isinstance(model, RecurrentModel):
        model.eval()  # in training, blanks start from other noise each time
    tokens = torch.randint(0, 31, (2, config.max_seq_len // 2), generator=torch.Generator().manual_seed(0))
    expected, _ = model.loss(tokens, tokens)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    wanted = torch.autograd.grad(expected, trained)
    torch.compiler.reset()
    loss, _ = torch.compile(model.loss, fullgraph=True, backend=backend)(tokens, tokens)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(torch.autograd.grad(loss, trained), wanted)
    real = torch.ones_like(tokens, dtype=torch.bool)
    real[0, :3] = False  # the first row has padding on its left
    hidden, _ = torch.compile(model.hidden, fullgraph=True, backend="eager")(tokens, None, real)
    torch.testing.assert_close(hidden[real], model.hidden(tokens, None, real)[0][real])
