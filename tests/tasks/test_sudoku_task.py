"""The Sudoku task: which cells are scored, which boards are held out, and what the seed of a run changes."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from attractor.errors import InputError
from attractor.tasks.sudoku import Sudoku, SudokuTask, boards_right, generate
from attractor.tasks.sudoku.data import load_sets
from attractor.tasks.sudoku.symmetry import hashes

SMALL = Sudoku(n_boards=40, n_valid_boards=10, ood_givens=(28, 30))


def write(path: Path, boards: np.ndarray, solutions: np.ndarray) -> str:
    rows = (",".join("".join(map(str, x.ravel())) for x in pair) for pair in zip(boards, solutions, strict=True))
    path.write_text("puzzle,solution\n" + "\n".join(rows))
    return str(path)


def cells_of(task: SudokuTask, part: str) -> tuple[np.ndarray, np.ndarray]:
    batches = list(task.valid_batches(4, part=part))
    return np.concatenate([b.inputs for b in batches]), np.concatenate([b.targets for b in batches])


def pair_of(task: SudokuTask, part: str) -> tuple[np.ndarray, np.ndarray]:
    return task.sets.valid[part].boards, task.sets.valid[part].solutions


def test_training_scores_every_cell_and_validation_every_blank() -> None:
    task = SMALL.build(81, seed=0)
    inputs, targets, real = task.train_batch(0, 8)
    assert inputs.shape == targets.shape == (8, 81)
    assert inputs.dtype == targets.dtype == np.int64
    assert real is None
    assert (targets > 0).all()
    assert (inputs == targets)[inputs > 0].all()
    for part in task.valid_sets:
        inputs, targets = cells_of(task, part)
        assert inputs.shape == (10, 81)
        assert np.array_equal(targets == -100, inputs > 0)
        assert ((targets >= 1) & (targets <= 9))[inputs == 0].all()
    assert task.demands == {"vocab_size": 10, "causal": False, "n_classes": None}
    assert task.n_tokens == 40 * 81


def test_generated_sets_have_their_givens() -> None:
    task = SMALL.build(81, seed=0)
    assert task.valid_sets == ("valid", "ood")
    n_givens = {part: (cells_of(task, part)[0] > 0).sum(axis=1) for part in task.valid_sets}
    assert ((n_givens["valid"] >= 31) & (n_givens["valid"] <= 42)).all()
    assert ((n_givens["ood"] >= 28) & (n_givens["ood"] <= 30)).all()
    assert "40 training (31 to 42 givens), 10 valid" in task.describe()
    assert Sudoku(n_boards=4, n_valid_boards=2, ood_puzzles="").build(81, seed=0).valid_sets == ("valid",)


def test_a_board_counts_when_every_blank_is_right() -> None:
    task = SMALL.build(81, seed=0)
    inputs, targets = cells_of(task, "valid")
    perfect = np.where(targets == -100, 0, targets)  # answers at givens do not matter
    assert task.measure(targets, perfect) == {"board_accuracy": 1.0, "cell_accuracy": 1.0}
    predictions = perfect.copy()
    wrong = [(board, np.flatnonzero(inputs[board] == 0)[board]) for board in (0, 3, 4)]
    for board, cell in wrong:
        predictions[board, cell] = predictions[board, cell] % 9 + 1
    measured = task.measure(targets, predictions)
    assert measured["board_accuracy"] == 0.7
    assert measured["cell_accuracy"] == pytest.approx(1 - 3 / (inputs == 0).sum())
    assert np.flatnonzero(~boards_right(targets, predictions)).tolist() == [0, 3, 4]
    assert task.metric in measured


def test_the_seed_changes_only_the_order_of_boards() -> None:
    one, other = SMALL.build(81, seed=0), SMALL.build(81, seed=1)
    assert one.fingerprint == other.fingerprint
    for part in one.valid_sets:
        for mine, theirs in zip(cells_of(one, part), cells_of(other, part), strict=True):
            assert np.array_equal(mine, theirs)
    epochs = [np.concatenate([task.train_batch(step, 8).inputs for step in range(5)]) for task in (one, other)]
    assert not np.array_equal(*epochs)
    assert np.array_equal(*(np.unique(epoch, axis=0) for epoch in epochs))
    assert len(np.unique(epochs[0], axis=0)) == 40, "an epoch visits every board once"
    assert np.array_equal(SMALL.build(81, seed=1).train_batch(3, 8).inputs, other.train_batch(3, 8).inputs)


def test_batches_may_be_changed_without_touching_the_data() -> None:
    task = SMALL.build(81, seed=0)
    before = task.train_batch(0, 4)
    kept = before.targets.copy()
    before.targets[:] = -100
    before.inputs[:] = 0
    assert np.array_equal(task.train_batch(0, 4).targets, kept)


def test_validation_can_be_cut_short() -> None:
    task = SMALL.build(81, seed=0)
    some = list(task.valid_batches(4, max_batches=2))
    assert [len(batch.inputs) for batch in some] == [4, 4]
    assert [len(batch.inputs) for batch in task.valid_batches(4)] == [4, 4, 2]


@pytest.mark.parametrize("size", [4, 6, 9, 16])
def test_a_task_has_the_cells_and_digits_of_its_size(size: int) -> None:
    config = Sudoku(board_size=size, n_boards=4, n_valid_boards=2, ood_puzzles="")
    task = config.build(size * size, seed=0)
    assert task.demands["vocab_size"] == size + 1
    assert task.n_tokens == len(task.sets.train) * size * size
    inputs, targets, _ = task.train_batch(0, 4)
    assert inputs.shape == targets.shape == (4, size * size)
    assert set(np.unique(targets)) == set(range(1, size + 1))
    assert cells_of(task, "valid")[0].shape == (2, size * size)
    with pytest.raises(InputError, match=f"seq_len must be {size * size}"):
        config.build(size * size + 1, seed=0)


@pytest.mark.parametrize("size", [4, 6])
def test_sizes_with_few_grids_share_no_puzzle_up_to_symmetry(size: int) -> None:
    task = Sudoku(board_size=size, n_boards=200, n_valid_boards=50).build(size * size, seed=0)
    train, *held_out = (
        set(hashes(part.boards, part.solutions).tolist()) for part in (task.sets.train, *task.sets.valid.values())
    )
    assert len(task.sets.train) + task.sets.n_left_out == 200
    assert len(task.sets.train) > 100
    for part in held_out:
        assert part
        assert not train & part
    n_givens = {name: np.count_nonzero(part.boards, axis=(1, 2)) for name, part in task.sets.valid.items()}
    assert n_givens["ood"].max() < n_givens["valid"].min()


def test_equivalent_puzzles_in_files_are_left_out_at_size_six(tmp_path: Path) -> None:
    boards, solutions = generate(20, 14, seed=17, size=6)
    twins, twin_solutions = boards[:, ::-1, ::-1], solutions[:, ::-1, ::-1]
    path = write(tmp_path / "six.csv", np.concatenate([boards, twins]), np.concatenate([solutions, twin_solutions]))
    task = Sudoku(board_size=6, puzzles=path, ood_puzzles="", n_valid_boards=6).build(36, seed=0)
    assert len(task.sets.valid["valid"]) == 6
    assert task.sets.n_left_out == 2 * len(np.unique(hashes(*pair_of(task, "valid")))) - 6


def test_the_first_size_is_unchanged_by_the_addition_of_others() -> None:
    """Criterion: runs that were stored before other sizes existed keep their names and data."""
    config = Sudoku(n_boards=3, n_valid_boards=2, givens=(40, 50), ood_givens=(36, 39))
    assert "board_size" not in config.to_dict()
    task = config.build(81, seed=0)
    assert task.fingerprint == "4db659a5dddaf77304bc466aabc60885d8d6b2480325caf5ebf5597f1f7110ab"
    assert task.name == "sudoku:generated"
    other = replace(config, board_size=16, givens=None, ood_givens=None)
    assert Sudoku.from_dict({name: x for name, x in other.to_dict().items() if name != "kind"}) == other


def test_boards_equivalent_to_held_out_ones_are_left_out_of_training(tmp_path: Path) -> None:
    boards, solutions = generate(30, 36, seed=11)
    relabel = np.concatenate([[0], 1 + np.random.default_rng(0).permutation(9)])
    twins, twin_solutions = relabel[boards].swapaxes(1, 2), relabel[solutions].swapaxes(1, 2)
    ood_boards, ood_solutions = generate(5, 30, seed=12)
    first = write(
        tmp_path / "first.csv", np.concatenate([boards, ood_boards]), np.concatenate([solutions, ood_solutions])
    )
    write(tmp_path / "second.csv", twins, twin_solutions)
    ood = write(tmp_path / "ood.csv", ood_boards[:, ::-1], ood_solutions[:, ::-1])
    config = Sudoku(puzzles=f"{first},{tmp_path}/s*.csv", ood_puzzles=ood, n_boards=1000, n_valid_boards=8)
    task = config.build(81, seed=0)

    train = hashes(task.sets.train.solutions, task.sets.train.solutions)
    for part in task.sets.valid.values():
        assert not np.isin(train, hashes(part.solutions, part.solutions)).any()
    assert len(task.sets.valid["valid"]) == 8
    assert len(task.sets.valid["ood"]) == 5
    assert task.sets.n_left_out >= 5
    assert len(task.sets.train) == 65 - 8 - task.sets.n_left_out
    assert f"{task.sets.n_left_out} left out of training" in task.describe()


def test_the_held_out_set_does_not_depend_on_order_or_training_size(tmp_path: Path) -> None:
    boards, solutions = generate(30, 36, seed=13)
    order = np.random.default_rng(0).permutation(np.r_[:30, :5])  # five boards occur twice
    one = write(tmp_path / "one.csv", boards, solutions)
    other = write(tmp_path / "other.csv", boards[order], solutions[order])
    tasks = [
        Sudoku(puzzles=path, ood_puzzles="", n_boards=n, n_valid_boards=10).build(81, seed=0)
        for path, n in ((one, 100), (other, 100), (one, 5))
    ]
    assert tasks[0].fingerprint == tasks[1].fingerprint
    assert len(tasks[2].sets.train) == 5
    for task in tasks[1:]:
        assert np.array_equal(task.sets.valid["valid"].boards, tasks[0].sets.valid["valid"].boards)


def test_givens_are_added_to_sparse_boards_and_not_to_full_ones(tmp_path: Path) -> None:
    sparse, full = generate(20, 26, seed=14), generate(5, 50, seed=15)
    path = write(tmp_path / "mixed.csv", *(np.concatenate(pair) for pair in zip(sparse, full, strict=True)))
    config = Sudoku(
        puzzles=path, ood_puzzles=path, n_boards=100, n_valid_boards=4, givens=(30, 34), ood_givens=(17, 26)
    )
    task = config.build(81, seed=0)
    train = (task.sets.train.boards > 0).sum(axis=(1, 2))
    assert len(train) + task.sets.n_left_out == 16
    assert (train >= 30).all()
    assert (train <= 34).all()
    assert ((task.sets.valid["ood"].boards > 0).sum(axis=(1, 2)) == 26).all()


def test_unusable_files_are_refused(tmp_path: Path) -> None:
    boards, solutions = generate(4, 36, seed=16)
    few = write(tmp_path / "few.csv", boards, solutions)
    with pytest.raises(InputError, match=r"more boards than n_valid_boards=4, but .* gives 4"):
        Sudoku(puzzles=few, n_valid_boards=4).build(81, seed=0)
    twins = np.stack([boards[0], boards[0].T])
    same = write(tmp_path / "same.csv", twins, np.stack([solutions[0], solutions[0].T]))
    with pytest.raises(InputError, match="all 1 boards for training are symmetric"):
        Sudoku(puzzles=same, ood_puzzles="", n_valid_boards=1).build(81, seed=0)
    several = write(tmp_path / "several.csv", np.zeros_like(boards[:2]), solutions[:2])
    with pytest.raises(InputError, match=r"but 0{81} has several"):
        Sudoku(puzzles=few, ood_puzzles=several, n_valid_boards=1).build(81, seed=0)
    small = write(tmp_path / "small.csv", *generate(4, 8, seed=0, size=4))
    with pytest.raises(InputError, match=r"must be 9 x 9 for this task, but 'small.csv' has 4 x 4; .* board_size=4"):
        Sudoku(puzzles=small, n_valid_boards=1).build(81, seed=0)
    with pytest.raises(InputError, match=r"boards with at most 20 givens, but '.*few.csv' has none"):
        Sudoku(puzzles=few, ood_puzzles=few, n_valid_boards=1, ood_givens=(17, 20)).build(81, seed=0)


def test_a_config_survives_its_json() -> None:
    stored = SMALL.to_dict() | {"ood_givens": [28, 30]}
    assert stored.pop("kind") == "sudoku"
    assert Sudoku.from_dict(stored) == SMALL
    assert SMALL.seq_len == 81


def test_the_fingerprint_follows_the_data() -> None:
    base = Sudoku(n_boards=3, n_valid_boards=2, givens=(40, 50), ood_givens=(36, 39))
    changes = [{}, {"n_boards": 4}, {"n_valid_boards": 3}, {"ood_givens": (37, 39)}, {"givens": (41, 50)}]
    fingerprints = [replace(base, **change).build(81, seed=0).fingerprint for change in changes]
    assert len(set(fingerprints)) == len(changes)
    load_sets.cache_clear()  # this test comes last, since others share sets
    assert base.build(81, seed=0).fingerprint == fingerprints[0], "made again, the data are the same"
