"""Norms of heads that may lie anywhere in a weight, and the part of them that each process of several holds."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from attractor.control.local_rows import HeadBlock, LocalRows, allocate_copies, head_blocks
from attractor.control.norms import NORMS, FrobeniusNorm, SpectralNorm
from attractor.control.views import Rows

ORDERS = {"frobenius": "fro", "spectral": 2}
LAYOUTS = {  # the first rows of four heads of 6 rows among 96, and the axis of the rows
    "in a row": ((0, 6, 12, 18), 0),
    "after other rows": ((30, 36, 42, 48), 0),
    "interleaved": ((2, 20, 38, 56), 0),
    "halves": ((0, 12, 6, 18), 0),
    "without order": ((60, 3, 90, 21), 0),
    "columns": ((30, 36, 42, 48), 1),
    "interleaved columns": ((2, 20, 38, 56), 1),
}


def rows_of(layout: str, seed: int = 0) -> Rows:
    starts, axis = LAYOUTS[layout]
    weight = torch.randn((96, 20), generator=torch.Generator().manual_seed(seed))
    return Rows(nn.Parameter(weight.T.contiguous() if axis else weight), starts, 6, axis=axis)


def measured(norms: FrobeniusNorm | SpectralNorm) -> Tensor:
    for index in range(len(norms.shares)):
        norms.measure_share(index)
    return norms.norms()


def truth(rows: Rows, norm: str) -> Tensor:
    return torch.stack(
        [torch.linalg.matrix_norm(rows.of(head).detach().float(), ord=ORDERS[norm]) for head in range(4)]
    )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("norm", NORMS)
def test_norms_are_those_of_each_heads_matrix(norm: str, layout: str) -> None:
    """Criterion: for two weights at once, (1) and (2) are exact to rounding."""
    both = [rows_of(layout), rows_of(layout, seed=1)]
    found = measured(NORMS[norm]([LocalRows(rows) for rows in both]))
    wanted = torch.cat([truth(rows, norm) for rows in both])
    torch.testing.assert_close(found, wanted, rtol=1e-6 if norm == "frobenius" else 1e-5, atol=0)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), gap=st.sampled_from([0.0, 1e-6, 1e-3, 3e-3, 1e-2, 0.1]), n_close=st.integers(1, 8))
def test_the_spectral_norm_is_exact_where_singular_values_lie_close(seed: int, gap: float, n_close: int) -> None:
    """Criterion: it is exact to 1e-5 with up to eight further singular values within `gap` of the largest."""
    generator = torch.Generator().manual_seed(seed)
    left, right = (torch.linalg.qr(torch.randn(n, 16, generator=generator))[0] for n in (16, 40))
    values = torch.rand(16, generator=generator)
    values[: n_close + 1] = 1 - gap * torch.linspace(0, 1, n_close + 1)
    weight = 7 * (left * values) @ right.T
    found = measured(SpectralNorm([LocalRows(Rows(nn.Parameter(weight), (0,), 16))]))
    torch.testing.assert_close(found, torch.tensor([7.0]), rtol=1e-5, atol=0)


@pytest.mark.parametrize("norm", NORMS)
def test_norms_do_not_depend_on_the_weights_of_the_step_before(norm: str) -> None:
    """Criterion: however far a step moves a weight, here to an unrelated one, its norm is exact to 1e-5."""
    rows = rows_of("interleaved")
    norms = NORMS[norm]([LocalRows(rows)])
    for step in range(20):
        with torch.no_grad():
            rows.weight.copy_(2.0**step * rows_of("interleaved", seed=step).weight)
        torch.testing.assert_close(measured(norms), truth(rows, norm), rtol=1e-5, atol=0)


@pytest.mark.parametrize("norm", NORMS)
def test_a_head_of_zeros_has_norm_zero_and_recovers(norm: str) -> None:
    rows = rows_of("interleaved")
    whole = rows.weight.detach().clone()
    with torch.no_grad():
        rows.of(2).zero_()
    norms = NORMS[norm]([LocalRows(rows)])
    torch.testing.assert_close(measured(norms), truth(rows, norm), rtol=1e-5, atol=0)
    with torch.no_grad():
        rows.weight.copy_(whole)
    torch.testing.assert_close(measured(norms), truth(rows, norm), rtol=1e-5, atol=0)


@pytest.mark.parametrize("height", [1, 5, 20, 40])
def test_the_spectral_norm_of_tall_and_wide_heads(height: int) -> None:
    rows = Rows(nn.Parameter(torch.randn((4 * height, 20))), tuple(range(0, 4 * height, height)), height)
    torch.testing.assert_close(measured(SpectralNorm([LocalRows(rows)])), truth(rows, "spectral"), rtol=1e-5, atol=0)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_norms_are_in_fp32_whatever_the_weights_are_in(dtype: torch.dtype, norm: str) -> None:
    rows = rows_of("in a row")
    rows.weight.data = rows.weight.data.to(dtype)
    found = measured(NORMS[norm]([LocalRows(rows)]))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, truth(rows, norm), rtol=1e-5 if norm == "spectral" else 1e-6, atol=0)


@pytest.mark.parametrize("norm", NORMS)
def test_norms_draw_no_number_that_a_model_would(norm: str) -> None:
    before = torch.get_rng_state()
    measured(NORMS[norm]([LocalRows(rows_of("in a row"))]))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(("layout", "n_blocks"), [("in a row", 1), ("interleaved", 1), ("halves", 2), ("columns", 1)])
def test_evenly_spaced_heads_are_one_view_into_the_weight(layout: str, n_blocks: int) -> None:
    """Criterion: the number of views does not depend on the number of heads, and writing to a view writes to the
    weight."""
    rows = rows_of(layout)
    views = [view for _, view in LocalRows(rows).weights()]
    assert len(views) == n_blocks
    for view in views:
        view.zero_()
    assert all(not rows.of(head).any() for head in range(4))
    assert int((rows.weight == 0).sum()) == 4 * 6 * 20


@given(
    starts=st.lists(st.integers(0, 20), min_size=1, max_size=6, unique=True),
    width=st.integers(1, 5),
    cuts=st.lists(st.integers(0, 105), max_size=4),
    ordered=st.booleans(),
)
def test_processes_hold_every_row_of_every_head_exactly_once(
    starts: list[int], width: int, cuts: list[int], ordered: bool
) -> None:
    """Criterion: wherever the weight is split, even into empty parts, the views of all parts cover every row exactly
    once."""
    starts = [width * start for start in (sorted(starts) if ordered else starts)]
    rows = Rows(nn.Parameter(torch.arange(105.0).unsqueeze(1)), tuple(starts), width)
    edges = [0, *sorted(cuts), 105]
    found: list[tuple[int, int]] = []
    for begin, end in pairwise(edges):
        for block in head_blocks(rows, begin, end - begin):
            view = block.of(rows.weight.detach()[begin:end])
            for head, values in zip(range(block.heads.start, block.heads.stop), view, strict=True):
                places = range(block.rows.start, block.rows.stop)
                assert values.flatten().tolist() == [starts[head] + place for place in places]
                found += [(head, place) for place in places]
    assert sorted(found) == [(head, place) for head in range(len(starts)) for place in range(width)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_copies_take_the_memory_of_the_rows_and_no_more(layout: str) -> None:
    """Criterion: the copies have the layout of the views and share one storage."""
    views = [view for _, view in LocalRows(rows_of(layout)).weights()]
    rooms = allocate_copies(views)
    for room, view in zip(rooms, views, strict=True):
        room.copy_(view)
    assert all(torch.equal(room, view) for room, view in zip(rooms, views, strict=True))
    assert rooms[0].untyped_storage().nbytes() == 4 * 6 * 20 * 4


def test_a_parameter_that_moved_to_other_memory_is_found_there() -> None:
    rows = rows_of("in a row")
    share = LocalRows(rows)
    assert next(iter(share.weights()))[0] == HeadBlock(slice(0, 4), slice(0, 6), 0, 6)
    rows.weight.data = rows.weight.data.double() * 2
    ((_, view),) = share.weights()
    assert view.dtype == torch.float64
    assert view.data_ptr() == rows.weight.data_ptr()
