"""attractor: train, compare and measure attention mechanisms, and tell whether a difference between them is real.

    attractor.attention.build("coupled-euler", d_model=512, n_heads=8)      one layer, for a model of your own
    attractor.models.SIZES["small"].replace(attention="gated").build()      a language model on any mechanism
    with attractor.capture("weights") as seen: ...                          what happens inside
    attractor.load("runs/gated").plot()                                     what a stored run left

Everything is imported when it is first named, so that `import attractor` takes no time.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what __getattr__ finds, for editors and type checkers
    from attractor import analysis as analysis
    from attractor import attention as attention
    from attractor import control as control
    from attractor import equilibrium as equilibrium
    from attractor import evaluate as evaluate
    from attractor import hf as hf
    from attractor import models as models
    from attractor import report as report
    from attractor import study as study
    from attractor import tasks as tasks
    from attractor import train as train
    from attractor.attention.hooks import attention_maps as attention_maps
    from attractor.attention.hooks import capture as capture
    from attractor.attention.hooks import tap as tap
    from attractor.attention.presets import PRESETS as PRESETS
    from attractor.runs.observed import judge as judge
    from attractor.study.results import RunResult as RunResult
    from attractor.study.results import RunsResult as RunsResult
    from attractor.study.results import StudyResult as StudyResult
    from attractor.study.results import compare as compare
    from attractor.study.results import load as load
    from attractor.study.results import train_model as train_model
    from attractor.train.parameters import parameter_groups as parameter_groups

_ROOMS = (
    "analysis",
    "attention",
    "claims",
    "control",
    "equilibrium",
    "evaluate",
    "hf",
    "models",
    "report",
    "runs",
    "study",
    "tasks",
    "train",
    "verdict",
)
_MODULE_OF = {
    "PRESETS": "attractor.attention.presets",
    "RunResult": "attractor.study.results",
    "RunsResult": "attractor.study.results",
    "StudyResult": "attractor.study.results",
    "attention_maps": "attractor.attention.hooks",
    "capture": "attractor.attention.hooks",
    "compare": "attractor.study.results",
    "judge": "attractor.runs.observed",
    "load": "attractor.study.results",
    "parameter_groups": "attractor.train.parameters",
    "tap": "attractor.attention.hooks",
    "train_model": "attractor.study.results",
}
# These need safetensors, too.
_PARTS_OF_TRAINING = (
    "RunResult",
    "StudyResult",
    "compare",
    "evaluate",
    "load",
    "study",
    "train_model",
)

__all__ = sorted((*_ROOMS, *_MODULE_OF))


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version  # this takes longer than all else here

        return version("attractor")
    try:
        if name in _ROOMS:
            return import_module(f"attractor.{name}")
        if name in _MODULE_OF:
            return getattr(import_module(_MODULE_OF[name]), name)
    except ModuleNotFoundError as error:
        from attractor.errors import part_not_installed

        extra = "train" if name in _PARTS_OF_TRAINING else "torch"
        if (missing := part_not_installed(error, extra, f"attractor.{name}")) is None:
            raise
        raise missing from None
    raise AttributeError(f"module 'attractor' has no attribute '{name}'")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
