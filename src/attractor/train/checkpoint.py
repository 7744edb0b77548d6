"""Checkpoints that a crash, a full disk or a flipped byte cannot turn into a wrong run.

    checkpoints/step-00000500/model.safetensors    weights
                              optimizer.pt         optimizer, loss scaler and random state (loaded with weights_only)
                              state.json           step, tokens, best loss and the other counters
                              manifest.json        format version, the run's config_hash, sha256 of each file and
                                                   of the manifest itself

A checkpoint is written under a hidden temporary name, flushed to disk, and renamed when it is complete. It is removed
in the opposite order. So a checkpoint with its final name is always complete. Loading starts at the newest checkpoint:
damaged ones are reported and passed over. A checkpoint of another configuration or a newer format is intact, but it
does not belong here, and is refused.

A checkpoint is *good* if all numbers of its weights and its optimizer are finite, its last step was finite, and

    L <= 2 L_min + 0.1,   L = mean of the last 10 finite training losses,   L_min = lowest L so far         (1)

The last good checkpoint is kept, however many others follow it. A run that diverged can be rolled back to it.
"""

import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, load_model, save_file
from torch import Tensor, nn

from attractor.errors import InputError, RunStopped, WritingError
from attractor.files import (
    FULL,
    flush_to_disk,
    follow_umask,
    from_json,
    in_json,
    remove,
    set_aside,
    write_json,
)
from attractor.files.seals import CHANGED, changed, checksum_of, read_sealed, seal_holds, write_sealed
from attractor.runs.configuration import config_hash
from attractor.runs.run_folder import RunFolder

# Later formats must seal their manifest in the same way, or a flipped byte could pass for a later format.
FORMAT = 2
MANIFEST = "manifest.json"
BEST = "best.json"
WRITING, REMOVING, REPLACED = ".writing-", ".removing-", ".replaced-"
HIDDEN = (WRITING, REMOVING, REPLACED)  # prefixes of folders that are no checkpoint yet, or no longer
WINDOW = 50  # training losses that are remembered, of each segment
RECENT, FACTOR, MARGIN = 10, 2.0, 0.1  # (1)


@dataclass
class TrainState:
    """The counters of a run: its state besides weights, optimizer and random numbers."""

    step: int = 0
    tokens: int = 0
    best_loss: float | None = None
    best_step: int | None = None
    bad_steps: int = 0  # non-finite steps in a row
    skipped_steps: int = 0
    train_seconds: float = 0.0  # inside steps, over all sessions, without compile_seconds
    compile_seconds: float = 0.0
    recent_losses: list[float] = field(default_factory=list)  # a spike exceeds these
    loss_spikes: list[int] = field(default_factory=list)  # steps of the spikes
    lowest_loss: float | None = None  # lowest value of `usual_loss` so far
    good_step: int | None = None  # step of the last good checkpoint
    rollbacks: list[list[int]] = field(default_factory=list)  # each: step gone back to, first data skipped, first kept
    computed_on: str | None = None  # `hardware.arithmetic` of the last steps; older checkpoints hold none
    recorded_step: int | None = 0  # step of the last record in the metrics; None in older checkpoints, which hold none

    @property
    def usual_loss(self) -> float | None:
        """The mean of the last finite training losses."""
        return fmean(self.recent_losses[-RECENT:]) if self.recent_losses else None

    def note_loss(self, loss: float, n_segments: int = 1) -> None:
        """Take a finite training loss into account; `n_segments` is the number of steps that a batch stays for."""
        self.recent_losses = [*self.recent_losses, loss][-WINDOW * n_segments :]
        usual = self.usual_loss
        if usual is not None and (self.lowest_loss is None or usual < self.lowest_loss):
            self.lowest_loss = usual

    @property
    def is_usual(self) -> bool:
        """Whether the last step was finite, and the loss is within a bound of the lowest one: (1)."""
        usual, lowest = self.usual_loss, self.lowest_loss
        return self.bad_steps == 0 and (usual is None or lowest is None or usual <= FACTOR * lowest + MARGIN)

    @property
    def n_skipped_batches(self) -> int:
        """Of how many steps rollbacks have skipped the data."""
        return sum(end - start for _, start, end in self.rollbacks)


class DamagedCheckpointError(Exception):
    """A file of a checkpoint is missing or altered."""


def save_checkpoint(run: RunFolder, weights: dict[str, Tensor], tensors: dict[str, Any], state: TrainState) -> Path:
    """Write the checkpoint of `state.step`. Under its final name it is never incomplete."""
    folder = run.checkpoints
    target = checkpoint_of(folder, state.step)
    temporary = folder / f"{WRITING}{target.name}"
    with writing_errors(folder, state.step, temporary):
        restore_replaced(folder)
        for left_over in [path for start in HIDDEN for path in folder.glob(f"{start}*")]:  # of killed processes
            remove(left_over)
        temporary.mkdir(parents=True)
        if not run.finished:
            run.seal()  # no power cut leaves a checkpoint without its metrics
        save_file({name: tensor.contiguous() for name, tensor in weights.items()}, str(temporary / "model.safetensors"))
        follow_umask(temporary / "model.safetensors")
        write_tensors(temporary / "optimizer.pt", tensors)
        write_json(temporary / "state.json", asdict(state))
        files = sorted(temporary.iterdir())
        checksums = {path.name: checksum_of(path) for path in files}
        manifest = {"format": FORMAT, "config_hash": _hash_of_run(folder), "sha256": checksums}
        write_sealed(temporary / MANIFEST, manifest)
        for path in (*files, temporary):
            flush_to_disk(path)
        replace_checkpoint(temporary, target)
    return target


@contextmanager
def writing_errors(folder: Path, step: int, temporary: Path) -> Iterator[None]:
    """Say in one line why a checkpoint could not be written, and remove what was written of it."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        number = getattr(error, "errno", None)
        cure = "make room" if number is None or number in FULL else "make it writable"
        raise WritingError(
            f"could not save the checkpoint of step {step} in '{folder}': {getattr(error, 'strerror', error)}; "
            f"{cure}, then resume. Earlier checkpoints are intact"
        ) from error
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    finally:
        restore_replaced(folder)


def checkpoint_of(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08d}"


def mark_best(folder: Path, state: TrainState) -> None:
    if state.best_step is None:
        (folder / BEST).unlink(missing_ok=True)
    else:
        write_sealed(folder / BEST, {"step": state.best_step, "loss": state.best_loss})


def best_checkpoint(folder: Path) -> Path | None:
    """Return the checkpoint with the lowest validation loss so far, or None if none was marked."""
    if not (folder / BEST).exists():
        return None
    try:
        best = read_sealed(folder / BEST) or {}
        step = int(best["step"])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"'{folder / BEST}' must name the best step, and is damaged; 'attractor train --resume "
            f"{shlex.quote(str(folder.parent))}' writes it anew, or give --checkpoint last"
        ) from error
    path = checkpoint_of(folder, step)
    return path if path.exists() else None


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the complete checkpoints, oldest first."""
    return sorted((path for path in folder.glob("step-*") if re.fullmatch(r"step-\d{8,}", path.name)), key=_step_of)


def _step_of(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def drop_old(folder: Path, keep: int, state: TrainState) -> None:
    """Keep the best checkpoint, the last good one, and the newest `keep` ones up to the step of the run.

    A rollback has left later checkpoints behind. A rollback to the good one makes the checkpoint that was the best at
    that time the best again, so that one is kept, too.
    """
    checkpoints = list_checkpoints(folder)
    newest = [path for path in checkpoints if _step_of(path) <= state.step][-keep:]
    kept: set[Path | None] = {*newest, best_checkpoint(folder)}
    if state.good_step is not None:
        good = checkpoint_of(folder, state.good_step)
        kept |= {good, *_named_by(good, "best_step")}
    for path in [path for path in reversed(checkpoints) if path not in kept]:
        remove_checkpoint(path)


def _named_by(checkpoint: Path, field: str) -> list[Path]:
    """Return the checkpoint whose step the state of this one names, if it names one."""
    try:
        step = from_json((checkpoint / "state.json").read_bytes()).get(field)
    except (OSError, ValueError):  # it is missing or damaged
        return []
    return [] if step is None else [checkpoint_of(checkpoint.parent, step)]


def superfluous(run: Path, keep: str, finished: bool) -> list[Path]:
    """Return the checkpoints of a run that can go if it keeps its `best` one, its `last` one, or `none`.

    What lies behind a link is another's.

    If no best one was marked, the last one takes its place. An unfinished run always keeps its last one to resume from,
    and its last good one.
    """
    is_link = (run / "checkpoints").is_symlink()
    checkpoints = [] if is_link else [path for path in list_checkpoints(run / "checkpoints") if not path.is_symlink()]
    last = set(checkpoints[-1:])
    kept = {"best": {best_checkpoint(run / "checkpoints")} - {None} or last, "last": last, "none": set()}[keep]
    to_resume = () if finished else (*last, *(good for path in last for good in _named_by(path, "good_step")))
    return [path for path in checkpoints if path not in kept and path not in to_resume]


def replace_checkpoint(complete: Path, target: Path) -> None:
    """Give a complete checkpoint its final name, and only then remove an earlier checkpoint of this name.

    A resumed run repeats steps, so there may be one.
    """
    replaced = target.with_name(f"{REPLACED}{target.name}")
    if os.path.lexists(target):
        target.rename(replaced)
    complete.rename(target)
    flush_to_disk(target.parent)
    with suppress(OSError):
        remove(replaced)


def restore_replaced(folder: Path) -> None:
    """Give its name back to a checkpoint that was set aside for a new one, if the new one was never completed."""
    for path in folder.glob(f"{REPLACED}*"):
        target = folder / path.name.removeprefix(REPLACED)
        if not os.path.lexists(target):
            path.rename(target)


def remove_checkpoint(path: Path) -> None:
    """Rename a checkpoint to a hidden name, then remove it, so that a kill leaves no half of it."""
    remove(path.rename(path.with_name(f"{REMOVING}{path.name}")))


def verify(path: Path) -> None:
    """Refuse a checkpoint whose files differ from their checksums, or that belongs to another run or format."""
    manifest = _read_manifest(path / MANIFEST)
    if manifest["format"] != FORMAT:
        raise InputError(
            f"checkpoint format must be {FORMAT}, got {manifest['format']} in '{path}'; use the version of attractor "
            "that wrote it"
        )
    here, there = _hash_of_run(path.parent), manifest["config_hash"]
    if here != there:
        raise InputError(
            f"'{path}' must be a checkpoint of this run's configuration {here}, and it is one of {there}; "
            "move it back to the run it came from"
        )
    for name in changed(path, manifest["sha256"]):
        fault = CHANGED if (path / name).exists() else "is missing"
        raise DamagedCheckpointError(f"'{path / name}' {fault}")


def _read_manifest(path: Path) -> dict[str, Any]:
    """Return a manifest of any format, and refuse even a changed byte that changes no value."""
    try:
        text = path.read_bytes().decode()
        manifest = from_json(text)
        intact = seal_holds(manifest) and text == in_json(manifest)
    except (OSError, ValueError, AttributeError) as error:
        raise DamagedCheckpointError(f"'{path}' is missing or unreadable") from error
    if not intact:
        raise DamagedCheckpointError(f"'{path}' {CHANGED}")
    return manifest


def _hash_of_run(folder: Path) -> str:
    """Return the hash of the configuration of the run whose checkpoints are in `folder`."""
    return config_hash(RunFolder.open(folder.parent).config)


def newest_intact(folder: Path, warn: Callable[[str], None], set_damage_aside: bool = False) -> Path | None:
    """Return the newest intact checkpoint, and warn of each damaged one that is passed over.

    With `set_damage_aside`, as where a run is resumed, damaged ones get names that end in `.damaged`. Without any
    checkpoint return None. If all are damaged, refuse: a new start would overwrite what a copy may restore.
    """
    damages: dict[Path, DamagedCheckpointError] = {}
    for path in reversed(list_checkpoints(folder)):
        try:
            verify(path)
        except DamagedCheckpointError as error:
            damages[path] = error
        else:
            for damaged, damage in damages.items():
                kept = f"it is kept as {set_aside(damaged).name}; " if set_damage_aside else ""
                warn(f"damaged checkpoint: {damage}; {kept}using {path.name} before it")
            return path
    if damages:
        raise InputError(
            f"'{folder}' must hold an intact checkpoint, and all {len(damages)} are damaged, the newest because "
            f"{next(iter(damages.values()))}; restore one from a copy, or remove '{folder.parent}' to start anew"
        )
    return None


@contextmanager
def foreign_refused(path: Path) -> Iterator[None]:
    """Say in one line that a checkpoint has intact files which no run of this configuration has written."""
    try:
        yield
    except (InputError, RunStopped, OSError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # the libraries that load it raise many classes
        is_program = type(error).__name__ == "UnpicklingError"  # torch advises to execute it
        reason = "it is a program, not tensors alone" if is_program else str(error).strip().partition("\n")[0]
        raise InputError(
            f"'{path}' must hold the state of its run, and cannot be loaded ({reason}); restore it from a copy"
        ) from error


def load_weights(path: Path, model: nn.Module) -> None:
    """Load the weights of a checkpoint into a model of the same configuration, and refuse a damaged checkpoint."""
    verify_or_refuse(path)
    with foreign_refused(path):
        load_model(model, str(path / "model.safetensors"))


def verify_or_refuse(path: Path) -> None:
    try:
        verify(path)
    except DamagedCheckpointError as damage:
        raise InputError(f"damaged checkpoint: {damage}; choose the other one, best or last") from damage


def read_checkpoint(
    path: Path, device: torch.device | str = "cpu"
) -> tuple[dict[str, Tensor], dict[str, Any], TrainState]:
    """Return the weights, the other tensors and the state of a verified checkpoint."""
    with foreign_refused(path):
        weights = load_file(path / "model.safetensors", device=str(device))
        tensors = torch.load(path / "optimizer.pt", map_location=device, weights_only=True)
        return weights, tensors, state_of(path)


def state_of(path: Path) -> TrainState:
    """Return the state of a verified checkpoint."""
    stored = from_json((path / "state.json").read_bytes())
    known = {f.name for f in fields(TrainState)}
    if type(stored["step"]) is not int or type(stored["tokens"]) is not int:
        raise ValueError("step and tokens must be whole numbers")
    return TrainState(**({"recorded_step": None} | {key: value for key, value in stored.items() if key in known}))


def write_tensors(path: Path, tensors: dict[str, Any]) -> None:
    """Save tensors, and raise the error of the file rather than torch's, which does not give the reason."""
    try:
        with path.open("wb") as file:
            torch.save(tensors, file)
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise
