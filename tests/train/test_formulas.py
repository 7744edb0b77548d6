"""The identity of a run contains the version of a computation that it uses, from the second version on."""

from dataclasses import replace

import pytest

from attractor.attention import PRESETS
from attractor.errors import InputError
from attractor.models import SIZES
from attractor.runs.run_folder import RunFolder
from attractor.train import formulas
from attractor.train.config import RECIPES, TrainConfig
from attractor.train.formulas import FORMULAS, Formula, formulas_of

STREAMED = RECIPES["fast-slow"].replace(streams=4, gate_lr=1e-2)
USERS = {
    "mixing of streams": STREAMED,
    "streams in half precision": STREAMED.replace(precision="bf16"),
    "gates of coupling": RECIPES["fast-slow"].replace(attention="coupled-euler", zero_start=True, gate_lr=1e-2),
    "weight of penalties": RECIPES["sudoku"].replace(regularizer="spectral"),
    "orthogonal output": RECIPES["laptop"].replace(orthogonal_values=True),
    "penalty on logits": RECIPES["laptop"].replace(attention="standard:z_loss=1e-3"),
    "clip of solves": RECIPES["fast-slow"].replace(equilibrium="deq", qk_norm=False, qk_clip=100.0),
    "start of energies": RECIPES["sudoku"].replace(energy="multi"),
}


def test_runs_whose_computation_never_changed_are_named_as_before() -> None:
    for attention in PRESETS:
        assert formulas_of(RECIPES["laptop"].replace(attention=attention)) == {}
    assert formulas_of(TrainConfig(model=SIZES["fast-slow"])) == {}


@pytest.mark.parametrize("name", sorted(FORMULAS))
def test_a_new_version_renames_the_runs_that_use_it_and_no_others(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(formulas.FORMULAS, name, replace(FORMULAS[name], version=7))
    assert formulas_of(USERS[name])[name] == 7
    assert name not in formulas_of(RECIPES["laptop"])


def test_a_run_of_an_older_version_is_not_taken_for_a_new_one(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = RECIPES["laptop"].replace(attention="coupled-euler")
    task = config.build_task()
    RunFolder.create(tmp_path / "run", config.identity(task))
    monkeypatch.setitem(formulas.FORMULAS, "coupling", Formula(2, lambda config: "coupled" in config.label))
    with pytest.raises(InputError, match=r"formulas\.coupling"):
        RunFolder.create(tmp_path / "run", config.identity(task))
    assert TrainConfig.from_dict(config.identity(task)) == config
