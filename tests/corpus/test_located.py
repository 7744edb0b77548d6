"""Data by name: a path is a path, and a name is looked for where the machine says."""

from pathlib import Path

import pytest

from attractor.corpus.located import located
from attractor.errors import InputError
from attractor.tasks.text import load_corpus


def test_a_path_that_exists_or_is_absolute_is_taken_as_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ATTRACTOR_DATA", "elsewhere")
    Path("here").mkdir()
    assert located("here") == Path("here")
    assert located(tmp_path / "absent") == tmp_path / "absent"
    assert located("absent") == Path("elsewhere/absent")
    monkeypatch.delenv("ATTRACTOR_DATA")
    assert located("absent") == Path("absent")


def test_a_corpus_is_found_by_its_name(tmp_path, monkeypatch):
    text = "".join(f"{n} cubed is {n**3}.\n" for n in range(500))
    (tmp_path / "cubes").mkdir()
    (tmp_path / "cubes" / "a.txt").write_text(text)
    monkeypatch.setenv("ATTRACTOR_DATA", str(tmp_path))
    by_name = load_corpus("cubes")
    assert by_name.fingerprint == load_corpus(tmp_path / "cubes").fingerprint
    with pytest.raises(InputError, match=r"unknown corpus 'qubes'.*ATTRACTOR_DATA"):
        load_corpus("qubes")
