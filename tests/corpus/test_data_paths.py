"""Data are given as a path, or as a name that is looked up in the folders of an environment variable."""

from pathlib import Path

import pytest

from attractor.corpus.data_paths import locate
from attractor.corpus.tokenizer import load_tokenizer
from attractor.errors import InputError
from attractor.evaluate.texts.documents import texts_on
from attractor.tasks.sudoku.formats import files_at
from attractor.tasks.text import load_corpus
from attractor.train.start import counterpart


def test_a_path_that_exists_or_is_absolute_is_taken_as_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ATTRACTOR_DATA", "elsewhere")
    Path("here").mkdir()
    assert locate("here") == Path("here")
    assert locate(tmp_path / "absent") == tmp_path / "absent"
    assert locate("absent") == Path("elsewhere/absent")
    monkeypatch.delenv("ATTRACTOR_DATA")
    assert locate("absent") == Path("absent")


def test_a_corpus_is_found_by_its_name(tmp_path, monkeypatch):
    text = "".join(f"{n} cubed is {n**3}.\n" for n in range(500))
    (tmp_path / "cubes").mkdir()
    (tmp_path / "cubes" / "a.txt").write_text(text)
    monkeypatch.setenv("ATTRACTOR_DATA", str(tmp_path))
    by_name = load_corpus("cubes")
    assert by_name.fingerprint == load_corpus(tmp_path / "cubes").fingerprint
    with pytest.raises(InputError, match=r"unknown corpus 'qubes'.*ATTRACTOR_DATA"):
        load_corpus("qubes")


def test_the_end_of_a_path_is_looked_up_in_the_folders_of_the_variable(tmp_path, monkeypatch):
    """A run copied from another machine names a folder of that machine. The longest matching end of its path wins."""
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("nearer")
    (tmp_path / "a.txt").write_text("farther")
    monkeypatch.setenv("ATTRACTOR_DATA", str(tmp_path))
    for name in ("/home/ada/texts/a.txt", "../texts/a.txt"):
        with pytest.warns(UserWarning, match=r"'.*a.txt' does not exist here, so '.*texts/a.txt' is used"):
            assert locate(name) == tmp_path / "texts" / "a.txt"
    with pytest.warns(UserWarning, match="is used"):
        assert locate("/home/ada/other/a.txt") == tmp_path / "a.txt"


@pytest.mark.parametrize(
    "read",
    [load_corpus, load_tokenizer, files_at, lambda name: counterpart(Path(name), "standard", 0), texts_on],
    ids=["corpus", "tokenizer", "puzzles", "start", "on"],
)
def test_data_that_are_missing_are_named_with_the_places_and_the_variable(read, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ATTRACTOR_DATA", raising=False)
    places = rf"'data/a.txt' .*looked for in '{tmp_path}/data'; ATTRACTOR_DATA may"
    with pytest.raises(InputError, match=places) as said:
        read("data/a.txt")
    assert "\n" not in str(said.value)
    monkeypatch.setenv("ATTRACTOR_DATA", str(tmp_path / "elsewhere"))
    with pytest.raises(InputError, match=rf" and in '{tmp_path}/elsewhere', which ATTRACTOR_DATA names"):
        read("data/a.txt")
