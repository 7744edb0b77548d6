"""The documentation's table of architectures says what the controls do on every causal language model class."""

from pathlib import Path

import pytest
import transformers
from architectures import page, reason

PAGE = Path(__file__).parents[2] / "docs" / "control-architectures.md"
REWRITE = "run: python tests/control/architectures.py docs/control-architectures.md"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_table_is_current() -> None:
    """Criterion: the page is what the models give now; each clipped one meets its bound on the way."""
    stored = PAGE.read_text()
    if f"transformers {transformers.__version__} " not in stored:
        pytest.skip(f"the table is of another transformers than {transformers.__version__}")
    assert page() == stored, REWRITE


def test_every_refusal_has_a_short_reason() -> None:
    rows = [line.split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")][2:]
    assert len(rows) > 150
    for _, kind, clip, quack, why in rows:
        assert (why == " |" or why == "|") == (clip == quack == "yes"), kind
        assert len(why) < 150, kind
    assert reason("an unknown error; do this") == "an unknown error"
