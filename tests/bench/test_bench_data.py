"""The benchmark of data loading measures every part on a small corpus."""

import re
from pathlib import Path

import pytest

from attractor.bench import data_speed


def test_every_part_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Criterion: each figure is a positive number with its unit, and no file is left behind."""
    monkeypatch.setattr(data_speed, "N_BATCHES", 3)
    monkeypatch.setattr(data_speed, "N_BOARDS", 4)
    monkeypatch.setattr(data_speed, "N_SEQUENCES", 2)
    monkeypatch.setattr(data_speed.tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    text = tmp_path / "text.txt"
    text.write_text("<|endoftext|>\n".join(f"the number {i} and its square {i * i}\n" * 9 for i in range(150)))
    figures = list(data_speed.measure_data(str(text), "bpe:300", None, 1))
    numbers = [float(re.match(r"[\d,.]+", figure.measured)[0].replace(",", "")) for figure in figures]  # type: ignore[index]
    assert all(number > 0 for number, figure in zip(numbers, figures, strict=True) if "tok/s" not in figure.measured)
    units = ["MB/s", "MB/s", "ms", *["tok/s"] * (len(figures) - 6), *["a second"] * 3]
    assert all(unit in figure.measured for unit, figure in zip(units, figures, strict=True))
    assert list((tmp_path / "temporary").iterdir()) == []
