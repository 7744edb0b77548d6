"""Every fault of the mutation check (`make mutants`) still has a place in the source."""

import shutil
from pathlib import Path

import pytest

from mutation import MUTANTS, ROOT, Mutant


def test_every_fault_can_be_planted(tmp_path: Path) -> None:
    """Criterion: the text that a fault replaces occurs exactly once in its file, and the file with the fault
    compiles."""
    assert len(MUTANTS) == len({mutant.breaks for mutant in MUTANTS}) == 30
    for number, mutant in enumerate(MUTANTS):
        source = tmp_path / str(number)
        path = source / "attractor" / mutant.file
        path.parent.mkdir(parents=True)
        shutil.copy(ROOT / "src" / "attractor" / mutant.file, path)
        mutant.apply(source)
        compile(path.read_text(), mutant.file, "exec")


@pytest.mark.parametrize("old", ["not there", "self"])
def test_a_fault_without_a_single_place_is_refused(old: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "src" / "attractor" / "attention", tmp_path / "attractor" / "attention")
    with pytest.raises(ValueError, match="exactly once"):
        Mutant("attention/cache.py", old, "", "nothing").apply(tmp_path)
