"""The documentation's table of architectures says what the controls do on every causal language model class."""

import subprocess
import sys
from pathlib import Path

import pytest
from architectures import reason

PAGE = Path(__file__).parents[2] / "docs" / "control-architectures.md"
REWRITE = "run: python tests/control/architectures.py docs/control-architectures.md"


@pytest.mark.slow
def test_the_table_is_current(tmp_path: Path) -> None:
    """Criterion: the page is what the models give now, in a process where nothing else was registered; each clipped one
    meets its bound on the way."""
    script, written = Path(__file__).with_name("architectures.py"), tmp_path / "page.md"
    subprocess.run([sys.executable, "-W", "ignore", str(script), str(written)], check=True, timeout=900)
    assert written.read_text() == PAGE.read_text(), REWRITE


def test_every_refusal_has_a_short_reason() -> None:
    rows = [line.split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")][2:]
    assert len(rows) > 150
    for _, kind, imported, *answers, why in rows:
        assert imported == "yes" or 6 < len(imported) < 80, kind
        assert (not why.strip(" |")) == (answers == ["yes"] * 3), kind
        assert len(why) < 150, kind
    assert reason("an unknown error; do this") == "an unknown error"
