"""Our models train in Hugging Face's Trainer and with Accelerate, and their loss does not depend on how a batch is
split."""

import copy
from pathlib import Path
from typing import Any

import accelerate
import pytest
import torch
import transformers
from short_training import examples, trainer, weights
from torch import Tensor
from torch.utils.data import DataLoader

from attractor.hf.auto_classes import AttractorForCausalLM, AttractorForSequenceClassification
from attractor.hf.trainer import LogitControl
from attractor.kernels import cross_entropy
from attractor.models import FastSlowConfig, ImportedConfig, TransformerConfig
from attractor.models.config import ModelConfig
from attractor.models.language_model import LanguageModel

SMALL: dict[str, Any] = {"vocab_size": 37, "d_model": 32, "n_heads": 4, "d_ff": 48, "max_seq_len": 24}
CONFIGS: dict[str, ModelConfig[LanguageModel]] = {
    "standard": TransformerConfig(**SMALL, n_layers=2),
    "z-loss": TransformerConfig(**SMALL, n_layers=2, positions="rope", z_loss=0.1),
    "coupled-euler": TransformerConfig(**SMALL, n_layers=2, positions="rope", attention="coupled-euler"),
    "fast-slow": FastSlowConfig(**SMALL, fixed_point_loss=0.1),
}


def around(name: str) -> AttractorForCausalLM:
    return AttractorForCausalLM.of(CONFIGS[name].build(0))


def batch(n: int = 6) -> dict[str, Tensor]:
    return {name: torch.stack([example[name] for example in examples(n)]) for name in ("input_ids", "labels")}


def gradients(model: torch.nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", CONFIGS)
def test_the_loss_is_that_of_the_model_on_the_next_tokens(name: str) -> None:
    """Criterion: in training, the loss is that of the model itself on shifted targets plus its auxiliary loss. In
    evaluation, it equals Hugging Face's own loss of the logits."""
    model = around(name)
    tokens, labels = batch().values()
    ours, aux_loss = model.model.train().loss(tokens[:, :-1], labels[:, 1:])
    assert (aux_loss > 0) == (name in ("z-loss", "fast-slow"))
    out = model.train()(tokens, labels=labels)
    if name in ("standard", "coupled-euler"):  # an auxiliary loss would also cover the last position
        torch.testing.assert_close(out.loss, ours + aux_loss)
    assert out.logits is None
    assert model(tokens, labels=labels, skip_logits=False).logits.shape == (6, 12, 37)
    out = model.eval()(tokens, labels=labels)
    torch.testing.assert_close(out.loss, model.loss_function(out.logits, labels, 37))


@pytest.mark.parametrize("name", CONFIGS)
def test_parts_of_a_batch_add_up_to_the_whole(name: str) -> None:
    """Criterion: losses and gradients of the parts add up to those of the batch, even if a part scores few positions or
    none. With an auxiliary loss, which is a mean over sequences, this holds where all parts score equally many."""
    tokens, labels = batch().values()
    if name in ("z-loss", "fast-slow"):
        labels = tokens.clone()
    else:
        labels[2:4] = -100
    n_items = (labels[:, 1:] != -100).sum()
    whole, parts = around(name).train(), around(name).train()
    loss = whole(tokens, labels=labels).loss
    loss.backward()
    total = torch.zeros(())
    for rows in (slice(0, 2), slice(2, 4), slice(4, 6)):
        part = parts(tokens[rows], labels=labels[rows], num_items_in_batch=n_items).loss
        part.backward()
        total += part.detach()
    torch.testing.assert_close(total, loss.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradients(parts), gradients(whole), rtol=1e-4, atol=1e-6)


def test_a_part_without_scored_positions_has_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Criterion: the loss and all gradients are exactly 0, not NaN, with and without computing the logits in chunks."""
    tokens, _ = batch().values()
    for small in (cross_entropy.SMALL, 0):
        monkeypatch.setattr(cross_entropy, "SMALL", small)
        model = around("standard").train()
        loss = model(tokens, labels=torch.full_like(tokens, -100), num_items_in_batch=torch.tensor(10)).loss
        loss.backward()
        assert loss == 0
        assert all((gradient == 0).all() for gradient in gradients(model).values())


@pytest.mark.parametrize("name", ["coupled-euler", "fast-slow"])
def test_recomputed_activations_change_nothing(name: str) -> None:
    tokens, labels = batch().values()
    by_checkpointing = []
    is_renamed = hasattr(AttractorForCausalLM, "activation_checkpointing_enable")  # not yet in transformers 5.17
    feature = "activation_checkpointing" if is_renamed else "gradient_checkpointing"
    for enabled in (False, True):
        model = around(name).train()
        if enabled:
            getattr(model, f"{feature}_enable")()
            assert model.model.activation_checkpointing
            assert getattr(model, f"is_{feature}")
        model(tokens, labels=labels).loss.backward()
        by_checkpointing.append(gradients(model))
        getattr(model, f"{feature}_disable")()
        assert not model.model.activation_checkpointing
    without, with_checkpointing = by_checkpointing
    assert all(torch.equal(value, with_checkpointing[key]) for key, value in without.items())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["coupled-euler", "fast-slow"])
def test_the_trainer_resumes_exactly(name: str, tmp_path: Path) -> None:
    """Criterion: six steps at once and twice three steps end with the same bits. The loss falls in training, and
    `evaluate` returns a lower one than that of the first step, too."""
    whole = trainer(around(name), tmp_path / "whole", 6)
    whole.train()
    losses = [log["loss"] for log in whole.state.log_history if "loss" in log]
    assert losses[-1] < losses[0]
    assert whole.evaluate()["eval_loss"] < losses[0]
    trainer(around(name), tmp_path / "parts", 3).train()
    resumed = trainer(around(name), tmp_path / "parts", 6)
    resumed.train(resume_from_checkpoint=True)
    end = weights(resumed.model)
    assert all(torch.equal(value, end[key]) for key, value in weights(whole.model).items())


def test_the_trainer_accumulates_gradients(tmp_path: Path) -> None:
    """Criterion: batches in halves, which score different numbers of positions, give the final weights of whole
    batches."""
    ends = []
    for size, n_parts in ((4, 1), (2, 2)):
        cut = {"per_device_train_batch_size": size, "gradient_accumulation_steps": n_parts}
        plain = {"optim": "sgd", "max_grad_norm": 0.0, "save_strategy": "no"}
        run = trainer(around("standard"), tmp_path, 3, **cut, **plain)
        run.train()
        ends.append(weights(run.model))
    torch.testing.assert_close(*ends, rtol=1e-4, atol=1e-6)


class Interrupt(transformers.TrainerCallback):
    """A callback that raises the error after the second step of the first training, so that `on_train_end` is never
    called. Ctrl-C and a GPU that runs out of memory do the same."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error: type[BaseException] | None = error

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.error is not None and state.global_step == 2:
            error, self.error = self.error, None
            raise error("out of memory")


def test_control_is_attached_again_where_training_begins_again(tmp_path: Path) -> None:
    """Criterion: after an interrupt, a second `train()` attaches the control to its new optimizer, once. The largest
    logit and the rates are logged, and afterwards nothing is attached."""
    control = LogitControl(quack=0.5, qk_clip=1e-3)
    run = trainer(around("standard"), tmp_path, 4, control, Interrupt(KeyboardInterrupt), save_strategy="no")
    with pytest.raises(KeyboardInterrupt):
        run.train()
    first = control.rates
    assert first is not None
    run.optimizer = run.lr_scheduler = None
    run.train()
    assert control.rates is None
    assert control.clip is None
    assert not any(optimizer._optimizer_step_post_hooks for optimizer in first.optimizers)
    log = next(entry for entry in reversed(run.state.log_history) if "qk_clips" in entry)
    assert log["largest_logit"] > 0
    assert 0 < log["smallest_qk_rate"] <= log["largest_qk_rate"]


def test_accelerate_with_two_optimizers() -> None:
    """Criterion: QuacK and QK-clip accept the model and optimizers that Accelerate has prepared, and both act."""
    from attractor.control import QKClip, QuacK

    accelerator = accelerate.Accelerator(cpu=True)
    model: Any = around("standard").train()
    matrices = [parameter for parameter in model.parameters() if parameter.ndim == 2]
    others = [parameter for parameter in model.parameters() if parameter.ndim != 2]
    pair = torch.optim.Muon(matrices, lr=1e-2), torch.optim.AdamW(others, lr=1e-2)
    model, *prepared = accelerator.prepare(model, *pair)
    quack, clip = QuacK(model, prepared, tau=0.5), QKClip(model, prepared, threshold=1e-3)
    assert quack.optimizers == clip.optimizers == pair
    for _ in range(2):
        accelerator.backward(model(**batch()).loss)
        for optimizer in prepared:
            optimizer.step()
            optimizer.zero_grad()
    assert clip.n_clipped > 0
    assert any((rates != 0.5).any() for parts in quack.rates.values() for rates in parts.values())


@pytest.mark.slow
def test_a_loop_with_accelerate_continues_from_its_own_checkpoint(tmp_path: Path) -> None:
    """Criterion: with gradient accumulation, four epochs at once and two epochs before and after a checkpoint end with
    the same bits."""

    def run(n_epochs: int, save: Path | None = None, start: Path | None = None) -> dict[str, Tensor]:
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
        model = around("fast-slow").train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        loader = DataLoader(examples(12), batch_size=2)  # type: ignore[arg-type]
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        if start is not None:
            accelerator.load_state(str(start))
        for _ in range(n_epochs):
            for rows in loader:
                with accelerator.accumulate(model):
                    accelerator.backward(model(**rows).loss)
                    optimizer.step()
                    optimizer.zero_grad()
        if save is not None:
            accelerator.save_state(str(save))
        return weights(accelerator.unwrap_model(model))

    whole = run(4)
    run(2, save=tmp_path / "half")
    assert all(torch.equal(value, whole[key]) for key, value in run(2, start=tmp_path / "half").items())


def test_labels_of_sequences_are_learned_in_the_trainer(tmp_path: Path) -> None:
    """Criterion: for rows of unequal length, the model learns from which half of the vocabulary their tokens are, with
    an accuracy above 90%."""
    generator = torch.Generator().manual_seed(0)
    rows = []
    for index in range(32):
        length = int(torch.randint(4, 9, (), generator=generator))
        tokens = torch.randint(0, 18, (length,), generator=generator) + 18 * (index % 2)
        rows.append({"input_ids": torch.nn.functional.pad(tokens, (0, 9 - length)), "labels": index % 2})
        rows[-1]["attention_mask"] = (torch.arange(9) < length).long()
    model = AttractorForSequenceClassification.of(TransformerConfig(**SMALL, n_layers=1, n_classes=2).build(0))
    run = trainer(copy.deepcopy(model), tmp_path, 30, save_strategy="no", per_device_train_batch_size=16)
    run.train_dataset = run.eval_dataset = rows
    run.train()
    predicted = run.predict(rows)
    assert (predicted.predictions.argmax(-1) == predicted.label_ids).mean() > 0.9


def test_label_smoothing_scores_the_next_token(tmp_path: Path) -> None:
    """Criterion: with almost no smoothing, the Trainer's loss is the model's own, that of the next token."""
    run = trainer(around("standard"), tmp_path, 1, label_smoothing_factor=1e-6)
    rows = batch()
    torch.testing.assert_close(run.compute_loss(run.model, dict(rows)), run.model(**rows).loss, rtol=1e-4, atol=1e-4)


SPLIT = {
    "plain": CONFIGS["standard"],
    "parallel": ImportedConfig(**SMALL, n_layers=2, parallel_branches=True),
    "fast-slow": FastSlowConfig(**SMALL),
    "streams": FastSlowConfig(**SMALL, streams=2),
}


@pytest.mark.parametrize("kind", SPLIT)
def test_blocks_are_not_split_when_a_model_is_sharded(kind: str) -> None:
    """Criterion: FSDP of Accelerate finds all classes that must stay whole, which are those of the model's blocks."""
    model: Any = AttractorForCausalLM.of(SPLIT[kind].build(0))
    plugin = accelerate.FullyShardedDataParallelPlugin(auto_wrap_policy="transformer_based_wrap")
    plugin.set_auto_wrap_policy(model)
    assert plugin.auto_wrap_policy.keywords["transformer_layer_cls"] == {type(block) for block in model.model.layers}
