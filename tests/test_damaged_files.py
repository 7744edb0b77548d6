"""Flipped bytes are named and hostile files refused, by the programs of `make stress` with fewer files."""

from pathlib import Path

import pytest

from processes import in_fresh_process
from stress import flip_bytes, hostile_files

pytestmark = pytest.mark.slow


def test_a_flipped_byte_changes_no_result_without_a_word(tmp_path: Path) -> None:
    assert in_fresh_process(flip_bytes.flip_and_compare, tmp_path, n_flips=6, seed=1, only="json") == 0


def test_hostile_corpora_and_records_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    assert in_fresh_process(hostile_files.check, tmp_path / "in") == 0
