"""Our models and tiny Hugging Face models are trained with logit control in Hugging Face's Trainer."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from foreign import COMMON, MODELS
from short_training import trainer, weights
from torch import nn

from attractor.control import FixedRates, QuacK
from attractor.errors import InputError
from attractor.hf import LogitControl
from attractor.hf.auto_classes import AttractorForCausalLM
from attractor.models import TransformerConfig
from tiers import fast_alone

NAMES = ["ours", "llama", "qwen2", "qwen3", "deepseek-v3"]  # plain, with biases, with QK-norm, with latents
THRESHOLD = 1e-3  # below the logits of random weights, so that heads are clipped


def build(name: str) -> nn.Module:
    if name == "ours":
        config = TransformerConfig(vocab_size=37, d_model=32, n_heads=4, n_layers=2, d_ff=48, max_seq_len=24)
        return AttractorForCausalLM.of(config.build(0))
    model_type, fields = MODELS[name]
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(model_type, **COMMON | fields)
    return transformers.AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize("name", fast_alone(NAMES, "ours"))
def test_a_controlled_training_resumes_exactly(name: str, tmp_path: Path) -> None:
    """Criterion: six steps at once and twice three steps end with the same weights, which differ from those without
    control, and heads were clipped. Afterwards QuacK is detached from the optimizer."""
    control = {"quack": 0.5} | ({} if name == "qwen3" else {"qk_clip": THRESHOLD})
    runs = []
    for folder, steps, callbacks in (
        ("whole", 6, [LogitControl(**control)]),
        ("parts", 3, [LogitControl(**control)]),
        ("parts", 6, [LogitControl(**control)]),
        ("bare", 6, []),
    ):
        runs.append(trainer(build(name), tmp_path / folder, steps, *callbacks))
        runs[-1].train(resume_from_checkpoint=folder == "parts" and steps == 6)
    whole, resumed, bare = (weights(runs[number].model) for number in (0, 2, 3))
    assert all(torch.equal(value, resumed[key]) for key, value in whole.items())
    assert any(not torch.equal(value, bare[key]) for key, value in whole.items())
    assert name == "qwen3" or [log["qk_clips"] for log in runs[0].state.log_history if "qk_clips" in log][-1] > 0
    FixedRates(runs[0].model, runs[0].optimizer, 0.5).remove()  # refused if QuacK is still attached


def test_impossible_settings_and_resumptions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="must be given quack, qk_rate or qk_clip"):
        LogitControl()
    with pytest.raises(InputError, match="qk_rate must be left out with quack"):
        LogitControl(quack=1.0, qk_rate=0.1)
    for wrong in ({"quack": "1"}, {"qk_rate": 0.0}, {"qk_clip": True}, {"qk_clip": float("nan")}):
        with pytest.raises(InputError, match=f"^{next(iter(wrong))} must be a positive and finite number, or None"):
            LogitControl(**wrong)
    with pytest.raises(InputError, match="unknown norm of QuacK 'spektral'; did you mean 'spectral'"):
        LogitControl(quack=1.0, norm="spektral")
    with pytest.raises(InputError, match="initial_norms must be left out without quack"):
        LogitControl(qk_clip=1.0, initial_norms={})
    trainer(build("llama"), tmp_path, 3).train()  # without the callback, so without its file
    refused = trainer(build("llama"), tmp_path, 6, LogitControl(quack=1.0))
    with pytest.raises(InputError, match=r"must hold logit_control.pt.*resume_from.*initial_norms"):
        refused.train(resume_from_checkpoint=True)
    QuacK(refused.model, refused.optimizer).remove()  # refused if the callback's is still attached


def test_a_control_joins_a_training_that_began_without_it(tmp_path: Path) -> None:
    """Criterion: QuacK's first rates are those of the initial norms that it is given, below 1 as the norms have grown.
    A second resumption takes the state of its checkpoint, not the norms given. Fixed rates need no norms."""
    trainer(build("llama"), tmp_path, 3).train()
    fixed = trainer(build("llama"), tmp_path, 4, LogitControl(qk_rate=0.1), save_strategy="no")
    fixed.train(resume_from_checkpoint=True)
    assert rates_of(fixed) == [pytest.approx((0.1, 0.1))]

    first = build("llama")
    fresh = QuacK(first, torch.optim.SGD(first.parameters())).state_dict()
    joined = trainer(build("llama"), tmp_path, 6, LogitControl(quack=1.0, initial_norms=fresh))
    joined.train(resume_from_checkpoint=True)
    assert rates_of(joined)[0][1] < 1
    doubled = {layer: {part: 2 * norms for part, norms in parts.items()} for layer, parts in fresh["initial"].items()}
    again = LogitControl(quack=1.0, initial_norms=fresh | {"initial": doubled})
    resumed = trainer(build("llama"), tmp_path, 7, again)
    resumed.train(resume_from_checkpoint=True)
    assert rates_of(resumed)[:3] == rates_of(joined)
    assert rates_of(resumed)[3][1] < 1


def rates_of(run: Any) -> list[tuple[float, float]]:
    """The smallest and the largest rate of every logged step."""
    logs = [log for log in run.state.log_history if "loss" in log and "smallest_qk_rate" in log]
    return [(log["smallest_qk_rate"], log["largest_qk_rate"]) for log in logs]


def test_a_resumed_training_counts_on_and_reporters_after_the_control_see_the_numbers(tmp_path: Path) -> None:
    """Criterion: the number of clips does not fall where training is resumed. A callback that follows LogitControl
    gets the numbers that the history has."""
    reported: list[float] = []

    class Reporter(transformers.TrainerCallback):
        def on_log(self, *_: Any, logs: dict[str, float], **__: Any) -> None:
            reported.extend(value for name, value in logs.items() if name == "qk_clips")

    trainer(build("llama"), tmp_path, 3, LogitControl(qk_clip=THRESHOLD)).train()
    run = trainer(build("llama"), tmp_path, 5, LogitControl(qk_clip=THRESHOLD))
    run.add_callback(Reporter())
    run.train(resume_from_checkpoint=True)
    counts = [log["qk_clips"] for log in run.state.log_history if "qk_clips" in log]
    assert counts == sorted(counts)
    assert counts[0] > 0
    assert reported[:2] == counts[3:5]


def test_quack_writes_its_state_into_the_folder_of_a_trial(tmp_path: Path) -> None:
    """Criterion: in a search of hyperparameters, the state lies in the newest checkpoint of the step."""
    control, run = LogitControl(quack=1.0), trainer(build("llama"), tmp_path, 3)
    folders = [tmp_path / f"run-{trial}" / "checkpoint-3" for trial in range(2)]
    for age, folder in zip((10, 0), folders, strict=True):
        folder.mkdir(parents=True)
        os.utime(folder, (1e9 - age, 1e9 - age))
    run.create_optimizer()
    state = transformers.TrainerState(is_hyper_param_search=True)
    control.on_train_begin(run.args, state, run.control, run.model, run.optimizer)
    state.global_step = 3
    control.on_save(run.args, state, run.control)
    assert [[file.name for file in folder.iterdir()] for folder in folders] == [[], ["logit_control.pt"]]
    control.on_train_begin(run.args, state, run.control, run.model, run.optimizer)
    control.on_train_end(run.args, state, run.control)
