"""RoPE is a rotation after which dot products depend on differences of positions alone."""

import math
from typing import Any

import pytest
import torch

from attractor.attention import Rope, build
from attractor.attention.position import GridPositions, GridRope, Rotation, row_column_box
from attractor.errors import InputError
from attractor.tasks.sudoku.board import BOXES


def vectors(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_rotation_is_the_formula() -> None:
    """Criterion: pair (j, j + w/2) turns by position * theta^(-2j/w)."""
    x, found = vectors(1, 1, 3, 6), Rope(6, theta=100.0).at(torch.tensor([0, 5, 1000]))
    for t, position in enumerate([0, 5, 1000]):
        for j in range(3):
            angle = position * 100.0 ** (-2 * j / 6)
            first, second = x[0, 0, t, j], x[0, 0, t, j + 3]
            turned = found(x)[0, 0, t]
            torch.testing.assert_close(turned[j], first * math.cos(angle) - second * math.sin(angle))
            torch.testing.assert_close(turned[j + 3], second * math.cos(angle) + first * math.sin(angle))


@pytest.mark.parametrize("shift", [1, 17, 100_000])
def test_scores_depend_on_the_difference_of_positions(shift: int) -> None:
    q, k, rope, positions = vectors(2, 3, 5, 8), vectors(2, 3, 5, 8, seed=1), Rope(8), torch.arange(5)
    here, there = rope.at(positions), rope.at(positions + shift)
    torch.testing.assert_close(there(q) @ there(k).mT, here(q) @ here(k).mT, rtol=1e-8, atol=1e-8)
    assert not torch.allclose(there(q) @ here(k).mT, here(q) @ here(k).mT)


def test_every_run_of_the_width_is_rotated_alike() -> None:
    """Phase activation concatenates two parts of the width, and each part is rotated."""
    x, rotation = vectors(2, 3, 4, 16), Rope(8).at(torch.arange(4))
    torch.testing.assert_close(rotation(x), torch.cat([rotation(x[..., :8]), rotation(x[..., 8:])], dim=-1))


def test_far_positions_keep_their_angle() -> None:
    """Criterion: at position 1,000,000 an fp32 vector is rotated within 1e-5 of the fp64 one (an angle formed in fp32
    would be off by up to 0.03)."""
    x, rotation = vectors(1, 1, 1, 64), Rope(64).at(torch.tensor([1_000_000]))
    torch.testing.assert_close(rotation(x.float()).double(), rotation(x), rtol=0, atol=1e-5)


def test_half_precision_is_rotated_in_fp32() -> None:
    """Criterion: a bf16 vector is rotated as in fp32, and the result is rounded once."""
    x, rotation = vectors(1, 2, 4, 8).bfloat16(), Rope(8).at(torch.arange(4) + 50)
    assert torch.equal(rotation(x), rotation(x.float()).bfloat16())


def test_linear_scaling_is_slower_positions() -> None:
    x, positions = vectors(1, 2, 4, 8), torch.arange(4) * 3
    torch.testing.assert_close(Rope(8, scaling="linear:4").at(4 * positions)(x), Rope(8).at(positions)(x))


def frequencies(rope: Rope, length: int = 2) -> torch.Tensor:
    """Return the angles between two neighbouring positions, in a sequence of this length."""
    rotation = rope.at(torch.arange(length))
    return torch.atan2(rotation.sin, rotation.cos)[1]


def test_llama3_keeps_what_turns_often_and_slows_what_hardly_turns() -> None:
    """Criterion: a frequency f that turns more than HIGH times within LENGTH positions stays f; below LOW turns it
    becomes f / F; between, the factor is interpolated linearly."""
    length, low, high, factor = 1000, 1.0, 4.0, 8.0
    scalings = (None, f"llama3:{factor}:{low}:{high}:{length}")
    before, after = (frequencies(Rope(64, 1e4, scaling)) for scaling in scalings)
    turns = length * before / (2 * math.pi)
    often, hardly = turns >= high, turns <= low
    between = ~often & ~hardly
    assert min(int(often.sum()), int(hardly.sum()), int(between.sum())) > 2
    torch.testing.assert_close(after[often], before[often])
    torch.testing.assert_close(after[hardly], before[hardly] / factor)
    share = (turns[between] - low) / (high - low)
    torch.testing.assert_close(after[between], before[between] * (share + (1 - share) / factor))


def test_dynamic_scaling_begins_beyond_its_length_and_raises_theta() -> None:
    plain, scaled = Rope(8, 1e4), Rope(8, 1e4, "dynamic:4:16")
    torch.testing.assert_close(frequencies(scaled, 16), frequencies(plain))
    theta = 1e4 * (4 * 40 / 16 - 3) ** (8 / 6)
    torch.testing.assert_close(frequencies(scaled, 40), frequencies(Rope(8, theta)))


def test_yarn_keeps_fast_turns_and_slows_slow_ones_and_enlarges() -> None:
    """Between FAST and SLOW turns in LENGTH positions, the share of the slowed frequency grows evenly."""
    rope = Rope(64, 1e4, "yarn:8:1000:32:1:1.25")
    plain, scaled = frequencies(Rope(64, 1e4)), frequencies(rope)
    turns = 1000 * plain / (2 * math.pi)
    ratio, is_between = scaled / plain, (turns < 32) & (turns > 1)
    number = torch.arange(32)
    first, last = number[is_between][0].item() - 1, number[is_between][-1].item() + 1  # rounded outwards
    torch.testing.assert_close(ratio[: first + 1], torch.ones(first + 1, dtype=torch.float64))
    torch.testing.assert_close(ratio[last:], torch.full((32 - last,), 1 / 8, dtype=torch.float64))
    share = (number - first) / (last - first)
    between = slice(first, last + 1)
    torch.testing.assert_close(ratio[between], (1 - share + share / 8)[between].double())
    assert rope.at(torch.arange(2)).cos[0, 0] == 1.25, "the factor by which rotated vectors are longer"
    assert not torch.equal(frequencies(Rope(64, 1e4, "yarn-exact:8:1000:32:1:1.25")), scaled)


def test_longrope_divides_by_one_list_up_to_its_length_and_by_another_beyond() -> None:
    plain, rope = frequencies(Rope(8)), Rope(8, scaling="longrope:16:1.5:1,2,4,8:2,4,8,16")
    short = torch.tensor([1, 2, 4, 8])
    for length, factors in ((16, short), (17, 2 * short)):
        torch.testing.assert_close(frequencies(rope, length), plain / factors)
        assert rope.at(torch.arange(length)).cos[0, 0] == 1.5


@pytest.mark.parametrize("scaling", ["dynamic:4:16", "longrope:16:1.5:1,2,4,8:2,4,8,16"])
def test_a_cache_is_not_continued_where_its_keys_would_turn_otherwise(scaling: str) -> None:
    rope = Rope(8, scaling=scaling)
    rope.refuse_other_rotation(15, torch.tensor([15]))
    with pytest.raises(InputError, match=r"from a cache must stay within 16 positions under rope_scaling .*, got 17"):
        rope.refuse_other_rotation(16, torch.tensor([16]))
    rope.refuse_other_rotation(0, torch.arange(40))  # at once, without a cache
    if scaling.startswith("longrope"):
        rope.refuse_other_rotation(17, torch.tensor([17]))  # the cached keys were turned by the second list, too
    layer, x = build("standard", 16, 2), torch.zeros(1, 17, 16)
    cache = layer.new_cache()
    layer(x[:, :16], rope=rope, cache=cache)
    with pytest.raises(InputError, match=r"from a cache must stay within 16 positions"):
        layer(x[:, 16:], rope=rope, cache=cache)


def test_padding_in_the_cache_is_no_position_of_a_rotation() -> None:
    """Criterion: 18 cached places, of which every sequence has 10 tokens, are not continued beyond 16 positions."""
    rope = Rope(8, scaling="longrope:16:1.5:1,2,4,8:2,4,8,16")
    with pytest.raises(InputError, match="must stay within 16 positions"):
        rope.refuse_other_rotation(18, torch.arange(10, 18).expand(2, -1))
    rope.refuse_other_rotation(18, torch.arange(10, 14).expand(2, -1))


@pytest.mark.parametrize(
    ("width", "changes", "message"),
    [
        (5, {}, "rope width must be even and at least 2, got 5"),
        (0, {}, "rope width must be even and at least 2, got 0"),
        (4, {"theta": 0.0}, "rope_theta must be positive, got 0.0"),
        *(
            (8, {"scaling": scaling}, f"rope_scaling must be .*, got '{scaling}'")
            for scaling in (
                *("linear", "linear:0", "linear:x", "linear:2:3", "yarn:4", "yarn:4:64:1:32:1.1"),
                *("longrope:16:1.1:2:1,2", "llama3:8:1:4", "llama3:8:4:1:64", "llama3:8:1:4:inf"),
            )
        ),
    ],
)
def test_impossible_rope_is_refused(width: int, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}$"):
        Rope(width, **changes)


def test_a_part_of_the_head_too_small_to_rotate_is_refused() -> None:
    with pytest.raises(InputError, match=r"^rope_fraction must be 1, or at least 0.25 to rotate a pair of the 8 "):
        build("standard", 16, 2, rope_fraction=0.2)
    assert build("standard", 16, 2, rope_fraction=0.25).rope_width == 2


@pytest.mark.parametrize("side", BOXES)
def test_cells_have_the_rows_columns_and_boxes_of_sudoku(side: int) -> None:
    height, width = BOXES[side]
    boxes = [[r // height * height + c // width for c in range(side)] for r in range(side)]
    row, column, box = row_column_box(torch.arange(side * side), side * side)
    assert torch.equal(box, torch.tensor(boxes).flatten())
    assert torch.equal(torch.stack([row, column]), torch.cartesian_prod(*[torch.arange(side)] * 2).T)


def test_grid_positions_are_sums_of_three_vectors() -> None:
    table = GridPositions(81, 4).double()
    rows, columns, boxes = table.weight.split(9)
    positions = table(torch.tensor([[0, 80], [40, 33]]))
    cells = [[(0, 0, 0), (8, 8, 8)], [(4, 4, 4), (3, 6, 5)]]
    expected = [[rows[r] + columns[c] + boxes[b] for r, c, b in pair] for pair in cells]
    torch.testing.assert_close(positions, torch.stack([torch.stack(pair) for pair in expected]))


def test_grid_rotation_turns_queries_keys_and_values_and_turns_outputs_back() -> None:
    """Criterion: a layer is softmax(q R_i^-1 R_j k / sqrt(K)) R_i^-1 R_j v, with R by row in one half of the pairs and
    by column in the other."""
    layer, x = build("standard", d_model=16, n_heads=2).double(), vectors(1, 9, 16)
    turn = torch.zeros(9, 8, 8, dtype=torch.float64)
    for cell in range(9):
        for pair, place in enumerate([cell // 3, cell // 3, cell % 3, cell % 3]):
            angle = place * 10000.0 ** (-(pair % 2) / 2)
            ends = torch.tensor([pair, pair + 4])
            rotation = [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
            turn[cell][ends.unsqueeze(1), ends] = torch.tensor(rotation, dtype=torch.float64)
    moved = torch.einsum("iba,jbc->ijac", turn, turn)
    with torch.no_grad():
        q, k, v = layer.project(x)
        weights = (torch.einsum("bhia,ijac,bhjc->bhij", q, moved, k) / 8**0.5).softmax(-1)
        expected = layer.output(torch.einsum("bhij,ijac,bhjc->bhia", weights, moved, v), x)
        attended, _ = layer(x, False, GridRope(8, n_cells=9).at(torch.arange(9)))
    torch.testing.assert_close(attended, expected)


def test_grid_rotation_sees_only_how_cells_lie_to_each_other() -> None:
    """Criterion: four cells in a square have the same outputs at any place of the board, but not in a row."""
    layer, x, rope = build("gated", d_model=16, n_heads=2).double(), vectors(1, 4, 16), GridRope(8, n_cells=81)
    with torch.no_grad():
        places = ([0, 1, 9, 10], [42, 43, 51, 52], [0, 1, 2, 3])
        corner, middle, row = (layer(x, False, rope.at(torch.tensor(cells)))[0] for cells in places)
    torch.testing.assert_close(corner, middle)
    assert not torch.allclose(corner, row)


@pytest.mark.parametrize("rope", [Rope(4).at(torch.arange(1)), Rope(4).at(torch.arange(6)[None])])
def test_a_rotation_of_another_number_of_positions_is_refused(rope: Rotation) -> None:
    """Criterion: an error, where torch would rotate all positions like the one; with the right number, the result of a
    Rope."""
    layer, x = build("standard", 8, 2), torch.randn(1, 5, 8)
    with pytest.raises(InputError, match=r"^rope must be the rotation at the 5 positions of x, got one at [16]; "):
        layer(x, rope=rope)
    torch.testing.assert_close(layer(x, rope=Rope(4).at(torch.arange(5)))[0], layer(x, rope=Rope(4))[0])
