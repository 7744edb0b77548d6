"""One rule for the modes of files: the umask decides, and what is private by nature lies in a folder of mode 0700."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from attractor.errors import InputError
from attractor.files import private_folder, refuse_open_folder, remove_leftovers, temporary_path
from in_process import SHORT, TINY, command_in_process
from tiers import fast_alone


@pytest.fixture(params=fast_alone([0o022, 0o007, 0o077], 0o077), ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_the_umask_decides_for_every_file_of_a_run_a_corpus_a_study_and_an_export(
    umask: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ATTRACTOR_CACHE", str(tmp_path / "cache"))
    command = command_in_process(monkeypatch, capsys)
    Path("squares.txt").write_text("".join(f"{i} squared is {i * i}.\n" for i in range(2000)))
    corpus = ["--corpus=corpus"]
    for words in (
        ["data", "prepare", "squares.txt", "--out=corpus", "--tokenizer=bytes"],
        ["train", *TINY, *SHORT, *corpus, "--out=runs/a"],
        ["train", *TINY, *SHORT, *corpus, "--seed=1", "--out=runs/b"],
        ["compare", "runs/a", "runs/b", "--out=study"],
        ["report", "study", "--store=results/study-x-smoke.json", "--formats=svg"],
        ["runs", "list", "runs"],
        ["export", "runs/a", "--out=exported"],
    ):
        code, _, said = command(*words)
        assert code == 0, said
    places = ("corpus", "runs", "study", "results", "exported", "cache")
    paths = [path for place in places for path in (Path(place), *Path(place).rglob("*"))]
    names = {path.name for path in paths}
    assert {"model.safetensors", "optimizer.pt", "manifest.json", "seal.json", "study.json", "train.starts"} <= names
    wrong = {
        str(path): oct(mode_of(path)) for path in paths if mode_of(path) != (0o777 if path.is_dir() else 0o666) & ~umask
    }
    assert not wrong


def test_a_private_folder_stays_private_when_a_library_opens_the_one_it_was_given() -> None:
    with private_folder("attractor-test-") as folder:
        folder.chmod(0o777)
        assert mode_of(folder.parent) == 0o700
    assert not folder.parent.exists()


def test_a_folder_that_others_may_enter_is_refused_for_private_files(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    refuse_open_folder(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(InputError, match="must be yours alone"):
        refuse_open_folder(tmp_path / "link")
    tmp_path.chmod(0o711)
    with pytest.raises(InputError, match="must be yours alone"):
        refuse_open_folder(tmp_path)


def test_temporary_files_of_dead_processes_are_removed_and_those_of_living_ones_stay(tmp_path: Path) -> None:
    dead = os.fork()
    if dead == 0:
        os._exit(0)
    os.waitpid(dead, 0)
    mine = temporary_path(tmp_path / "config.json")
    name = mine.name
    gone = [name.replace(f"-{os.getpid()}-", f"-{dead}-"), f".summary.json.{dead}-1.tmp"]
    stay = [name, name.replace(name.split(".")[3].split("-")[0], "abcdef").replace(f"-{os.getpid()}-", f"-{dead}-")]
    for file in [*gone, *stay, ".unknown.tmp", "user.tmp"]:
        (tmp_path / file).write_text("{")
    (tmp_path / f".run.{dead}-1.tmp").mkdir()
    remove_leftovers(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {*stay, ".unknown.tmp", "user.tmp"}
