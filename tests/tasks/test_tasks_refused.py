"""Tasks refuse settings and arrays of which no data can be made, in one line with the rule and the value."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from attractor.errors import InputError
from attractor.tasks.epochs import Epochs
from attractor.tasks.needle import Needle
from attractor.tasks.order import Windows, evaluation_batches
from attractor.tasks.recall import Recall, mqar
from attractor.tasks.sudoku import Sudoku, add_givens, count_solutions, generate, show
from attractor.tasks.sudoku.digging import FEWEST_GIVENS

TWO, SOLVED = generate(2, 30, seed=3)


REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: Epochs(10, seed=-1), "seed must be between 0 and .*, but is -1"),
    (lambda: Windows(np.arange(64), 64, seed=0), r"at least seq_len \+ 1 = 65 tokens, but has 64; give more text"),
    (lambda: evaluation_batches(np.arange(10), 64, 1), r"at least seq_len \+ 1 = 65 tokens, but has 10"),
    (lambda: Windows(np.arange(64), 0, seed=0), "seq_len must be at least 1, but is 0"),
    (lambda: Windows(np.arange(64), 8, seed=-1), "seed must be between 0 and .*, but is -1"),
    (lambda: Needle(n_needles=0), "n_needles must be between 1 and 26, got 0"),
    (lambda: Needle(n_needles=27), "n_needles must be between 1 and 26, got 27"),
    (lambda: Needle(least_gap=-1), "least_gap must be at least 0, got -1"),
    (lambda: Needle(least_gap=90).build(96, 0), "seq_len must be at least 99 for n_needles=1 and least_gap=90, got 96"),
    (lambda: Recall(level="esay"), "unknown level of mqar 'esay'; did you mean 'easy'"),
    (lambda: Recall(gap="powr"), "unknown gap 'powr'; did you mean 'power'"),
    (lambda: Recall(n_pairs=0), "n_pairs must be at least 1, got 0"),
    (lambda: Recall(n_pairs=22), "length must be at least 66 for 22 pairs and gap 'uniform', got 64; give longer sequ"),
    (lambda: Recall(n_pairs=17, gap="power"), "length must be at least 68 for 17 pairs and gap 'power', got 64"),
    (lambda: Recall(least_gap=50, delay=3), "at least 65 for 4 pairs and gap 'uniform' at this least_gap and"),
    (lambda: Recall(symbols=7), "symbols must be at least 8 for 4 pairs, got 7; give more symbols or fewer pairs"),
    (lambda: Recall(power_a=math.inf), "power_a must be a finite number, got inf"),
    (lambda: Recall(least_gap=-1), "least_gap must be at least 0, got -1; count tokens"),
    (lambda: Recall(delay=-2), "delay must be at least 0, got -2; count tokens"),
    (lambda: Recall(n_examples=-1), "n_examples must be at least 0, got -1; 0 draws examples without end"),
    (lambda: Recall(level="medium").build(64, 0), "seq_len must be 128, the length of this mqar, got 64; change leng"),
    (lambda: Recall().build(64, -1), "seed must be between 0 and .* but is -1"),
    (lambda: mqar(1, 64, 4, vocab_size=5, seed=0), "vocab_size must be at least 8 for 4 pairs, got 5"),
    (lambda: Sudoku(n_boards=0), "n_boards must be at least 1, got 0"),
    (lambda: Sudoku(n_valid_boards=-1), "n_valid_boards must be at least 1"),
    (lambda: Sudoku(givens=(42, 31)), "givens must be two numbers from 22 to 81"),
    (lambda: Sudoku(ood_givens=(17, 31)), "ood_givens must be two numbers from 22 to 81, .*; sparser boards come from"),
    (lambda: Sudoku(givens=(16, 31), puzzles="a.csv"), "givens must be two numbers from 17 to 81"),
    (lambda: Sudoku(board_size=6, givens=(7, 9)), "givens must be two numbers from 8 to 36"),
    (lambda: Sudoku(board_size=8), "board_size must be one of 4, 6, 9, 16, got 8"),
    (lambda: Sudoku(puzzles=""), "puzzles must be 'generated' or name files"),
    *(
        (lambda n=n: generate(1, n, seed=0), f"n_givens must be between {FEWEST_GIVENS[9]} and 81 for size 9, got")
        for n in (5, 21, 82, (21, 30), (30, 25), (40, 90))
    ),
    (lambda: generate(1, 40, seed=0, size=8), "size must be one of 4, 6, 9, 16, got 8"),
    (lambda: generate(-1, 40, seed=0), "n must"),
    (lambda: generate(1, 40, seed=-1), "seed must"),
    *(
        (lambda n=n: add_givens(TWO, SOLVED, n, 0), "n_givens must be between 0 and 81, the fewest first, got")
        for n in ((31, 30), (40, 30), 100, -1)
    ),
    (lambda: add_givens(TWO, SOLVED[::-1], 60, seed=0), "solutions must be those of the boards"),
    (lambda: count_solutions(np.zeros((2, 8, 8), int)), "boards must"),
    (lambda: count_solutions(np.zeros((9, 9), int)), "boards must"),
    (lambda: count_solutions(np.full((1, 9, 9), 10)), "boards must"),
    (lambda: count_solutions(np.zeros((1, 9, 9))), "boards must"),
    (lambda: count_solutions(np.zeros((1, 4, 4), int), limit=0), "limit must be at least 1, got 0"),
    (lambda: show(TWO[0], np.zeros((6, 6), int)), r"givens must have the shape of the board, \(9, 9\), got \(6, 6\)"),
]


@pytest.mark.parametrize(("attempt", "message"), REFUSED)
def test_what_gives_no_data_is_refused_in_one_line(attempt: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message) as refused:
        attempt()
    assert "\n" not in str(refused.value)
