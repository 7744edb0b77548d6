"""Set damaged files aside when a run is resumed, and keep all that is intact.

Nothing is deleted. A damaged file keeps its content under a name that ends in `.damaged`, and so does a damaged
checkpoint (`checkpoint.newest_intact`).
"""

from pathlib import Path

from attractor.errors import InputError
from attractor.files import open_regular, set_aside, write_bytes
from attractor.files.seals import CHANGED, read_object, read_sealed
from attractor.runs.machine import environment
from attractor.runs.run_folder import ENVIRONMENT, METRICS, SEAL, SUMMARY, RunFolder
from attractor.train.checkpoint import BEST, mark_best, newest_intact, state_of

OBJECTS = (SEAL, SUMMARY, ENVIRONMENT, "probes.json", "samples.json", f"checkpoints/{BEST}")
REPLACEABLE = (SUMMARY, ENVIRONMENT, "tokenizer.json", "tokenizer_settings.json")  # sealed, and not needed to go on


def is_intact(run: RunFolder) -> bool:
    """Return whether all small files of a run can be read and are those that were sealed."""
    try:
        run.refuse_altered()
        for _ in run.records():
            pass
        for name in OBJECTS:
            _read(run.path / name)
    except InputError:
        return False
    return True


def set_damage_aside(run: RunFolder) -> list[str]:
    """Set aside every damaged small file of a run that this process holds, and return a line about each of them."""
    lines = [line for name in OBJECTS for line in _object_aside(run, run.path / name)]
    lines += [*_metrics_aside(run), *_best_of_finished(run), *_changed_aside(run)]
    if not run.finished and not (run.path / ENVIRONMENT).exists():
        run.write(ENVIRONMENT, environment())
    return lines


def _read(path: Path) -> None:
    read_object(path) if path.name == SEAL else read_sealed(path)


def _object_aside(run: RunFolder, path: Path) -> list[str]:
    try:
        _read(path)
        return []
    except InputError as error:
        fault = "its content changed" if CHANGED in str(error) else "the file must hold one JSON object"
    kept = set_aside(path).name
    run.unseal(path.name)
    return [f"{path.name}: {fault}; it is kept as {kept}{_consequence(path.name)}"]


def _consequence(name: str) -> str:
    return "; the run is finished anew" if name == SUMMARY else ""


def _metrics_aside(run: RunFolder) -> list[str]:
    """Keep the intact lines. A last line that a kill cut short is no damage, and is cut by whoever writes the next."""
    path = run.path / METRICS
    if not path.exists():
        return []
    with open_regular(path) as file:
        *whole, _torn = file.read().split(b"\n")
    intact = []
    for number, line in enumerate(whole, start=1):
        try:
            run.record(number, line)
        except InputError:
            continue
        intact.append(line + b"\n")
    if len(intact) == len(whole):
        return []
    kept = set_aside(path)
    write_bytes(path, b"".join(intact))
    return [f"{METRICS}: {len(whole) - len(intact)} of {len(whole)} lines are damaged; the file is kept as {kept.name}"]


def _best_of_finished(run: RunFolder) -> list[str]:
    """Write down again which checkpoint of a finished run is the best, as the newest intact one remembers it. A run
    that goes on does so itself."""
    if not run.finished or (run.checkpoints / BEST).exists():
        return []
    lines: list[str] = []
    newest = newest_intact(run.checkpoints, lines.append)
    if newest is not None:
        mark_best(run.checkpoints, state_of(newest))
        lines.append(f"{BEST}: written again from {newest.name}")
    return lines


def _changed_aside(run: RunFolder) -> list[str]:
    """Compare the files with the seal, and return a line about each file that differs.

    If a file is valid JSON but differs from what was sealed, nobody can tell which part of it is right. It is set aside
    if the run can do without it or make it anew. The metrics of a finished run stay as they are, and reports leave the
    run out."""
    if run.altered() == [SEAL]:
        return [f"{SEAL}: its content changed; it is kept as {set_aside(run.path / SEAL).name}"]
    lines = []
    for name in () if run.lacks_only_its_summary else run.altered():
        if name in REPLACEABLE or (name == METRICS and not run.finished):
            path, fault = run.path / name, "the file is gone"
            if path.exists():
                fault = f"its content changed; it is kept as {set_aside(path).name}"
            lines.append(f"{name}: {fault}{_consequence(name)}")
            run.unseal(name)
    if altered := run.altered():
        lines.append(
            f"reports leave the run out: {', '.join(altered)} of '{run.path}' changed since the run was sealed, and "
            "nobody can tell which part is right; restore it from a copy, or train the run anew elsewhere"
        )
    return lines
