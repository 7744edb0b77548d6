"""The probe of QuacK's lemma shows a bound that holds for weights of any size under QuacK and not under a common
rate."""

from pathlib import Path

import pytest
import torch

from attractor.models import TransformerConfig
from attractor.study import load_study
from attractor.study.lemma import lemma_of_run
from attractor.study.logit_control import RATES, base, latent
from attractor.train.config import TrainConfig

STUDIES = Path(__file__).parents[2] / "studies"


@pytest.fixture
def config(tmp_path: Path) -> TrainConfig:
    model = TransformerConfig(
        vocab_size=320, d_model=32, n_heads=4, n_layers=2, d_ff=32, max_seq_len=32, positions="rope"
    )
    return TrainConfig(model=model, seq_len=16)


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["standard", "gqa", "differential", "mla"])
@pytest.mark.parametrize("size", [1.0, 10.0, 0.1])
def test_under_quack_the_bound_holds_for_weights_of_any_size(config: TrainConfig, attention: str, size: float) -> None:
    """Criterion: for scaled random weights the ratio is at most 1, and above a tenth, so that the bound is informative.
    Under a common rate it grows by the scale, or in MLA by its second to third power."""
    plain, controlled = config.replace(attention=attention), config.replace(attention=attention, quack=0.3)
    model = plain.model.build(seed=5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".project." in name:
                parameter.mul_(size)
    found = lemma_of_run(model, controlled)["lemma"]["bounded"]
    assert 0.1 < found <= 1
    unscaled = lemma_of_run(plain.model.build(seed=5), plain)["lemma"]["bounded"]
    grown = lemma_of_run(model, plain)["lemma"]["bounded"] / unscaled
    low, high = sorted((size**2, size**3)) if attention == "mla" else (size, size)
    assert 0.999 * low <= grown <= 1.001 * high


def test_a_model_without_scores_has_no_bound(config: TrainConfig) -> None:
    config = config.replace(attention="uniform")
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
    study = load_study(STUDIES / f"{name}.py")
    for scale in study.scales:
        rows, columns = study.axes(scale)
        kinds = [{row.removeprefix(kind) for row in rows.labels if row.startswith(kind)} for kind in ("MHA", "MLA")]
        assert kinds[0] == kinds[1]
        assert columns == RATES[scale]
        rates = [changes["lr"] for changes in columns.values.values()]
        assert rates == sorted(rates)
