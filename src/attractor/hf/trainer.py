"""Control attention logits inside Hugging Face's Trainer by a callback.

    Trainer(..., callbacks=[LogitControl(quack=1.0)])            or qk_clip=100.0, or both

The callback attaches when training begins, after the Trainer has created, wrapped and perhaps resumed its optimizer.
Where training begins again without having ended (a smaller batch size found, an interrupt), it attaches anew. QuacK's
state is written into every checkpoint of the Trainer and loaded when it resumes.

The callback logs `qk_clips` (heads clipped so far), `largest_logit` of the last step or, where no head came near the
threshold, a bound on it (`largest_logit_at_most`), and the `smallest_qk_rate` and `largest_qk_rate` of all heads. They
are in `state.log_history`. The Trainer calls the reporters of `report_to` before all callbacks that it is given, so
TensorBoard and others show these numbers only if their callback follows LogitControl:

    TrainingArguments(..., report_to=[])    Trainer(..., callbacks=[LogitControl(quack=1.0), TensorBoardCallback()])
"""

import math
from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from attractor.control import FixedRates, HeadRates, QKClip, QuacK
from attractor.control.norms import NORMS
from attractor.errors import InputError, require, require_known

STATE_FILE = "logit_control.pt"


class LogitControl(TrainerCallback):
    """Attach QuacK with tau `quack`, or a fixed rate `qk_rate`, and QK-clip with threshold `qk_clip`.

    None leaves an intervention out. A Trainer that resumes from outside its output folder needs that checkpoint's path
    as `resume_from`. Where QuacK joins a training that began without it, `initial_norms` is the state of a QuacK of a
    fresh model. It gives way to the state of QuacK in the checkpoint that is resumed.
    """

    def __init__(
        self,
        quack: float | None = None,
        norm: str = "frobenius",
        qk_rate: float | None = None,
        qk_clip: float | None = None,
        resume_from: str | Path | None = None,
        initial_norms: Mapping[str, Any] | None = None,
    ) -> None:
        if quack is None and qk_rate is None and qk_clip is None:
            raise InputError("LogitControl must be given quack, qk_rate or qk_clip, and none was; give quack=1.0")
        for name, value, usual in (("quack", quack, 1.0), ("qk_rate", qk_rate, 0.1), ("qk_clip", qk_clip, 100.0)):
            is_number = isinstance(value, Real) and not isinstance(value, bool) and 0 < value < math.inf
            require(value is None or is_number, name, "a positive and finite number, or None", value, f"give {usual}")
        require_known("norm of QuacK", norm, NORMS)
        if initial_norms is not None and quack is None:
            raise InputError("initial_norms must be left out without quack, since only QuacK has them; give quack=1.0")
        if quack is not None and qk_rate is not None:
            raise InputError(f"qk_rate must be left out with quack, got {qk_rate!r}; give one of the two")
        self.quack, self.norm, self.qk_rate, self.qk_clip = quack, norm, qk_rate, qk_clip
        self.resume_from = None if resume_from is None else Path(resume_from)
        self.initial_norms = initial_norms
        self.rates: HeadRates | None = None
        self.clip: QKClip | None = None
        self._clips_before = 0.0  # those of the training that is resumed

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        optimizer: Any = None,
        **_: Any,
    ) -> None:
        assert model is not None
        self._remove()
        self._clips_before = next((log["qk_clips"] for log in reversed(state.log_history) if "qk_clips" in log), 0.0)
        try:
            self._attach(args, state, model, optimizer)
        except BaseException:
            self._remove()
            raise

    def _attach(self, args: TrainingArguments, state: TrainerState, model: nn.Module, optimizer: Any) -> None:
        if self.quack is not None:
            self.rates = QuacK(model, optimizer, self.quack, self.norm, self.initial_norms)
        elif self.qk_rate is not None:
            self.rates = FixedRates(model, optimizer, self.qk_rate)
        if self.qk_clip is not None:
            # All processes of a Trainer train the same layers, each on data of its own or with shards of the weights.
            group = torch.distributed.group.WORLD if args.world_size > 1 else ()
            self.clip = QKClip(model, optimizer, self.qk_clip, group)
        if self.rates is not None and state.global_step > 0:
            self._load(self.rates, self.resume_from or checkpoint_folder(args, state), state.global_step)

    def _load(self, rates: HeadRates, folder: Path, step: int) -> None:
        """Load the state in the checkpoint that is resumed, unless the control joins a training that began without."""
        if (folder / STATE_FILE).exists():
            rates.load_state_dict(torch.load(folder / STATE_FILE, map_location="cpu", weights_only=True))
            return
        can_join = self.initial_norms is not None or rates.state_dict().keys() == {"tau"}  # as fixed rates in fp32
        if can_join and self.resume_from is None:
            return
        next_step = "give LogitControl(resume_from=...) the checkpoint that is resumed"
        if self.quack is not None and self.resume_from is None:
            next_step += (
                ", or, if it was trained without QuacK, LogitControl(initial_norms=...) the state_dict() of a QuacK of "
                "a fresh model"
            )
        raise InputError(
            f"'{folder}' must hold {STATE_FILE}, which LogitControl writes beside every checkpoint, to resume at step "
            f"{step}; {next_step}"
        )

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self.rates is None:
            return
        stored = self.rates.state_dict()  # all processes take part, since weights may be sharded
        if state.is_world_process_zero:
            target = checkpoint_folder(args, state) / STATE_FILE
            unfinished = target.with_suffix(".writing")
            torch.save(stored, unfinished)
            unfinished.rename(target)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **_: Any,
    ) -> None:
        if logs is None:
            return
        numbers: dict[str, float] = {}
        if self.clip is not None:
            numbers["qk_clips"] = self._clips_before + self.clip.n_clipped
            if self.clip.last:
                logits = torch.cat([of_layer.logits for of_layer in self.clip.last.values()])
                exact = torch.cat([of_layer.exact for of_layer in self.clip.last.values()])
                largest, head = logits.max(0)
                numbers["largest_logit" if exact[head] else "largest_logit_at_most"] = float(largest)
        if self.rates is not None and self.rates.rates:
            rates = torch.cat([rates for of_layer in self.rates.rates.values() for rates in of_layer.values()])
            numbers |= {"smallest_qk_rate": float(rates.min()), "largest_qk_rate": float(rates.max())}
        logs.update(numbers)
        state.log_history[-1].update(numbers)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._remove()

    def _remove(self) -> None:
        for attached in (self.rates, self.clip):
            if attached is not None:
                attached.remove()
        self.rates = self.clip = None


def checkpoint_folder(args: TrainingArguments, state: TrainerState) -> Path:
    """Return the folder of the checkpoint of this step. In a search of hyperparameters, every trial has a folder of
    its own in the output folder, whose name callbacks are not told: the newest checkpoint is that of this trial."""
    output, name = Path(str(args.output_dir)), f"checkpoint-{state.global_step}"
    if not state.is_hyper_param_search:
        return output / name
    return max(output.glob(f"*/{name}"), key=lambda folder: folder.stat().st_mtime, default=output / name)
