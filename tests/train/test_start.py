"""Fine-tuning starts a run from the weights of another run."""

from pathlib import Path

import pytest
import torch

from attractor.attention.presets import preset
from attractor.errors import InputError
from attractor.models import Transformer
from attractor.train import checkpoint
from attractor.train.config import Runtime, TrainConfig
from attractor.train.loop import train
from attractor.train.start import chosen_checkpoint, load_start
from papers.coupled_qk.glue import Glue


@pytest.fixture
def pretrained(config: TrainConfig, runtime: Runtime, tmp_path: Path) -> Path:
    path = tmp_path / f"{config.label}-seed{config.seed}"
    train(config, path, runtime)
    return path


@pytest.fixture
def glue(tmp_path: Path) -> str:
    folder = tmp_path / "glue" / "SST-2"
    folder.mkdir(parents=True)
    words = (("good", 1), ("bad", 0), ("fine", 1), ("poor", 0))
    lines = ["sentence\tlabel", *(f"film {number} is {word}\t{label}" for number in range(20) for word, label in words)]
    for name in ("train.tsv", "dev.tsv"):
        (folder / name).write_text("\n".join(lines))
    return str(tmp_path / "glue")


def weights(path: Path, model: Transformer) -> dict[str, torch.Tensor]:
    checkpoint.load_weights(chosen_checkpoint(path), model)
    return dict(model.named_parameters())


def test_all_weights_but_the_readout_are_loaded(config: TrainConfig, pretrained: Path) -> None:
    source = weights(pretrained, config.model.build(5))
    model = config.model.replace(n_classes=2).build(1)
    drawn = model.readout.detach().clone()
    load_start(pretrained, model)
    assert torch.equal(model.readout, drawn)
    taken = {name: parameter for name, parameter in model.named_parameters() if name != "head.weight"}
    assert taken.keys() == source.keys()
    assert all(torch.equal(parameter, source[name]) for name, parameter in taken.items())


def test_a_language_model_learns_labels(
    config: TrainConfig, runtime: Runtime, pretrained: Path, glue: str, tmp_path: Path
) -> None:
    """Criterion: after 60 steps nearly every sentence, whose label depends on one word, is classified correctly. Other
    starting weights, or none, make it another run."""
    start = str(pretrained.parent / "{attention}-seed{seed}")
    tuned = config.replace(
        task=Glue("sst2", glue), start=start, n_classes=2, n_steps=60, lr=5e-3, warmup_steps=5, eval_every=60
    )
    summary = train(tuned, tmp_path / "tuned", runtime)
    assert summary["metric"]["name"] == "accuracy"
    assert summary["metric"]["value"] > 0.95
    task = tuned.build_task()
    identities = [tuned.identity(task), tuned.replace(start=None).identity(task)]
    train(config.replace(n_steps=config.n_steps + 1), tmp_path / "other" / pretrained.name, runtime)
    identities.append(tuned.replace(start=start.replace(str(tmp_path), str(tmp_path / "other"))).identity(task))
    assert len({identity.get("start_weights") for identity in identities}) == 3


def test_another_model_is_refused_by_name(config: TrainConfig, pretrained: Path) -> None:
    with pytest.raises(InputError, match=r"start must be a run of the same model, but 'blocks.0.mlp.down.weight' is"):
        load_start(pretrained, config.model.replace(d_ff=48).build(0))
    with pytest.raises(InputError, match="start must be a run of the same model"):  # before there is a folder
        config.replace(start=str(pretrained), d_ff=48).identity(config.build_task())
    with pytest.raises(InputError, match="start must be a run of the same model, but 'blocks"):
        load_start(pretrained, config.model.replace(n_layers=config.model.n_layers + 1).build(0))


def test_a_missing_run_is_refused(config: TrainConfig, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere"):
        load_start(tmp_path / "nowhere", config.model.build(0))


def test_the_buffers_of_sigma_reparam_are_taken_too(config: TrainConfig, runtime: Runtime, tmp_path: Path) -> None:
    config = config.replace(attention=preset("standard").replace(sigma_reparam=True), n_steps=2, warmup_steps=0)
    train(config, tmp_path / "run", runtime)
    source, model = config.model.build(5), config.model.build(1)
    checkpoint.load_weights(chosen_checkpoint(tmp_path / "run"), source)
    load_start(tmp_path / "run", model)
    taken, stored = model.state_dict(), source.state_dict()
    assert any(name.endswith("sigma.u") for name in taken)
    assert all(torch.equal(taken[name], stored[name]) for name in taken)
