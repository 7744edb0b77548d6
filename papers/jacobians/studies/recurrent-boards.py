"""Do models that learn from sparse boards solve harder ones, and what do votes add?

The paper trains on 31 to 42 givens and judges on 24 to 30 (Jacobians, section 6, as AKOrN); the scale desk judges on 28
to 30. Recurrent relational networks (Palm, Paquet and Winther, 2018, arXiv:1711.08028) train on 17 to 34 givens. Boards
of 17 givens are read from the file `sudoku17.csv`, and digits of their solutions are added.
"""

from dataclasses import replace

from attractor.study import Axis, Quantity, Scale, Study
from attractor.tasks.sudoku import Sudoku

from ..probes.dynamics import DYNAMICS_PROBE
from ..probes.votes import VOTES_PROBE
from ..settings import BOARDS, BOARDS_ELSEWHERE, CELLS_ELSEWHERE, LONGER, rows, scales

BOARDS_OF_9 = {"dense": Sudoku(), "sparse": Sudoku(puzzles="sudoku17.csv", givens=(17, 34))}
COPIES_OF_9 = {label: replace(task, augment=True, ood_givens=(28, 30)) for label, task in BOARDS_OF_9.items()}
SETS = {
    "smoke": {
        "dense": Sudoku(board_size=4, n_boards=512, n_valid_boards=64),
        "sparse": Sudoku(board_size=4, n_boards=512, n_valid_boards=64, givens=(4, 7)),
    },
    "laptop": {
        "dense": Sudoku(board_size=4, givens=(6, 9), ood_givens=(4, 5), n_valid_boards=512),
        "sparse": Sudoku(board_size=4, givens=(4, 7), ood_givens=(4, 5), n_valid_boards=512),
    },
    "desk": COPIES_OF_9,
    "bench": BOARDS_OF_9,
    "paper": BOARDS_OF_9,
}


MODELS = {"ItrSA", "AKOrN", "recursive"}


def boards(sets: dict[str, Sudoku]) -> Axis:
    return Axis("boards", {label: {"task": task} for label, task in sets.items()})


def scale(name: str) -> Scale:
    return replace(scales()[name], rows=rows(name).only(MODELS), columns=boards(SETS[name]))


STUDY = Study(
    title="Sparse boards in training",
    question="Do models that learn from boards of 17 to 34 givens solve harder ones, and what do votes add?",
    source="Jacobians, section 6",
    rows=rows("paper").only(MODELS),
    columns=boards(BOARDS_OF_9),
    baseline="ItrSA",
    control=False,  # what guessing reaches is known here
    quantities=(
        BOARDS,
        BOARDS_ELSEWHERE,
        CELLS_ELSEWHERE,
        LONGER,
        *(
            Quantity(f"boards out of distribution, {n} votes", f"probes.votes.boards.ood.{n}", "higher")
            for n in (1, 4, 16, 64)
        ),
    ),
    probes=(DYNAMICS_PROBE, VOTES_PROBE),
    scales={name: scale(name) for name in SETS},
)
