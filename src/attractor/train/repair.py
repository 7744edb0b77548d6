"""Salvage a run whose files were damaged: set aside what cannot be read, and keep all that is intact.

Nothing is deleted. A damaged file keeps its content under a name that ends in `.damaged`, and the run then goes on from
its newest intact checkpoint, as after an interruption.
"""

import json
from pathlib import Path

from attractor.errors import InputError
from attractor.files import sealed, set_aside, write_json, write_text
from attractor.runs.run_folder import ENVIRONMENT, METRICS, SEAL, SUMMARY, RunFolder, read_object, read_sealed
from attractor.train.checkpoint import BEST, DamagedCheckpointError, list_checkpoints, verify

OBJECTS = (SEAL, SUMMARY, ENVIRONMENT, "probes.json", "samples.json", f"checkpoints/{BEST}")
REPLACEABLE = (SUMMARY, ENVIRONMENT, "tokenizer.json", "tokenizer_settings.json")  # sealed, and not needed to go on


def repair_run(path: Path) -> list[str]:
    """Set aside every damaged file of a run, and return a line about each of them."""
    run = RunFolder.open(path)  # a run without its configuration cannot be told from another
    with run.hold():
        lines = [line for name in OBJECTS for line in _repair_object(path / name)]
        lines += [*_repair_metrics(run), *_repair_checkpoints(run)]
        return [*lines, *_renew_best(run), *_compare_with_seal(run)]


def _repair_metrics(run: RunFolder) -> list[str]:
    path = run.path / METRICS
    if not path.exists():
        return []
    *whole, torn = path.read_bytes().split(b"\n")
    intact, n_damaged = [], int(bool(torn))
    for number, line in enumerate(whole, start=1):
        try:
            intact.append(json.dumps(run.record(number, line), ensure_ascii=False) + "\n")
        except InputError:
            n_damaged += 1
    if not n_damaged:
        return []
    kept = set_aside(path)
    write_text(path, "".join(intact))
    if not run.finished:
        run.seal()
    return [f"{METRICS}: {n_damaged} of {len(intact) + n_damaged} lines are damaged; the file is kept as {kept.name}"]


def _repair_checkpoints(run: RunFolder) -> list[str]:
    lines = []
    for path in list_checkpoints(run.checkpoints):
        try:
            verify(path)
        except DamagedCheckpointError as damage:
            lines.append(f"checkpoint {path.name}: {damage}; it is kept as {set_aside(path).name}")
        except InputError as error:  # the checkpoint of another run, or of another format
            lines.append(f"checkpoint {path.name}: {error}; it stays where it is")
    return lines


def _repair_object(path: Path) -> list[str]:
    if not path.is_file():
        return []
    try:
        read_object(path) if path.name == SEAL else read_sealed(path)
        return []
    except InputError as error:
        fault = "its content changed" if "changed" in str(error) else "the file must hold one JSON object"
    return [f"{path.name}: {fault}; it is kept as {set_aside(path).name}{_consequence(path.name)}"]


def _consequence(name: str) -> str:
    return "; the run is finished anew when it is resumed" if name == SUMMARY else ""


def _renew_best(run: RunFolder) -> list[str]:
    """Write down again which checkpoint is the best, as the newest intact one remembers it."""
    best, checkpoints = run.checkpoints / BEST, list_checkpoints(run.checkpoints)
    if best.exists() or not checkpoints:
        return []
    state = json.loads((checkpoints[-1] / "state.json").read_text(encoding="utf-8"))
    if state.get("best_step") is None:
        return []
    write_json(best, sealed({"step": state["best_step"], "loss": state["best_loss"]}))
    return [f"{BEST}: written again from {checkpoints[-1].name}"]


def _compare_with_seal(run: RunFolder) -> list[str]:
    """Compare the files with the seal, and return a line about each file that differs.

    If a file is valid JSON but differs from what was sealed, nobody can tell which part of it is right. It is set aside
    if the run can do without it or make it anew. The configuration, and the metrics of a finished run, stay as they
    are, and reports leave the run out."""
    if run.altered() == [SEAL]:
        return [f"{SEAL}: its content changed; it is kept as {set_aside(run.path / SEAL).name}"]
    lines = []
    for name in run.altered():
        if name in REPLACEABLE or (name == METRICS and not run.finished):
            if (run.path / name).exists():
                kept = set_aside(run.path / name).name
                lines.append(f"{name}: its content changed; it is kept as {kept}{_consequence(name)}")
            _unseal(run, name)
    if altered := run.altered():
        lines.append(
            f"reports leave the run out: {', '.join(altered)} of '{run.path}' changed since the run was sealed, and "
            "nobody can tell which part is right; restore it from a copy, or train the run anew elsewhere"
        )
    return lines


def _unseal(run: RunFolder, name: str) -> None:
    """Drop a file that was set aside from the seal of the others."""
    seal = read_object(run.path / SEAL) or {}
    write_json(run.path / SEAL, sealed({key: value for key, value in seal.items() if key not in (name, "checksum")}))
