"""The folder of a race: its plan in race.json, the outcomes of its runs in outcomes.jsonl, and their logs.

The plan is sealed and on the disk before the first run starts. An outcome is one appended line. It is on the disk
before it counts, and a line that a kill left unfinished is no outcome, so its run starts anew.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from attractor.errors import InputError
from attractor.files import flush_to_disk
from attractor.files.seals import CHANGED, read_object, seal_holds, without_checksum, write_sealed
from attractor.verdict.race import BASELINE, EndedRun, Race, RacePlan

PLAN = "race.json"
OUTCOMES = "outcomes.jsonl"
NEXT_STEP = "restore it, or race in another folder (--out)"


def open_race(folder: Path, plan: RacePlan, commands: Mapping[str, str], retry_failed: bool = False) -> Race:
    """Return the race of a folder with these rows as well, after its plan was written.

    A plan without any value yet may still be changed, since nothing was seen.
    """
    stored = read_plan(folder)
    ended = [] if stored is None else read_outcomes(folder, stored)
    with_values = {run.row for run in ended if run.value is not None}
    if stored is not None and (differing := stored.differing(plan)):
        if with_values:
            name = differing[0]
            raise InputError(
                f"{name} must be as in the plan of '{folder}', which is {getattr(stored, name)!r}, got "
                f"{getattr(plan, name)!r}; repeat the earlier command, or race in another folder (--out)"
            )
        stored, ended = None, []
        (folder / OUTCOMES).unlink(missing_ok=True)
    joined = (plan if stored is None else stored).with_ideas(commands, with_values)
    if not joined.ideas:
        raise InputError("row must be given at least once; add --row NAME='python train.py --seed {seed}'")
    if joined != stored:
        folder.mkdir(parents=True, exist_ok=True)
        write_sealed(folder / PLAN, joined.to_dict())
        flush_to_disk(folder)
    kept = (run for run in ended if run.command == joined.command(run.row))  # a row's mended command starts anew
    return Race(joined, (run for run in kept if run.value is not None or not retry_failed))


def read_plan(folder: Path) -> RacePlan | None:
    path = folder / PLAN
    try:
        stored = read_object(path)
        if stored is None or seal_holds(stored):
            return None if stored is None else RacePlan.from_dict(without_checksum(stored))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"'{path}' must hold the plan of a race, and is damaged ({error}); {NEXT_STEP}") from error
    raise InputError(f"'{path}' {CHANGED}; {NEXT_STEP}")


def read_outcomes(folder: Path, plan: RacePlan) -> list[EndedRun]:
    """Return the recorded outcomes, and remove an unfinished last line."""
    path = folder / OUTCOMES
    if not path.exists():
        return []
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        os.truncate(path, len(whole))
    rows = {BASELINE, *(idea.name for idea in plan.ideas)}
    try:
        ended = {run.key: run for run in (EndedRun.from_dict(json.loads(line)) for line in whole.splitlines())}
        assert rows.issuperset(run.row for run in ended.values()), "a row that is not in the plan"
        assert all(1 <= run.seed <= plan.max_seeds for run in ended.values()), "a seed that is not in the plan"
    except (ValueError, TypeError, KeyError, AttributeError, AssertionError) as error:
        raise InputError(f"'{path}' must hold a run's outcome a line, and is damaged ({error}); {NEXT_STEP}") from error
    return list(ended.values())


def append_outcome(folder: Path, run: EndedRun) -> None:
    path = folder / OUTCOMES
    is_new = not path.exists()
    with path.open("ab") as file:
        file.write(json.dumps(run.to_dict()).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    if is_new:
        flush_to_disk(folder)
