"""The kernel's largest logits equal those of the plain blocks; it is interpreted, or runs on a GPU where there is
one."""

import os

import pytest
import torch
from torch import Tensor

from attractor.control.logit_maxima import exact_maxima
from attractor.control.score_inputs import ScoreInputs
from attractor.kernels.gpu import maxima
from attractor.kernels.gpu.maxima import largest_logits

DEVICE = "cpu" if os.environ["TRITON_INTERPRET"] == "1" else "cuda"
SCALE = 0.3


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NARROW", "WIDE"):
        monkeypatch.setattr(maxima, name, (16, 16, 4, 1))


def drawn(n_queries: int, n_keys: int, width: int = 5) -> tuple[Tensor, Tensor]:
    """Draw 4 heads of queries and 2 of keys with the memory layout of projections, positions before heads."""
    generator = torch.Generator().manual_seed(n_queries)
    shapes = ((2, n_queries, 4, width), (2, n_keys, 2, width))
    q, k = (torch.randn(shape, generator=generator).transpose(1, 2) for shape in shapes)
    return q, k


def by_kernel(scored: ScoreInputs, heads: Tensor) -> Tensor:
    allowed = scored.allowed
    assert allowed is None or isinstance(allowed, Tensor)
    mask = None if allowed is None else allowed.to(DEVICE)
    q, k = scored.q.to(DEVICE), scored.k.to(DEVICE)
    return largest_logits(q, k, scored.scale, heads.to(DEVICE), scored.causal, mask).cpu()


@pytest.mark.slow
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("n_queries", [1, 33])
@pytest.mark.parametrize("form", ["causal", "everything", "mask", "mask by head", "mask of keys"])
def test_largest_logits_are_those_of_the_blocks(form: str, n_queries: int) -> None:
    q, k = drawn(n_queries, n_queries if form == "causal" else 21)
    generator = torch.Generator().manual_seed(1)
    shape = {"mask": (2, 1, n_queries, 21), "mask by head": (2, 4, n_queries, 21), "mask of keys": (2, 1, 1, 21)}
    allowed = torch.rand(shape[form], generator=generator) < 0.2 if form in shape else None
    scored = ScoreInputs(q, k, SCALE, causal=form == "causal", allowed=allowed)
    for heads in (torch.arange(4), torch.tensor([3, 1])):
        torch.testing.assert_close(by_kernel(scored, heads), exact_maxima(scored, heads))


@pytest.mark.usefixtures("small_blocks")
def test_half_precision_is_added_up_in_fp32() -> None:
    q, k = (x.half() for x in drawn(20, 20, width=24))
    scored = ScoreInputs(q, k, SCALE, causal=True)
    torch.testing.assert_close(by_kernel(scored, torch.arange(4)), exact_maxima(scored, torch.arange(4)))


@pytest.mark.usefixtures("small_blocks")
def test_inputs_may_have_any_strides() -> None:
    q, k = drawn(18, 18)
    sparse = [torch.stack([x, torch.full_like(x, torch.nan)], dim=-1)[..., 0] for x in (q, k)]
    heads = torch.arange(4)
    dense = by_kernel(ScoreInputs(q.contiguous(), k.contiguous(), SCALE, causal=True), heads)
    assert torch.equal(by_kernel(ScoreInputs(*sparse, SCALE, causal=True), heads), dense)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # the interpreter raises this warning
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_nan_and_infinity_count_unless_the_mask_hides_them(value: float) -> None:
    """Criterion: the kernel returns the NaN and infinity that plain PyTorch returns, and a hidden key leaves all maxima
    finite."""
    q, k = drawn(20, 20)
    k[:, 0, 19] = value
    hidden = torch.ones(20, 20, dtype=torch.bool)
    hidden[:, 19] = False
    heads = torch.arange(4)
    for scored in (ScoreInputs(q, k, SCALE, causal=True), ScoreInputs(q, k, SCALE, allowed=hidden)):
        torch.testing.assert_close(by_kernel(scored, heads), exact_maxima(scored, heads), equal_nan=True)
    assert by_kernel(ScoreInputs(q, k, SCALE, allowed=hidden), heads).isfinite().all()


@pytest.mark.usefixtures("small_blocks")
def test_without_any_key_the_maximum_is_minus_infinity() -> None:
    q, k = drawn(5, 5)
    nothing = torch.zeros(5, 5, dtype=torch.bool)
    assert by_kernel(ScoreInputs(q, k, SCALE, allowed=nothing), torch.arange(4)).isneginf().all()
    assert by_kernel(ScoreInputs(q[:0], k[:0], SCALE, causal=True), torch.arange(4)).isneginf().all()
    assert by_kernel(ScoreInputs(q, k, SCALE, causal=True), torch.arange(0)).shape == (0,)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("width", [64, 80, 192])
def test_on_a_gpu_at_real_shapes(width: int, dtype: torch.dtype) -> None:
    """Criterion: the maxima agree with fp64 and take less memory than the logits of one head."""
    q, k = (x.to(dtype).cuda() for x in drawn(2000, 2000, width))
    heads = torch.arange(4, device="cuda")
    exact = exact_maxima(ScoreInputs(q.double(), k.double(), SCALE, causal=True), heads)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    found = exact_maxima(ScoreInputs(q, k, SCALE, causal=True), heads)
    assert torch.cuda.max_memory_allocated() - before < 2**20
    torch.testing.assert_close(found, exact, rtol=1e-5, atol=1e-5)
