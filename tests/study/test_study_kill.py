"""Real processes: whatever is killed while a study runs, no finished run is lost. `make stress` kills more often."""

from pathlib import Path

import pytest

from stress.kill_study import kill_and_compare


@pytest.mark.slow
def test_a_killed_study_ends_as_an_untouched_one(tmp_path: Path) -> None:
    """Criterion: the launcher, one run, then all are killed; see `kill_and_compare` for what must hold."""
    kill_and_compare(tmp_path, n_kills=3, seed=2, n_steps=40)
