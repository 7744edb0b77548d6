"""Record the queries and keys of each layer that attends through a softmax, during one step.

    with ScoreRecorder(model) as scores:
        y, scored = scores.during(step, h)

Our attention layers are known by their type. In a model of transformers any module may call the table of attention
functions, so all modules are observed. Outside of a step nothing is recorded, so Jacobians are not affected.
"""

from collections.abc import Callable
from typing import Self

from torch import Tensor, nn

from attractor.control.heads import attention_view
from attractor.control.score_inputs import ScoreInputs, ScoreObserver, uses_table
from attractor.models.language_model import LanguageModel

Step = Callable[[Tensor], Tensor]


class ScoreRecorder:
    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._seen: dict[nn.Module, ScoreInputs] | None = None

    def __enter__(self) -> Self:
        ours = isinstance(self.model, LanguageModel)
        if ours:
            observed = [m for name, m in self.model.named_modules() if attention_view(name, m) is not None]
        else:
            observed = [m for m in self.model.modules() if uses_table(m)]
        self._observers = [ScoreObserver(module, self._see) for module in observed]
        return self

    def __exit__(self, *_: object) -> None:
        for observer in self._observers:
            observer.remove()

    def during(self, step: Step, h: Tensor) -> tuple[Tensor, dict[nn.Module, ScoreInputs]]:
        """Return the step's result and the score inputs by module, in order.

        A module that is called several times, as by a fixed-point solver, counts with its last call.
        """
        seen: dict[nn.Module, ScoreInputs] = {}
        self._seen = seen
        try:
            return step(h), seen
        finally:
            self._seen = None

    def _see(self, module: nn.Module, scored: ScoreInputs) -> None:
        if self._seen is not None:
            self._seen[module] = scored
