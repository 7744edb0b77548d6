"""Continue a study from its stored record: the record's runs count as finished and are not run again.

A record has the outcome and the curves of a run, but no weights. So a run from a record can be compared and plotted
like any other, but a probe that is added to the study later cannot measure it, unless the probe needs only the
configuration. Such probes measure every run of a record again, since the code that measured it may be older.
"""

import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from attractor.errors import InputError
from attractor.files import temporary_path
from attractor.files.seals import write_sealed
from attractor.runs.run_folder import ENVIRONMENT, RunFolder
from attractor.runs.study_record import PROBES_FILE, Outcome, StudyRecord
from attractor.study.launch import Job
from attractor.study.study import Probe


def take_over(
    record: StudyRecord, jobs: Sequence[Job], identities: Sequence[Mapping[str, Any]], probes: Sequence[Probe] = ()
) -> tuple[int, int]:
    """Write a run folder for each job that the record has an outcome of. Return how many of these jobs are finished
    now, and how many are not, since they were begun here before.

    The key of a run is a hash of its configuration and its data, so an outcome never stands for another run.
    """
    outcomes = {outcome.key: outcome for outcome in record.outcomes}
    again = {probe.name for probe in probes if probe.weights == "first"}
    recorded = []
    for job, identity in zip(jobs, identities, strict=True):
        if (outcome := outcomes.get(job.path.name)) is not None:
            recorded.append(job)
            if not job.path.exists():
                _write_run(job, identity, outcome, record.environments, again)
    if not recorded:
        data = sorted({str(outcome.summary["data"]) for outcome in outcomes.values() if "data" in outcome.summary})
        raise InputError(
            f"from-record must hold runs of this study, and none of its {record.finished} runs has the configuration "
            "and the data of a planned one; give the record of this study and scale, and prepare the data of its runs"
            f"{': ' if data else ''}{' or '.join(data)}"
        )
    n_finished = sum(job.finished for job in recorded)
    return n_finished, len(recorded) - n_finished


def _write_run(
    job: Job,
    identity: Mapping[str, Any],
    outcome: Outcome,
    environments: Mapping[str, list[str]],
    again: Collection[str],
) -> None:
    unfinished = temporary_path(job.path)
    run = RunFolder.create(unfinished, identity)
    run.write(ENVIRONMENT, environments)  # a list of the runs' values for each field
    for line in _metrics(outcome, job.config.tokens_per_step):
        run.append(line)
    probes = dict(outcome.probes)
    if "done" in probes:
        probes["done"] = [name for name in probes["done"] if name not in again]
    write_sealed(unfinished / PROBES_FILE, probes)
    run.write_summary(outcome.summary)
    try:
        unfinished.rename(job.path)
    except OSError:  # another copy of the command wrote the same run
        shutil.rmtree(unfinished, ignore_errors=True)
        if not job.path.exists():
            raise


def _metrics(outcome: Outcome, tokens_per_step: int) -> Iterator[dict[str, Any]]:
    for name, curve in (("loss", outcome.training), ("valid_loss", outcome.curve)):
        for tokens, loss in curve:
            yield {"step": tokens // tokens_per_step, "tokens": tokens, name: loss}
