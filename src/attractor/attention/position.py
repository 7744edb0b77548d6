"""Position encodings: learned tables added to the embeddings, or a rotation of queries and keys (RoPE).

    (x_j, x_{j+w/2}) turned by position * theta^(-2j/w),   j < w/2                                          (1)

The score of two rotated vectors depends on the difference of their positions alone. Pairs are (j, j + w/2), as Llama
stores its weights; interleaved pairs (DeepSeek) are the same rotation after a permutation of weight rows.

Models that were extended to longer sequences rotate more slowly. Their frequencies f are scaled, mostly by a factor F:

    linear:F                        f / F                                                                   (2)
    dynamic:F:LENGTH                theta grows to theta (F T / LENGTH - F + 1)^(w / (w - 2)) in a sequence of
                                    T > LENGTH positions                                                    (3)
    llama3:F:LOW:HIGH:LENGTH        f (s + (1 - s) / F),   s = (LENGTH f / 2 pi - LOW) / (HIGH - LOW) in [0, 1]  (4)
    yarn:F:LENGTH:FAST:SLOW:SIZE    f (s + (1 - s) / F),   s = (high - j) / (high - low) in [0, 1]; in LENGTH
                                    positions, frequency number low makes FAST turns, and number high SLOW  (5)
    longrope:LENGTH:SIZE:S,..:L,..  f_j / S_j, and f_j / L_j in a sequence of more than LENGTH positions    (6)

Under (4), frequencies of more than HIGH turns in LENGTH positions are unchanged. Under (5), low is rounded down and
high up; `yarn-exact` does not round them. Rotated vectors are multiplied by SIZE under (5) and (6). Under (3) and (6)
the rotation depends on the length of the longest sequence in the batch. A cache holds keys that were rotated for a
shorter length, so decoding that would need another rotation for them is refused.

A cell of a board has a row, a column and a box. `GridPositions` adds a vector for each of them, and `GridRope` rotates
one half of the pairs by the row and the other half by the column. It also rotates values, and rotates outputs back, so
that cell i receives W_V x_j rotated by the displacement from i to j:

    o_i = sum_j a_ij R_i^-1 R_j v_j                                                                         (7)

`GridMatrices` trains separate 2 x 2 matrices for queries, keys, values and outputs. They start as these rotations.

Su et al., RoFormer, 2021, arXiv 2104.09864; (2) Chen et al., Position interpolation, 2023, arXiv 2306.15595; (4) The
Llama 3 herd of models, 2024, arXiv 2407.21783; (3), (5) Peng et al., YaRN, 2023, arXiv 2309.00071; (6) Ding et al.,
LongRoPE, 2024, arXiv 2402.13753; (7) Miyato et al., GTA, 2023, arXiv 2310.10375.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attractor.errors import InputError, require

YARN = "FACTOR:LENGTH:FAST:SLOW:SIZE"
SCALINGS = {
    "linear": "linear:FACTOR",
    "dynamic": "dynamic:FACTOR:LENGTH",
    "llama3": "llama3:FACTOR:LOW:HIGH:LENGTH",
    "yarn": f"yarn:{YARN}",
    "yarn-exact": f"yarn-exact:{YARN}",
    "longrope": "longrope:LENGTH:SIZE:SHORT,..:LONG,..",
}


class Scaling(NamedTuple):
    """A scaling of the frequencies of RoPE: its kind and its numbers, of which LongRoPE has lists."""

    kind: str
    numbers: tuple[float, ...]
    short: tuple[float, ...] = ()
    long: tuple[float, ...] = ()

    def __str__(self) -> str:
        lists = [",".join(map(str, numbers)) for numbers in (self.short, self.long) if numbers]
        return ":".join([self.kind, *map(str, self.numbers), *lists])

    @property
    def length(self) -> float:
        """The length beyond which the rotation depends on the length of the sequence."""
        if self.kind == "dynamic":
            return self.numbers[1]
        return self.numbers[0] if self.kind == "longrope" else math.inf

    @property
    def size(self) -> float:
        """The factor of the rotated vectors."""
        return self.numbers[-1] if self.kind in ("yarn", "yarn-exact", "longrope") else 1.0


def parse_scaling(text: str) -> Scaling:
    """Return the scaling that a configuration names, such as `linear:8`."""
    kind, *parts = text.split(":")
    try:
        lists = [tuple(float(number) for number in part.split(",")) for part in parts]
    except ValueError:
        lists = []
    is_known = kind in SCALINGS and len(lists) == SCALINGS[kind].count(":")
    require(
        is_known and all(0 < number < math.inf for numbers in lists for number in numbers),
        "rope_scaling",
        f"{' or '.join(SCALINGS.values())}, of positive numbers",
        text,
    )
    single = lists[:2] if kind == "longrope" else lists
    require(all(len(numbers) == 1 for numbers in single), "rope_scaling", f"{SCALINGS[kind]}, one number each", text)
    scaling = Scaling(kind, tuple(numbers[0] for numbers in single), *lists[len(single) :])
    if kind == "llama3":
        require(scaling.numbers[1] < scaling.numbers[2], "rope_scaling", "llama3 with LOW below HIGH", text)
    if scaling.kind.startswith("yarn"):
        require(scaling.numbers[2] > scaling.numbers[3], "rope_scaling", "yarn with FAST above SLOW", text)
    require(len(scaling.short) == len(scaling.long), "rope_scaling", "longrope with lists of one length", text)
    return scaling


class Rope:
    """RoPE for vectors of one width; `rope.at(positions)` computes the angles once for all layers of a model."""

    def __init__(self, width: int, theta: float = 10000.0, scaling: str | None = None) -> None:
        require(width >= 2 and width % 2 == 0, "rope width", "even and at least 2", width)
        require(theta > 0, "rope_theta", "positive", theta)
        self.width, self.theta = width, theta
        self.scaling = None if scaling is None else parse_scaling(scaling)
        if self.scaling is not None and self.scaling.kind == "longrope":
            rule = f"longrope with {width // 2} numbers in each list, half the rotated width"
            require(len(self.scaling.short) == width // 2, "rope_scaling", rule, scaling)
        if self.scaling is not None and self.scaling.kind == "dynamic":
            require(width > 2, "rope width", "above 2 under dynamic scaling", width)

    def at(self, positions: Int[Tensor, "..."]) -> "Rotation":
        """Return the rotation at positions T, or B T where left padding shifts the sequences of a batch."""
        exponents = torch.arange(0, self.width, 2, device=positions.device, dtype=torch.float64) / self.width
        frequencies, size = self.theta**-exponents, 1.0
        if self.scaling is not None:
            frequencies, size = self.scaled(frequencies, exponents, positions), self.scaling.size
        angles = positions.unsqueeze(-1) * frequencies
        cos, sin = angles.cos(), angles.sin()
        return Rotation(cos, sin) if size == 1 else Rotation(size * cos, size * sin)

    def scaled(self, frequencies: Tensor, exponents: Tensor, positions: Tensor) -> Tensor:
        assert self.scaling is not None
        kind, numbers, short, long = self.scaling
        if kind == "linear":
            return frequencies / numbers[0]  # (2)
        if kind == "dynamic":
            factor, length = numbers
            stretch = factor * (positions.max() + 1).clamp(min=length) / length - (factor - 1)
            return frequencies * stretch.double() ** (-exponents * self.width / (self.width - 2))  # (3)
        if kind == "longrope":
            is_long = positions.max() + 1 > self.scaling.length
            return frequencies / torch.where(
                is_long, frequencies.new_tensor(long), frequencies.new_tensor(short)
            )  # (6)
        if kind == "llama3":
            factor, slow, fast, length = numbers
            kept = ((length * frequencies / (2 * math.pi) - slow) / (fast - slow)).clamp(0, 1)
        else:
            factor, length, fast, slow, _ = numbers
            low, high = (
                self.width * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(self.theta))
                for turns in (fast, slow)
            )
            if kind == "yarn":
                low, high = math.floor(low), math.ceil(high)
            low, high = max(low, 0), min(high, self.width - 1)
            number = torch.arange(len(frequencies), device=frequencies.device, dtype=torch.float64)
            kept = 1 - ((number - low) / (high - low or 0.001)).clamp(0, 1)
        return frequencies * (kept + (1 - kept) / factor)  # (4), (5)

    def refuse_other_rotation(self, past: int, positions: Int[Tensor, "..."]) -> None:
        """Refuse to continue a cache whose keys were rotated differently from how these positions would rotate them."""
        if not past or self.scaling is None or past + positions.shape[-1] <= self.scaling.length:
            return
        length = int(positions.max()) + 1
        before = int(positions[..., 0].max())  # the cache may hold padding, too, which has no position
        if length > self.scaling.length and (self.scaling.kind == "dynamic" or before <= self.scaling.length):
            raise InputError(
                f"a sequence decoded from a cache must stay within {self.scaling.length:g} positions under "
                f"rope_scaling '{self.scaling.kind}', got {length}: a longer one rotates all of its keys differently; "
                "give the whole sequence at once, without a cache"
            )


CellMap = Callable[[Tensor], Tensor]


class Rotation:
    """RoPE at given positions. Angles are computed in fp64 and applied in fp32 or wider."""

    def __init__(self, cos: Tensor, sin: Tensor, of_values: bool = False) -> None:
        # B T w/2 gets a head dimension, T w/2 broadcasts as it is.
        self.cos, self.sin = (cos.unsqueeze(1), sin.unsqueeze(1)) if cos.dim() == 3 else (cos, sin)
        self.n_positions, self.width = cos.shape[-2], 2 * cos.shape[-1]
        self.of_values = of_values  # whether values and outputs are rotated as well, by (7)

    @property
    def queries(self) -> CellMap:
        return self

    @property
    def keys(self) -> CellMap:
        return self

    @property
    def values(self) -> CellMap:
        return self

    @property
    def outputs(self) -> CellMap:
        return Rotation(self.cos, -self.sin, self.of_values)

    def __call__(self, x: Float[Tensor, "B H T W"]) -> Float[Tensor, "B H T W"]:
        """Rotate every run of `width` coordinates of x alike; phase activation has two runs."""
        wide = torch.promote_types(x.dtype, torch.float32)
        cos, sin = self.cos.to(wide), self.sin.to(wide)
        rotated: list[Tensor] = []
        for run in x.split(self.width, dim=-1):
            first, second = run.to(wide).chunk(2, dim=-1)
            rotated.append(torch.addcmul(first * cos, second, sin, value=-1))  # (1)
            rotated.append(torch.addcmul(second * cos, first, sin))
        return torch.cat(rotated, dim=-1).to(x.dtype)


class GridRope(Rope):
    """The rotation (7) of the cells of a square board, with frequencies theta^(-4j/w) for rows and for columns."""

    def __init__(self, width: int, n_cells: int, theta: float = 10000.0) -> None:
        super().__init__(width, theta)
        require(width % 4 == 0, "rope width", "divisible by 4 for rows and columns", width)
        self.n_cells = n_cells

    def at(self, positions: Int[Tensor, "..."]) -> Rotation:
        row, column, _ = row_column_box(positions, self.n_cells)
        by_row, by_column = Rope(self.width // 2, self.theta).at(row), Rope(self.width // 2, self.theta).at(column)
        halves = ((by_row.cos, by_column.cos), (by_row.sin, by_column.sin))
        cos, sin = (torch.cat(parts, dim=-1) for parts in halves)
        return Rotation(cos, sin, of_values=True)


class GridMatrices(nn.Module):
    """Trained matrices for the pairs of coordinates at every cell of a board."""

    def __init__(self, width: int, n_cells: int, theta: float = 10000.0) -> None:
        super().__init__()
        self.rope, self.width = GridRope(width, n_cells, theta), width
        shape = n_cells, width // 2, 2, 2
        self.query, self.key, self.value, self.output = (nn.Parameter(torch.empty(shape)) for _ in range(4))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Set the matrices to the rotations of `GridRope`, and those of outputs to the inverse rotations."""
        turned = self.rope.at(torch.arange(self.rope.n_cells, device=self.query.device))
        rows = torch.stack([turned.cos, -turned.sin], dim=-1), torch.stack([turned.sin, turned.cos], dim=-1)
        matrices = torch.stack(rows, dim=-2)
        for parameter in (self.query, self.key, self.value):
            parameter.copy_(matrices)
        self.output.copy_(matrices.mT)

    def at(self, positions: Int[Tensor, "..."]) -> "MatricesOfCells":
        return MatricesOfCells(*(m[positions] for m in (self.query, self.key, self.value, self.output)))

    def refuse_other_rotation(self, past: int, positions: Int[Tensor, "..."]) -> None:
        """Accept all positions, since matrices do not depend on the length."""


class MatricesOfCells(Rotation):
    """The matrices of `GridMatrices` at given positions, which take the place of a rotation."""

    def __init__(self, query: Tensor, key: Tensor, value: Tensor, output: Tensor) -> None:
        self.n_positions, self.width, self.of_values = query.shape[-4], 2 * query.shape[-3], True
        self._matrices = query, key, value, output

    @property
    def queries(self) -> CellMap:
        return partial(in_pairs, self._matrices[0])

    @property
    def keys(self) -> CellMap:
        return partial(in_pairs, self._matrices[1])

    @property
    def values(self) -> CellMap:
        return partial(in_pairs, self._matrices[2])

    @property
    def outputs(self) -> CellMap:
        return partial(in_pairs, self._matrices[3])


def in_pairs(matrices: Float[Tensor, "*batch T N 2 2"], x: Float[Tensor, "B H T W"]) -> Float[Tensor, "B H T W"]:
    """Multiply the pairs (j, j + w/2) of every run of w = 2 N coordinates by their matrices."""
    matrices = matrices.unsqueeze(-5) if matrices.dim() == 5 else matrices
    wide = torch.promote_types(x.dtype, torch.float32)
    (a, b), (c, d) = (row.unbind(-1) for row in matrices.to(wide).unbind(-2))
    mapped: list[Tensor] = []
    for run in x.split(2 * matrices.shape[-3], dim=-1):
        first, second = run.to(wide).chunk(2, dim=-1)
        mapped += [a * first + b * second, c * first + d * second]
    return torch.cat(mapped, dim=-1).to(x.dtype)


def board_side(n_cells: int) -> int:
    """Return the number of rows of a square board."""
    side = math.isqrt(n_cells)
    require(side * side == n_cells, "max_seq_len", "the number of cells of a square board", n_cells)
    return side


def row_column_box(
    positions: Int[Tensor, "*shape"], n_cells: int
) -> tuple[Int[Tensor, "*shape"], Int[Tensor, "*shape"], Int[Tensor, "*shape"]]:
    """Return the row, column and box of each cell. A box is as nearly square as it can be, and not higher than wide."""
    side = board_side(n_cells)
    height = max(h for h in range(1, math.isqrt(side) + 1) if side % h == 0)
    row, column = positions // side, positions % side
    return row, column, row // height * height + column // (side // height)


class LearnedPositions(nn.Embedding):
    """A table of `max_seq_len` vectors, added to the token embeddings."""

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=0.02)


class GridPositions(nn.Embedding):
    """Vectors of the rows, columns and boxes of a square board, whose sums are added to the token embeddings."""

    def __init__(self, n_cells: int, width: int) -> None:
        super().__init__(3 * board_side(n_cells), width)
        self.n_cells = n_cells

    def reset_parameters(self) -> None:
        """Draw the vectors so that the sums are as large as learned positions."""
        nn.init.normal_(self.weight, std=0.02 / math.sqrt(3))

    def forward(self, positions: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape D"]:
        row, column, box = row_column_box(positions, self.n_cells)
        side = len(self.weight) // 3
        return super().forward(torch.stack([row, side + column, 2 * side + box], dim=-1)).sum(-2)
