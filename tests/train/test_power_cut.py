"""A power cut loses only steps. `make stress` cuts more often."""

from pathlib import Path

import pytest

from processes import in_fresh_process
from stress.power_cut import cut_and_compare


@pytest.mark.slow
def test_what_a_power_cut_leaves_is_resumed_and_ends_as_an_undisturbed_run(tmp_path: Path) -> None:
    """Criterion: `cut_and_compare` states what must hold. The second cut comes in the resumed run."""
    in_fresh_process(cut_and_compare, tmp_path, n_cuts=2, seed=0)
