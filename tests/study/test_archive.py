"""A run folder is sent as one archive: which files it holds, and which archives are refused on arrival."""

import io
import tarfile
from pathlib import Path

import pytest

from attractor.errors import InputError
from attractor.runs.lock import HOLD, RunInUseError, hold
from attractor.runs.run_folder import RunFolder
from attractor.study.archive import pack, pack_progress, unpack


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Make the folder of a run with stand-ins for tensors and three checkpoints, of which the middle one is the
    best."""
    folder = RunFolder.create(tmp_path / "run", {"seed": 0})
    folder.append({"step": 1, "tokens": 8, "loss": 2.0})
    folder.write_summary({"valid_loss": 1.0})
    for step in (1, 2, 3):
        (folder.checkpoints / f"step-{step:08d}").mkdir()
        (folder.checkpoints / f"step-{step:08d}" / "model.safetensors").write_bytes(bytes([step]) * 1000)
    (folder.checkpoints / "best.json").write_text('{"step": 2, "loss": 1.0}')
    (folder.checkpoints / ".writing-step-00000004").mkdir()
    (folder.checkpoints / ".writing-step-00000004" / "model.safetensors").write_bytes(b"half")
    (folder.path / "elsewhere").symlink_to("/etc")
    (folder.path / "link").symlink_to("/etc/hostname")
    return folder.path


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("every", "steps"), [(False, (2, 3)), (True, (1, 2, 3))])
def test_a_parcel_holds_the_run_with_its_best_and_last_checkpoint_or_every_one(
    run: Path, tmp_path: Path, every: bool, steps: tuple[int, ...]
) -> None:
    """Criterion: the files agree byte for byte, and there is no lock, link, unfinished or other file."""
    unpack(pack(run, every), tmp_path / "copy")
    arrived = contents(tmp_path / "copy")
    arrived.pop(HOLD)  # the copy has its own lock
    files = ["config.json", "environment.json", "metrics.jsonl", "seal.json", "summary.json", "checkpoints/best.json"]
    files += [f"checkpoints/step-{step:08d}/model.safetensors" for step in steps]
    assert arrived == {name: content for name, content in contents(run).items() if name in files}
    assert len(arrived) == len(files)


def test_the_progress_of_a_run_never_contains_its_end(run: Path, tmp_path: Path) -> None:
    unpack(pack_progress(run), tmp_path / "copy")
    copy = RunFolder.open(tmp_path / "copy")
    assert copy.metrics() == RunFolder.open(run).metrics()
    assert not copy.finished
    assert not copy.checkpoints.exists()


def test_an_arriving_parcel_replaces_the_former_state(run: Path, tmp_path: Path) -> None:
    """Criterion: checkpoints that the run has removed meanwhile are gone, and no hidden file but the lock is left."""
    unpack(pack(run, every_checkpoint=True), tmp_path / "copy")
    unpack(pack(run), tmp_path / "copy")
    steps = sorted(path.name for path in (tmp_path / "copy" / "checkpoints").glob("step-*"))
    assert steps == ["step-00000002", "step-00000003"]
    assert {path.name for path in (tmp_path / "copy").glob(".*")} == {HOLD}


def archive(name: str, kind: bytes = tarfile.REGTYPE, to: str = "") -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("config.json"))
        bad = tarfile.TarInfo(name)
        bad.type, bad.linkname = kind, to
        tar.addfile(bad)
    return written.getvalue()


@pytest.mark.parametrize(
    "sent",
    [
        archive("../outside"),
        archive("checkpoints/../../outside"),
        archive("/tmp/outside"),
        archive("..\\outside"),
        archive("summary.json", tarfile.SYMTYPE, "/etc/hostname"),
        archive("summary.json", tarfile.LNKTYPE, "config.json"),
        archive("pipe", tarfile.FIFOTYPE),
        archive("device", tarfile.CHRTYPE),
        archive("folder", tarfile.DIRTYPE),
    ],
)
def test_anything_but_plain_files_inside_the_folder_is_refused_as_a_whole(sent: bytes, tmp_path: Path) -> None:
    """Criterion: the error is one line, and no file of the archive is written, not even the valid one before it."""
    with pytest.raises(InputError, match="must be plain files inside the run's folder"):
        unpack(sent, tmp_path / "copy")
    assert {path.name for path in tmp_path.rglob("*")} == {"copy", HOLD}


def test_a_run_that_another_process_carries_out_is_left_alone(run: Path, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    with hold(tmp_path / "copy"), pytest.raises(RunInUseError):
        unpack(pack(run), tmp_path / "copy")
    assert {path.name for path in (tmp_path / "copy").iterdir()} == {HOLD}
