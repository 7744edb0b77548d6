"""The probe of QuacK's lemma measures changes of logits on data: QuacK keeps its bound, a common rate does not."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from attractor.attention.presets import preset
from attractor.control.heads import known_heads
from attractor.models import TransformerConfig
from attractor.models.language_model import LanguageModel
from attractor.study import ATTENTION_MAPS, Probe, load_study, probe
from attractor.train.config import Runtime, TrainConfig
from five_papers import STUDIES
from papers.quack.probes.lemma import LEMMA_PROBE, Step, lemma_of_run
from papers.quack.settings import RATES, base, latent
from tiers import tiered


@pytest.fixture
def config() -> TrainConfig:
    model = TransformerConfig(
        vocab_size=320, d_model=32, n_heads=4, n_layers=2, d_ff=32, max_seq_len=32, positions="rope"
    )
    return TrainConfig(model=model, seq_len=16, optimizer="muon", schedule="constant", warmup_steps=0, lr=0.01)


def grown(config: TrainConfig, by: float) -> LanguageModel:
    """Return a model whose query and key weights are `by` times those at the start."""
    model = config.model.build(config.seed)
    with torch.no_grad():
        for view in known_heads(model):
            for rows in view.parts().values():
                rows.weight.mul_(by)
    return model


@pytest.mark.parametrize("attention", tiered(["standard", "gqa", "differential", "mla"]))
def test_quack_alone_keeps_the_bound_when_weights_grow(config: TrainConfig, attention: str) -> None:
    """Criterion: of weights that grew tenfold, QuacK's share stays below 1 and within twice that of the start. Without
    QuacK it grows tenfold; in MLA, where the norms of two further matrices are factors, a hundredfold at least."""
    plain = config.replace(attention=attention)
    quack = plain.replace(quack=0.3)
    shares = {name: lemma_of_run(grown(of, 10.0), of)["lemma"] for name, of in {"plain": plain, "quack": quack}.items()}
    assert 0 < shares["quack"]["share"] < min(1.0, 2 * shares["quack"]["at_start"])
    ratio = shares["plain"]["share"] / shares["plain"]["at_start"]
    assert ratio > (100 if attention == "mla" else 5)


@pytest.mark.parametrize(("measured", "weights"), [(LEMMA_PROBE, "last"), (ATTENTION_MAPS, "best")])
def test_the_lemma_is_measured_at_the_last_weights(
    config: TrainConfig, measured: Probe, weights: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Criterion: the weights of the end are loaded, where logits are largest, and not those of the lowest loss."""
    loaded: list[str] = []
    monkeypatch.setattr(probe.RunFolder, "open", lambda path: path)
    monkeypatch.setattr(probe, "last_weights", lambda run: "last")
    monkeypatch.setattr(probe, "best_weights", lambda run: "best")
    monkeypatch.setattr(probe.checkpoint, "load_weights", lambda path, model: loaded.append(path))
    job: Any = SimpleNamespace(name="run", path=tmp_path, config=config, finished=True, diverged=None)
    nothing = replace(measured, measure=lambda model, config: {})
    probe.probe_runs([job], nothing, Runtime(device="cpu"), Console(quiet=True))
    assert loaded == [weights]


def test_the_shares_are_those_of_the_product_rule(config: TrainConfig) -> None:
    """Criterion: for one layer without rotations, the largest dL over its bound is computed by hand from a step, and so
    is the product of both changes, which is all that lies beyond dL."""
    config = config.replace(n_layers=1, positions="learned", quack=0.5)
    step = Step(config, grown(config, 3.0).state_dict())
    start = Step(config)
    inputs: list[torch.Tensor] = []
    layer = step.model.blocks[0].attention
    step.model.load_state_dict(step.before)
    layer.register_forward_pre_hook(lambda _, given: inputs.append(given[0].detach()))
    step.model.eval()(step.tokens)
    x, width, worst, beyond = inputs[0], 8, 0.0, 0.0

    def of(side: dict[str, torch.Tensor], part: str, head: int) -> torch.Tensor:
        weight = side[f"blocks.0.attention.project.{part}.weight"]
        return weight[head * width : (head + 1) * width]

    for head in range(4):
        q, k = (x @ of(step.before, part, head).T for part in ("query", "key"))
        dq, dk = (x @ of(step.change, part, head).T for part in ("query", "key"))
        slope, both = ((dq @ k.mT + q @ dk.mT).tril().abs(), (dq @ dk.mT).tril().abs())
        bound = sum(
            of(start.change, part, head).norm() * of(start.before, partner, head).norm()
            for part, partner in (("query", "key"), ("key", "query"))
        )
        bounds = bound * x.norm(dim=-1)[:, :, None] * x.norm(dim=-1)[:, None, :]
        worst, beyond = max(worst, float((slope / bounds).max())), max(beyond, float((both / bounds).max()))
    assert step.shares(start.bounds()) == pytest.approx((worst, beyond), rel=1e-4)


@pytest.mark.parametrize(
    "changes", [{"attention": "uniform"}, {"qk_norm": True}, {"attention": preset("mla").replace(latent_norm=True)}]
)
def test_a_model_whose_logits_no_product_of_weights_bounds_has_no_bound(
    config: TrainConfig, changes: dict[str, Any]
) -> None:
    config = config.replace(**changes)
    assert lemma_of_run(config.model.build(0), config) == {"lemma": {}}


def test_the_papers_model_has_its_size_and_its_latents() -> None:
    """Criterion: it has 1,040.2M parameters, latents of 512 and 256, and scored heads of width 64 + 64."""
    model = base("paper").model
    with torch.device("meta"):
        assert sum(p.numel() for p in model.build(0).parameters()) == pytest.approx(1040.2e6, abs=0.05e6)
    project = latent(model).project.to_dict()
    assert [project[name] for name in ("q_latent", "kv_latent", "nope_dim", "rope_dim")] == [512, 256, 64, 64]


@pytest.mark.parametrize("name", ["logit-control", "logit-control-grid"])
def test_each_intervention_is_in_both_kinds_of_attention_at_each_rate(name: str) -> None:
    study = load_study(STUDIES[name])
    for scale in study.scales:
        rows, columns = study.axes(scale)
        kinds = [{row.removeprefix(kind) for row in rows.labels if row.startswith(kind)} for kind in ("MHA", "MLA")]
        assert kinds[0] == kinds[1]
        assert columns == RATES[scale]
        rates = [changes["lr"] for changes in columns.values.values()]
        assert rates == sorted(rates)
