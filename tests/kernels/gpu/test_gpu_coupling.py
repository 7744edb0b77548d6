"""The coupling kernels equal the definition in fp64, forward and in every gradient, interpreted and on a GPU."""

from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attractor.attention.couple.euler import Euler
from attractor.attention.couple.leapfrog import Leapfrog
from attractor.attention.couple.mlp import PROGRAM
from attractor.attention.couple.norm_and_position import NormAndPosition
from attractor.attention.norm import RMSNorm
from attractor.attention.position import Rope, Rotation
from attractor.kernels.coupling import MLPProgram, Program, apply_force, integrate_reference
from attractor.kernels.gpu.coupling import couple

EPS = 1e-3  # large enough to change the result noticeably
PROGRAMS: dict[str, Program | MLPProgram] = {
    "euler": Euler().program,
    "two euler steps": Euler(n_steps=2).program,
    "leapfrog": Leapfrog(n_steps=1).program,
    "three leapfrog steps": Leapfrog(n_steps=3).program,
    "mlp-only": PROGRAM,
}
CLOSE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}  # error relative to the largest entry


@dataclass(frozen=True)
class Case:
    """The arguments of an operator in fp64; tests ask for the gradients of `tensors`."""

    program: Program | MLPProgram
    tensors: dict[str, Tensor]
    rotation: Rotation | None = None

    def to(self, dtype: torch.dtype) -> "Case":
        moved = {name: x.detach().to(dtype if name in "qk" else torch.float32) for name, x in self.tensors.items()}
        return Case(self.program, {name: x.requires_grad_() for name, x in moved.items()}, self.rotation)

    def on(self, device: str) -> "Case":
        rotation = self.rotation and Rotation(self.rotation.cos[:, 0].to(device), self.rotation.sin[:, 0].to(device))
        return Case(self.program, {name: x.to(device) for name, x in self.tensors.items()}, rotation)

    def like(self, other: "Case") -> "Case":
        """Return the arguments of `other`, already rounded to its precision, in fp64."""
        wide = {name: x.detach().double().requires_grad_() for name, x in other.tensors.items()}
        return Case(self.program, wide, self.rotation)

    def fused(self, products: torch.dtype, result: torch.dtype) -> tuple[Tensor, Tensor]:
        x = self.tensors
        norms = (x["q norm"], x["k norm"]) if "q norm" in x else None
        angles = None if self.rotation is None else (self.rotation.cos.float(), self.rotation.sin.float())
        matrices = x.get("inner"), x["outer"]
        return couple(self.program, x["q"], x["k"], x.get("dt"), matrices, products, result, norms, EPS, angles)

    def plain(self) -> tuple[Tensor, Tensor]:
        """Compute the coupling by its definition, and then norm and position as the layer does."""
        x, n_kv_heads = self.tensors, self.tensors["k"].shape[1]

        def force(q: Tensor) -> Tensor:
            return apply_force(q, x.get("inner"), x["outer"])

        q, k = x["q"].transpose(1, 2).unflatten(2, (n_kv_heads, -1)), x["k"].transpose(1, 2).unsqueeze(3)
        q, k = integrate_reference(self.program, q, k, x["dt"].view(n_kv_heads, -1, 1) if "dt" in x else q, force)
        finish = NormAndPosition(self.norm("q norm"), self.norm("k norm"), self.rotation, "whole", q.dtype)
        return finish(q.flatten(2, 3).transpose(1, 2), k.squeeze(3).transpose(1, 2))

    def norm(self, name: str) -> nn.Module:
        if name not in self.tensors:
            return nn.Identity()
        norm = RMSNorm(self.tensors["q"].shape[-1], eps=EPS)
        del norm.weight
        norm.weight = self.tensors[name]  # type: ignore[assignment]
        return norm


def case(
    program: str = "euler",
    width: int = 16,
    group: int = 1,
    linear: bool = False,
    finished: bool = True,
    batch: int = 2,
    length: int = 7,
    n_kv_heads: int = 2,
) -> Case:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    heads = n_kv_heads * group
    tensors = {
        "q": normal(batch, length, heads, width).transpose(1, 2),
        "k": normal(batch, length, n_kv_heads, width).transpose(1, 2),
        "outer": normal(width, width) / width**0.5,
    }
    if program != "mlp-only":
        tensors["dt"] = 0.1 + 0.2 * normal(heads).abs()
    if not linear:
        tensors["inner"] = normal(width, width) / width**0.5
    rotation = None
    if finished:
        tensors["q norm"], tensors["k norm"] = normal(width), normal(width)
        starts = torch.arange(batch).unsqueeze(1)  # each sequence starts at another position
        rotation = Rope(width).at(torch.arange(length) + 3 * starts)
    return Case(PROGRAMS[program], tensors, rotation)


def weights(ends: tuple[Tensor, Tensor]) -> list[Tensor]:
    """Return gradients of both results whose entries all differ, with heads before positions in memory."""
    return [torch.linspace(-1, 1, x.numel(), device=x.device).cos().view(x.shape).to(x.dtype) for x in ends]


def assert_agrees(given: Case, dtype: torch.dtype) -> None:
    narrow = given.to(dtype)
    wide = given.like(narrow)
    ends, expected = narrow.fused(dtype, dtype), wide.plain()
    found = torch.autograd.grad(ends, list(narrow.tensors.values()), weights(ends))
    wanted = torch.autograd.grad(expected, list(wide.tensors.values()), weights(expected), allow_unused=True)
    for name, x, exact in zip(["q'", "k'", *narrow.tensors], [*ends, *found], [*expected, *wanted], strict=True):
        missed = (x - exact).detach().abs().max() / exact.detach().abs().max()
        assert missed < CLOSE[dtype], (name, float(missed))


def kinds() -> list[Any]:
    """Return every program with every force and group size; the width, norm and rope depend on the size. The largest
    groups are slow tests."""
    every = product(PROGRAMS, [False, True], [1, 2, 3])
    return [
        pytest.param(*kind, id="-".join(map(str, kind)), marks=[pytest.mark.slow] if kind[-1] == 3 else [])
        for kind in every
    ]


@pytest.mark.parametrize(("program", "linear", "group"), kinds())
def test_values_and_gradients_are_those_of_the_definition(program: str, linear: bool, group: int) -> None:
    width = {1: 32, 2: 24, 3: 16}[group]
    assert_agrees(case(program, width, group, linear, finished=group != 1), torch.float32)


@pytest.mark.parametrize("program", ["euler", "three leapfrog steps"])
def test_half_precision_errs_by_its_own_rounding(program: str) -> None:
    """The test runs in fp16, since the interpreter cannot multiply matrices in bf16."""
    assert_agrees(case(program, width=32, group=2), torch.float16)


@pytest.mark.slow
@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize("program", ["euler", "mlp-only"])
def test_hidden_units_of_wide_heads_come_in_chunks(program: str, finished: bool) -> None:
    assert_agrees(case(program, width=160, finished=finished, batch=1, length=5), torch.float32)


def test_a_width_may_be_odd() -> None:
    assert_agrees(case(width=25, finished=False), torch.float32)


def test_inputs_may_have_any_strides_and_results_have_the_layout_of_projections() -> None:
    """Criterion: differently strided views of a wider tensor give the bits of their copies, and results lie in memory
    as B T H K."""
    given = case(group=2).to(torch.float32)
    batch, heads, length, width = given.tensors["q"].shape
    whole = torch.randn(batch, length, 3 * heads, width + 5)
    parts = {"q": whole[:, :, :heads, 2 : 2 + width], "k": whole[:, :, heads : heads + heads // 2, 5 : 5 + width]}
    strided = {name: x.transpose(1, 2).requires_grad_() for name, x in parts.items()}
    copied = {name: x.detach().clone(memory_format=torch.contiguous_format) for name, x in strided.items()}
    found = []
    for tensors in (strided, copied, {name: x.mT.contiguous().mT for name, x in copied.items()}):
        tensors = {name: x.detach().requires_grad_() for name, x in tensors.items()}
        ends = Case(given.program, given.tensors | tensors, given.rotation).fused(torch.float32, torch.float32)
        gradients = torch.autograd.grad(ends, list(tensors.values()), [x.sum().expand(x.shape) for x in ends])
        assert all(x.transpose(1, 2).is_contiguous() for x in (*ends, *gradients))
        found.append((*ends, *gradients))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=0, atol=0)


def test_nan_stays_in_its_row() -> None:
    """Criterion: the results and gradients of all other rows keep their bits."""
    found = []
    for value in (1.0, float("nan")):
        given = case(finished=True).to(torch.float32)
        with torch.no_grad():
            given.tensors["q"][1, 0, 4, 3] = value
        ends = given.fused(torch.float32, torch.float32)
        found.append([*ends, *torch.autograd.grad(ends, [given.tensors[x] for x in "qk"], weights(ends))])
    elsewhere = torch.ones(found[0][0].shape[:3], dtype=torch.bool)
    elsewhere[1, 0, 4] = False
    for whole, spoilt in zip(*found, strict=True):
        assert spoilt[1, 0, 4].isnan().all()
        assert torch.equal(spoilt[elsewhere], whole[elsewhere])


def test_no_sequences_give_nothing_and_no_gradient() -> None:
    given = case(batch=0).to(torch.float32)
    ends = given.fused(torch.float32, torch.bfloat16)
    assert [x.shape for x in ends] == [given.tensors[x].shape for x in "qk"]
    assert {x.dtype for x in ends} == {torch.bfloat16}
    for gradient in torch.autograd.grad([x.float().sum() for x in ends], list(given.tensors.values())):
        assert not gradient.any()


def test_gradients_can_be_differentiated_again() -> None:
    """A penalty on the gradient needs second derivatives, which are those of the plain computation."""
    given, second = case("leapfrog", group=2, finished=True), []
    for one in (given.to(torch.float32), given.like(given.to(torch.float32))):
        ends = one.fused(torch.float32, torch.float32) if one.tensors["q"].dtype == torch.float32 else one.plain()
        first = torch.autograd.grad(ends, [one.tensors[x] for x in "qk"], weights(ends), create_graph=True)
        penalty = torch.stack([x.square().sum() for x in first]).sum()
        second.append(torch.autograd.grad(penalty, list(one.tensors.values()), allow_unused=True))
    for found, exact in zip(*second, strict=True):
        assert (found is None) == (exact is None)
        if found is not None:
            assert (found - exact).abs().max() < 1e-4 * exact.abs().max()


@pytest.mark.slow
@pytest.mark.parametrize("linear", [False, True])
def test_both_operators_keep_the_rules_of_torch(linear: bool) -> None:
    """Criterion: torch's own checks of fake tensors, autograd and tracing pass."""
    given = case(group=2, linear=linear, length=3).to(torch.float32)
    x, rotation = given.tensors, given.rotation
    assert rotation is not None
    names = ["q", "k", "dt", "inner", "outer", "q norm", "k norm"]
    moves = " ".join(map(str, given.program))
    start = [*(x.get(name) for name in names), rotation.cos.float(), rotation.sin.float(), moves, EPS, torch.float32]
    torch.library.opcheck(torch.ops.attractor.couple, (*start, torch.float32))
    still = [each.detach() if isinstance(each, Tensor) else each for each in start]
    torch.library.opcheck(torch.ops.attractor.couple_backward, (still[0], still[1], *still))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_gpu_computes_the_same_at_real_shapes(program: str, dtype: torch.dtype) -> None:
    assert_agrees(case(program, width=64, batch=32, length=512, n_kv_heads=8).on("cuda"), dtype)
