"""A budget makes the matched quantity of runs equal."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attractor.attention.presets import PRESETS
from attractor.errors import InputError
from attractor.models import SIZES
from attractor.study import match_parameters
from attractor.study.budget import TOLERANCE, balanced, flops_per_step, n_parameters, with_steps
from attractor.train.config import RECIPES
from papers.language import language
from tiers import tiered

ROWS = ("standard", "gated", "coupled-hamiltonian", "uniform")
CONFIGS = {row: language("smoke").replace(attention=row) for row in ROWS}


def never(row: str) -> float:
    raise AssertionError(f"nothing of {row} is to be timed under this budget")


@pytest.mark.parametrize("budget", ["tokens", "free"])
def test_equal_tokens_change_nothing(budget):
    assert balanced(CONFIGS, "standard", budget, never) == CONFIGS


def test_equal_flops_agree_within_half_a_step():
    rows = balanced(CONFIGS, "standard", "flops", never)
    budget = CONFIGS["standard"].n_steps * flops_per_step(CONFIGS["standard"])
    for row, config in rows.items():
        cost = flops_per_step(config)
        assert abs(config.n_steps * cost - budget) <= cost / 2
        assert config.replace(n_steps=240, warmup_steps=24, eval_every=60) == CONFIGS[row]  # no other field changes
    assert rows["uniform"].n_steps > rows["standard"].n_steps == 240 > rows["coupled-hamiltonian"].n_steps


def test_equal_wall_clock_follows_measured_seconds():
    seconds = {"standard": 1.0, "gated": 2.0, "coupled-hamiltonian": 4.0, "uniform": 0.5}
    rows = balanced(CONFIGS, "standard", "wall", seconds.__getitem__)
    assert {row: config.n_steps * seconds[row] for row, config in rows.items()} == dict.fromkeys(ROWS, 240.0)


@settings(deadline=None)
@given(st.integers(1, 2000), st.floats(0.1, 20))
def test_a_run_of_another_length_keeps_the_shape_of_its_schedule(n_steps, factor):
    config = language("smoke").replace(n_steps=n_steps, warmup_steps=n_steps // 10)
    other = with_steps(config, n_steps * factor)
    assert abs(other.n_steps - n_steps * factor) <= 0.5 or other.n_steps == 1
    assert abs(other.warmup_steps / other.n_steps - config.warmup_steps / n_steps) <= 1 / other.n_steps


@pytest.mark.parametrize("name", tiered(sorted(PRESETS)))
def test_every_mechanism_can_be_given_the_parameters_of_standard_attention(name):
    base = SIZES["small"].replace(vocab_size=320, n_layers=2, d_model=256, d_ff=8192, max_seq_len=64)
    target = n_parameters(base)
    found = match_parameters(base.replace(attention=name), target)
    assert abs(n_parameters(found) / target - 1) <= TOLERANCE
    assert found.replace(d_ff=8192) == base.replace(attention=name)


@settings(max_examples=8, deadline=None)
@given(st.integers(150, 4000))
def test_matching_parameters_recovers_a_known_width(d_ff):
    model = language("smoke").model.replace(d_ff=d_ff)
    assert match_parameters(model.replace(d_ff=64), n_parameters(model)).d_ff == d_ff


def test_the_baseline_of_psiqrh_has_the_matched_width():
    """Criterion: PsiQRH at its own size has the parameters of a SwiGLU baseline of width 4,978."""
    model = RECIPES["psiqrh"].model
    assert match_parameters(model.replace(attention="standard"), n_parameters(model)).d_ff == pytest.approx(4978, abs=3)


def test_the_width_of_the_model_changes_in_steps_that_its_heads_allow():
    model = SIZES["small"].replace(vocab_size=320, n_layers=2, max_seq_len=64)
    found = match_parameters(model.replace(d_model=64), n_parameters(model), field="d_model")
    assert found.d_model == model.d_model
    with pytest.raises(InputError, match=r"d_model must make .* parameters within 0.1%, and the nearest, d_model="):
        match_parameters(model, n_parameters(model) + 40_000, field="d_model")


def test_the_row_that_keeps_its_size_need_not_be_the_baseline():
    wide = {
        row: config.replace(d_ff=4000) for row, config in CONFIGS.items()
    }  # with this width, one unit is less than 0.1%
    rows = balanced(wide, "standard", "parameters", never, sized_by="gated")
    assert rows["gated"] == wide["gated"]
    target = n_parameters(wide["gated"].model)
    assert all(abs(n_parameters(config.model) / target - 1) <= TOLERANCE for config in rows.values())


SMALL = language("smoke", n_steps=2, warmup_steps=0, d_ff=64)
ITRSA = SIZES["itrsa"]


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: match_parameters(SIZES["tiny"], 1000, field="n_layers"), "field must be d_ff or d_model, got 'n_lay"),
        (lambda: match_parameters(SIZES["tiny"], 1000), r"d_ff must make 1,000 parameters within 0.1%"),
        # 2 steps of a small model cost less than one of a large one, and the table would say equal FLOPs
        (
            lambda: balanced({"small": SMALL, "large": SMALL.replace(d_ff=1024)}, "small", "flops", lambda row: 1.0),
            r"^n_steps must let 'large' meet the budget 'flops' within 5%, .* off; give",
        ),
        (
            lambda: match_parameters(ITRSA, n_parameters(ITRSA) + 1000),
            r"^resize must be d_model for a model of family 'itrsa', .* got 'd_ff'",
        ),
    ],
)
def test_a_budget_that_cannot_be_met_is_refused(ask, message):
    with pytest.raises(InputError, match=message):
        ask()
    assert match_parameters(ITRSA.replace(d_ff=999), n_parameters(ITRSA)).d_ff == 999  # nothing is to be resized
