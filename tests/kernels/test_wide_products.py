"""Products of half-precision arrays equal those in fp32, rounded once; all other products are bit for bit as before."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from torch import Tensor

from attractor.kernels.precision import autocast, quick_products
from attractor.kernels.wide_products import FORMS, has_instructions, widened_products
from attractor.train.config import Runtime, TrainConfig
from attractor.train.display import Display
from attractor.train.loop import train

FORMS_OF_A_PRODUCT: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "mm": lambda x, a, b: a[0] @ b[0],
    "mm.out": lambda x, a, b: torch.mm(a[0], b[0], out=torch.empty_like(x[0])),
    "bmm": lambda x, a, b: a @ b,
    "bmm.out": lambda x, a, b: torch.bmm(a, b, out=torch.empty_like(x)),
    "addmm": lambda x, a, b: torch.addmm(x[0], a[0], b[0], beta=0.5, alpha=2),
    "addmm.out": lambda x, a, b: torch.addmm(x[0], a[0], b[0], beta=0.5, alpha=2, out=torch.empty_like(x[0])),
    "addmm_": lambda x, a, b: x[0].clone().addmm_(a[0], b[0], beta=0.5, alpha=2),
    "baddbmm": lambda x, a, b: torch.baddbmm(x, a, b, beta=0.5, alpha=2),
    "baddbmm.out": lambda x, a, b: torch.baddbmm(x, a, b, beta=0.5, alpha=2, out=torch.empty_like(x)),
    "baddbmm_": lambda x, a, b: x.clone().baddbmm_(a, b, beta=0.5, alpha=2),
}
OTHER_TYPES = (torch.float32, torch.float64, torch.complex64, torch.int64, torch.float16)


def say_instructions(patch: pytest.MonkeyPatch, supported: bool) -> None:
    """Let torch say whether this processor has instructions for half precision."""
    for precision in ("bf16", "fp16"):
        patch.setattr(torch.ops.mkldnn, f"_is_mkldnn_{precision}_supported", lambda: supported)


@pytest.fixture
def no_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    say_instructions(monkeypatch, False)


@pytest.fixture
def widened() -> Iterator[None]:
    """Products of bf16 are widened whatever this processor has, until the test ends."""
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patched:  # for a moment, since torch's compiler looks at all operators
            say_instructions(patched, False)
            stack.enter_context(widened_products(torch.bfloat16, "cpu"))
        yield


def are_widened(dtype: torch.dtype = torch.bfloat16) -> bool:
    """Whether a product calls `float` of its operands, as only ours does."""
    widths: list[torch.dtype] = []
    with pytest.MonkeyPatch.context() as patched:
        to_float = Tensor.float
        patched.setattr(Tensor, "float", lambda x: widths.append(x.dtype) or to_float(x))
        _ = torch.ones(2, 2, dtype=dtype) @ torch.ones(2, 2, dtype=dtype)
    return widths == [dtype, dtype]


def operands(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    drawn = torch.Generator().manual_seed(0)
    shapes = (3, 16, 24), (3, 16, 40), (3, 40, 24)
    return tuple(torch.randint(-9, 10, shape, generator=drawn).to(dtype) for shape in shapes)  # type: ignore[return-value]


def test_every_form_of_a_product_is_tested() -> None:
    assert set(FORMS_OF_A_PRODUCT) == set(FORMS)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.usefixtures("widened")
def test_a_product_is_exact_but_for_one_rounding(form: str) -> None:
    """Criterion: sums of products of small integers are exact in fp32, so only the result may be rounded."""
    product = FORMS_OF_A_PRODUCT[form]
    exact = product(*operands(torch.float64))
    assert exact.bfloat16().double().ne(exact).any()  # or the rounding would not be tested
    assert torch.equal(product(*operands(torch.bfloat16)), exact.bfloat16())


def test_products_of_other_types_stay_as_they_were(request: pytest.FixtureRequest) -> None:
    def results() -> list[Tensor]:
        kinds = [dtype for dtype in OTHER_TYPES if dtype.is_floating_point]
        return [
            product(*operands(dtype))
            for name, product in FORMS_OF_A_PRODUCT.items()
            for dtype in (kinds if "add" in name else OTHER_TYPES)
        ]

    before = results()
    request.getfixturevalue("widened")
    assert all(
        torch.equal(one, other) and one.dtype == other.dtype for one, other in zip(before, results(), strict=True)
    )


@pytest.mark.parametrize("form", FORMS)
def test_arrays_of_several_types_are_refused_as_before(form: str, request: pytest.FixtureRequest) -> None:
    x, a, b = operands(torch.bfloat16)

    def refusals() -> list[str]:
        refused = []
        for arrays in ((x, a, b.float()), (x.float(), a, b)):
            if form not in ("mm", "bmm") or arrays[0].dtype is x.dtype:  # these do not use the first array
                with pytest.raises(RuntimeError) as caught:
                    FORMS_OF_A_PRODUCT[form](*arrays)
                refused.append(str(caught.value))
        return refused

    before = refusals()
    request.getfixturevalue("widened")
    assert refusals() == before


@pytest.mark.usefixtures("widened")
def test_gradients_and_mapped_products_are_widened_too() -> None:
    _, a, b = operands(torch.bfloat16)
    assert torch.equal(torch.vmap(torch.matmul)(a, b), (a.float() @ b.float()).bfloat16())
    linear = torch.nn.Linear(40, 24, bias=False).bfloat16()
    linear(a).backward(torch.ones(3, 16, 24, dtype=torch.bfloat16))
    ones = torch.ones(24, 48)
    assert linear.weight.grad is not None
    assert torch.equal(linear.weight.grad, (ones @ a.float().flatten(0, 1)).bfloat16())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # the compiler's own
@pytest.mark.usefixtures("widened")
def test_compiled_products_are_widened_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Criterion: torch's compiler calls the product, which it does not write itself, and gets the widened one."""
    widths: list[torch.dtype] = []
    to_float = Tensor.float
    monkeypatch.setattr(Tensor, "float", lambda x: widths.append(x.dtype) or to_float(x))
    _, a, b = operands(torch.bfloat16)
    compiled = torch.compile(lambda a, b: (a @ b).relu(), dynamic=False)
    assert torch.equal(compiled(a, b), (a.double() @ b.double()).bfloat16().relu())
    assert widths == [torch.bfloat16, torch.bfloat16]


@pytest.mark.usefixtures("widened")
def test_a_result_is_written_to_an_array_of_another_shape() -> None:
    """torch resizes an empty `out`."""
    _, a, b = operands(torch.bfloat16)
    out = torch.empty(0, dtype=torch.bfloat16)
    assert torch.mm(a[0], b[0], out=out) is out
    assert torch.equal(out, a[0] @ b[0])


@pytest.mark.usefixtures("no_instructions")
def test_the_end_of_the_outermost_block_undoes_all() -> None:
    """Criterion: products are widened in nested blocks of both precisions, and after the last one, ended by an error,
    torch's are in their places."""

    def nested() -> None:
        with quick_products("cpu", "bf16"):
            with quick_products("cpu", "fp16"), quick_products("cpu", "bf16"):
                assert (are_widened(), are_widened(torch.float16)) == (True, True)
            assert (are_widened(), are_widened(torch.float16)) == (True, False)
            raise KeyError

    assert not are_widened()
    with pytest.raises(KeyError):
        nested()
    assert (are_widened(), are_widened(torch.float16)) == (False, False)


@pytest.mark.usefixtures("no_instructions")
def test_a_run_widens_its_products_and_leaves_none_widened(tmp_path: Path) -> None:
    """Criterion: they are widened after each step, and not after the run."""
    (tmp_path / "squares.txt").write_text("".join(f"{n} squared is {n * n}.\n" for n in range(3000)))
    seen: list[bool] = []

    class Watching(Display):
        def taken(self, n_steps: int) -> None:
            seen.append(are_widened())

    config = TrainConfig(precision="bf16", n_steps=2, warmup_steps=0).replace(corpus=str(tmp_path / "squares.txt"))
    runtime = Runtime(device="cpu", threads=1)
    train(config.replace(d_model=16, n_heads=2, n_layers=1, d_ff=16, seq_len=16), tmp_path / "run", runtime, Watching())
    assert seen == [True, True]
    assert not are_widened()


@pytest.mark.parametrize("supported", [True, False])
def test_only_a_processor_without_instructions_widens(supported: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    say_instructions(monkeypatch, supported)
    for precision, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        with autocast("cpu", precision):
            assert are_widened(dtype) is not supported
    for precision, device in (("fp32", "cpu"), ("bf16", "cuda:1")):
        with quick_products(device, precision):
            assert not are_widened()
    assert has_instructions(torch.bfloat16) is has_instructions(torch.float16) is supported
