"""Modules that were renamed: importing a former name warns and gives the module of the present name.

Version 0.2 removes the former names. A name that changed inside a module has its alias there."""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from warnings import warn

PRESENT_NAMES = {
    "attention.reparametrize": "attention.sigma_reparam",
    "corpus.portrait": "corpus.description_report",
    "evidence.bootstrap": "statistics.bootstrap",
    "evidence.configuration": "runs.configuration",
    "evidence.differences": "statistics.t_tests",
    "evidence.equivalence": "statistics.equivalence",
    "evidence.following": "runs.appended_lines",
    "evidence.further_seeds": "claims.further_seeds",
    "evidence.lock": "runs.lock",
    "evidence.machine": "runs.machine",
    "evidence.multiplicity": "statistics.multiplicity",
    "evidence.pilot": "claims.pilot",
    "evidence.planning": "claims.planning",
    "evidence.power": "statistics.power",
    "evidence.quantity": "runs.quantity",
    "evidence.readings": "claims.comparisons",
    "evidence.rules": "claims.rules",
    "evidence.run": "runs.run_folder",
    "evidence.sensitivity": "claims.sensitivity",
    "evidence.sequential": "statistics.sequential",
    "evidence.spread": "statistics.spread",
    "evidence.statistics": "statistics.intervals",
    "evidence.study": "runs.study_record",
    "evidence.verdicts": "claims.verdicts",
    "hf.imported": "hf.import_models",
    "models.plain_step": "models.fast_decoding",
    "models.streams": "models.residual_streams",
    "models.timescales": "models.block_pooling",
    "observe": "taps",
    "report.judged": "report.judged_study",
    "train.communication": "train.plan",
    "train.reading": "train.config",
}


class FormerNames(MetaPathFinder, Loader):
    """Find modules by their former names."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        present = PRESENT_NAMES.get(fullname.removeprefix("attractor."))
        if present is None or not fullname.startswith("attractor."):
            return None
        warn(f"{fullname} became attractor.{present}; 0.2 removes the former name", DeprecationWarning, stacklevel=2)
        return ModuleSpec(fullname, self)

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = import_module(f"attractor.{PRESENT_NAMES[module.__name__.partition('.')[2]]}")
