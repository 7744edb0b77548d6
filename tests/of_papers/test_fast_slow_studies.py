"""The studies of FastSlow: their probes measure weights and detect planted faults, and the studies share runs."""

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor

from attractor.models import SIZES, FastSlow, FastSlowConfig
from attractor.models.block_pooling import AlignedBlocks, BlockMemory, causal_upsample
from attractor.study import load_study
from attractor.study.study import Study
from attractor.train.config import TrainConfig
from five_papers import STUDIES
from papers.fast_slow.claims import BUILT
from papers.fast_slow.probes import structure
from papers.fast_slow.probes.coupling import constrained, coupling_of_run, gate_at
from papers.fast_slow.probes.equations import equations_of_run
from papers.fast_slow.probes.structure import structure_of_run
from papers.fast_slow.settings import CONSTRAINTS, EQUILIBRIA, SLOW_PATHS

KINDS = {**EQUILIBRIA, **CONSTRAINTS, **SLOW_PATHS}
SMALL = FastSlowConfig(d_model=16, n_heads=4, d_ff=24)


@pytest.fixture(scope="module")
def small(base: TrainConfig) -> TrainConfig:
    return base.replace(model=SMALL)


def grown(config: TrainConfig) -> FastSlow:
    """Return weights as large as after training, with the gate half open."""
    model = config.model.build(seed=3).eval()
    assert isinstance(model, FastSlow)
    with torch.no_grad():
        model.embedding.weight.mul_(20)
        model.injection.gate.fill_(0.5)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("kind", BUILT)
def test_every_kind_has_its_structure_to_the_bit(small: TrainConfig, kind: str) -> None:
    config = small.replace(**KINDS[kind])
    found = structure_of_run(grown(config), config)["structure"]
    assert found.pop("echo") > 0.01
    assert found == {"leak": 0.0, "states": 1, "apart": 0.0}


def test_a_slow_path_that_is_read_too_early_is_detected(small: TrainConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_early(self: AlignedBlocks, y: Tensor, _: BlockMemory) -> Tensor:
        return causal_upsample(y, self.period, self.length).roll(-self.period, 1)

    monkeypatch.setattr(AlignedBlocks, "upsample", too_early)
    assert structure_of_run(grown(small), small)["structure"]["leak"] > 0.01


def test_a_slow_state_that_changes_within_a_block_is_detected(
    small: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drifting(self: AlignedBlocks, y: Tensor, _: BlockMemory) -> Tensor:
        up = causal_upsample(y, self.period, self.length)
        return up * torch.linspace(1, 2, self.length).unsqueeze(-1)

    monkeypatch.setattr(AlignedBlocks, "upsample", drifting)
    assert structure_of_run(grown(small), small)["structure"]["states"] == small.model.pool_factor  # type: ignore[attr-defined]


def test_a_gate_that_does_not_close_is_detected(small: TrainConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structure, "gate_at", lambda *how: nullcontext())
    assert structure_of_run(grown(small), small)["structure"]["apart"] > 0.01


def test_models_without_an_active_slow_path_have_no_structure(base: TrainConfig, small: TrainConfig) -> None:
    frozen = small.replace(frozen=True)
    assert structure_of_run(grown(frozen), frozen) == {}
    assert structure_of_run(base.model.build(0), base) == {}


@pytest.mark.parametrize(
    ("size", "frozen", "n_trained"),
    [
        ("fast-slow", True, 402_176),
        ("fast-slow", False, 779_777),
        ("dense-minimind", None, 1_025_408),
        ("dense-gemma", None, 585_504),
    ],
)
def test_the_models_of_table_2_have_their_trained_parameters(
    base: TrainConfig, size: str, frozen: bool | None, n_trained: int
) -> None:
    """A frozen model has as many parameters as a coupled one, and trains about half of them."""
    config = base.replace(model=SIZES[size]).replace(**({} if frozen is None else {"frozen": frozen}))
    found = coupling_of_run(config.model.build(0), config)["coupling"]
    assert found["trained_parameters"] == n_trained
    assert ("worth" in found) == (frozen is False)


def test_the_worth_of_the_slow_path_is_the_loss_from_closing_the_gate(small: TrainConfig) -> None:
    """The test computes the loss over the same batches, which have equal lengths, so the mean over batches is the mean
    loss."""
    model = grown(small)

    def loss() -> float:
        batches = list(small.build_task().valid_batches(small.batch_size, small.eval_batches))
        with torch.no_grad():
            found = [model.loss(torch.from_numpy(b.inputs), torch.from_numpy(b.targets))[0] for b in batches]
        return float(torch.stack(found).mean())

    worth = coupling_of_run(model, small)["coupling"]["worth"]
    as_trained = loss()
    with gate_at(model, 0.0):
        shut = loss()
    assert abs(worth) > 0.01
    assert worth == pytest.approx(shut - as_trained, abs=1e-4)
    assert loss() == as_trained
    with torch.no_grad():
        model.injection.gate.zero_()
    assert coupling_of_run(model, small)["coupling"]["worth"] == 0


def test_a_gate_held_open_is_restored_afterwards(small: TrainConfig) -> None:
    model = grown(small)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(ZeroDivisionError), gate_at(model, 10.0, 10.0):  # noqa: PT012
        assert model.injection.gate.item() == 10
        assert torch.equal(model.injection.norm.weight, 10 * before["injection.norm.weight"])
        raise ZeroDivisionError
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.slow
def test_the_equations_hold_for_generators_and_not_for_a_random_map(small: TrainConfig) -> None:
    with torch.no_grad():  # probes are called without gradients
        found = equations_of_run(grown(small), small.replace(seed=2))["equations"]
    assert found["error"] < 1e-12
    assert found["residual"] < 1e-12
    assert found["growth"] < 0
    assert found["conserved"] < 1e-14 < 0.5 < found["lost_share"]
    assert found["projector"] < 0.05


@pytest.mark.parametrize("kind", ["4 streams", "unit slow state", "both", "projector and unit slow state"])
def test_removing_a_constraint_temporarily_leaves_the_model_unchanged(small: TrainConfig, kind: str) -> None:
    config = small.replace(**KINDS[kind])
    model = grown(config)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert "constrained" in coupling_of_run(model, config)["coupling"]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    model_config = config.model
    assert isinstance(model_config, FastSlowConfig)
    assert model.injection.on_sphere == model_config.unit_slow_state


def test_taking_the_constraint_away_changes_only_streams_with_unequal_weights(small: TrainConfig) -> None:
    config = small.replace(streams=4)
    model = grown(config)
    assert constrained(model, config) < 1e-6
    with torch.no_grad():
        for name in config.model.mixing:  # type: ignore[attr-defined]
            if name.endswith("write_weights"):
                model.get_parameter(name)[0] += 3.0
    assert constrained(model, config) > 1e-3


def test_the_sphere_changes_a_projector_and_not_a_linear_map(small: TrainConfig) -> None:
    """The norm after a linear phi removes the size of the state, so there the constraint is neutral trivially."""
    of_projector = small.replace(**KINDS["projector and unit slow state"])
    of_linear = small.replace(**KINDS["unit slow state"])
    assert constrained(grown(of_projector), of_projector) > 1e-3
    assert constrained(grown(of_linear), of_linear) < 1e-4


def test_models_without_a_constraint_have_none_to_take_away(small: TrainConfig) -> None:
    assert "constrained" not in coupling_of_run(grown(small), small)["coupling"]


def configs(name: str, scale: str) -> list[TrainConfig]:
    return [config for _, config in load(name).configs(scale, 0)]


def load(name: str) -> Study:
    return load_study(STUDIES[f"fast-slow-{name}"])


@pytest.fixture
def without_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the vocabulary of bytes, since the corpora of scales above smoke are not available here."""
    monkeypatch.setattr("attractor.study.study.fitted", lambda config, given: config)


@pytest.mark.parametrize("scale", ["smoke", "laptop", "bench", "paper"])
@pytest.mark.usefixtures("without_data")
def test_structure_is_measured_in_runs_of_other_studies(scale: str) -> None:
    others = [config for name in ("equilibrium", "constraints", "decay") for config in configs(name, scale)]
    assert all(config in others for config in configs("structure", scale))
    assert set(load("structure").scales[scale].seeds) <= set(load("decay").scales[scale].seeds)


@pytest.mark.parametrize("scale", ["smoke", "laptop", "bench", "paper"])
@pytest.mark.usefixtures("without_data")
def test_studies_of_table_2_and_of_its_gate_share_their_runs(scale: str) -> None:
    table, gate = ({row: c for (row, _), c in load(name).configs(scale, 0)} for name in ("baseline", "gate"))
    assert (table["frozen"], table["coupled"], table["uniform"]) == (gate["frozen"], gate["gate 1e-4"], gate["uniform"])
    assert configs("equations", scale) == [table["coupled"]]
    rates = [gate[f"gate 1e-{n}"].gate_lr or gate[f"gate 1e-{n}"].lr for n in (4, 3, 2, 1)]
    assert rates == pytest.approx([1e-4, 1e-3, 1e-2, 1e-1])
    assert configs("equilibrium", scale)[0] == gate["gate 1e-2"]


def test_only_a_slow_path_that_reads_text_or_a_layer_without_window_sees_the_pair() -> None:
    """Criterion: in the window's study, the output at the first query has exactly no gradient at the pair, whatever the
    number of evaluations, if the slow path sees no text. With text, or with a layer without a window, it has one."""
    first_query, pair = 2 + configs("window", "desk")[0].task.least_gap, slice(0, 2)  # type: ignore[attr-defined]
    for (row, _), config in load("window").configs("desk", 1):
        model = config.model.build(seed=3).eval()
        if isinstance(model, FastSlow):
            torch.nn.init.constant_(model.injection.gate, 1.0)
        vectors = model.embedding(torch.arange(config.seq_len) % 32).detach().unsqueeze(0).requires_grad_()
        (gradient,) = torch.autograd.grad(model.hidden(vectors)[0][0, first_query].sum(), vectors)
        sees = row not in ("windowed", "uninformative slow path")
        assert bool(gradient[0, pair].any()) == sees, row
        if sees and isinstance(model, FastSlow) and row != "dense":
            with gate_at(model, 0.0):
                (gradient,) = torch.autograd.grad(model.hidden(vectors)[0][0, first_query].sum(), vectors)
            assert not gradient[0, pair].any(), f"the fast path of {row} reaches the pair by itself"


@pytest.mark.usefixtures("without_data")
def test_the_papers_runs_have_its_recipe() -> None:
    for scale in ("laptop", "paper"):
        (coupled,) = configs("equations", scale)
        assert coupled.model == SIZES["fast-slow"]
        assert coupled.n_steps * coupled.tokens_per_step == 665_600
        assert (coupled.lr, coupled.batch_size, coupled.seq_len) == (1e-4, 4, 256)
    long = configs("long", "paper")[0]
    assert long.n_steps * long.tokens_per_step == pytest.approx(10e6, rel=1e-3)
    assert long.seq_len == 1024
