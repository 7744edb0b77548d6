"""What a study's record supports, for records of which the right answer is known."""

import json
import math

import pytest
from scipy import stats
from studies import BASE, ENTROPY, SPEED, shifted, study

from attractor.evidence.quantity import PERPLEXITY, Quantity
from attractor.evidence.study import StudyRecord
from attractor.files import plain
from attractor.report.judged import Judged
from attractor.report.measures import Measure

FIRST = Measure(PERPLEXITY)


def outcomes(record: StudyRecord) -> dict[str, str]:
    judged = Judged(record)
    return {row: judged.differences[row, "", judged.headlines[0]].outcome for row in judged.rivals}


def test_better_worse_and_no_difference_rest_on_pairs_in_nats():
    record = study({"standard": BASE, "uniform": shifted(0.5), "good": shifted(-0.05), "bad": shifted(0.05)})
    judged = Judged(record)
    assert outcomes(record) == {"good": "better", "bad": "worse"}
    found = judged.differences["good", "", FIRST]
    expected = stats.ttest_rel(shifted(-0.05), BASE)
    assert found.p == pytest.approx(expected.pvalue)
    assert found.interval.mean == pytest.approx(-0.05)
    assert found.adjusted == pytest.approx(2 * min(found.p, judged.differences["bad", "", FIRST].p))


def test_holm_is_over_the_whole_table_and_the_smallest_detectable_difference_is_consistent_with_it():
    rows = {f"rival-{n}": shifted(0.004 + 0.004 * n, 0.002) for n in range(6)}
    judged = Judged(study({"standard": BASE, "uniform": shifted(0.5)} | rows))
    for row in rows:
        found = judged.differences[row, "", FIRST]
        if found.outcome == "no difference shown":
            assert abs(found.interval.mean) <= found.detectable
            assert f"smallest detectable {found.detectable:.2g} nats" in found.words
    assert {judged.differences[row, "", FIRST].outcome for row in rows} == {"worse", "no difference shown"}


def test_without_a_sensitive_instrument_quality_is_not_judged_and_cost_is():
    quantities = (PERPLEXITY, Quantity("loss slope", "probes.slope", "higher"))
    record = study(
        {"standard": BASE, "uniform": shifted(0.1), "good": shifted(-0.05)},
        quantities=quantities,
        probes={"standard": {"slope": 1.0}, "good": {"slope": 2.0}},
    )
    judged = Judged(record)
    assert judged.sensitivity[""].sensitive is False  # 0.1 are five standard deviations of the baseline
    assert judged.differences["good", "", FIRST].outcome == "not judged"
    assert "not judged: not sensitive" in judged.verdict()[1].text
    assert judged.differences["good", "", Measure(quantities[1])].outcome == "better"
    assert not any(measure == FIRST for _, measure in judged.leaders(judged.families[0]))


def test_sensitivity_is_found_for_each_column():
    columns = {
        "near": {"standard": BASE, "good": shifted(-0.05), "uniform": shifted(0.1)},
        "far": {"standard": BASE, "good": shifted(-0.05), "uniform": shifted(0.5)},
    }
    judged = Judged(study(columns=columns))
    assert [judged.differences["good", column, FIRST].outcome for column in columns] == ["not judged", "better"]
    kinds = [line.parts[0].kind for line in judged.verdict() if not line.subject]
    assert kinds == ["sensitive", "insensitive"]


def test_one_seed_gives_no_interval_and_no_verdict():
    record = study({"standard": [1.7], "uniform": [2.2], "rival": [1.5]}, seeds=(0,))
    found = Judged(record).differences["rival", "", FIRST]
    assert (found.interval.low, found.p, found.detectable) == (None, None, None)
    assert found.words == "one seed: no interval"
    assert Judged(record).sensitivity[""].sensitive is None
    assert "Sensitivity unknown" in Judged(record).verdict()[0].text


def test_what_is_missing_is_said_by_its_name():
    record = study(
        {
            "standard": [1.7, 1.72, None],
            "uniform": shifted(0.5),
            "lost": [1.6, math.nan, 1.6],
            "apart": [None, None, 1.6],
            "never": [None, None, None],
        }
    )
    assert outcomes(record) == {"lost": "not finite", "apart": "no pairs", "never": "not run"}


def test_equal_values_show_no_difference():
    record = study({"standard": BASE, "uniform": shifted(0.5), "twin": BASE})
    assert outcomes(record) == {"twin": "no difference shown"}


def test_a_quantity_without_direction_is_higher_or_lower():
    probes = {"standard": {"heat": 1.0}, "rival": {"heat": 2.0}}
    heat = (Quantity("heat", "probes.heat"),)
    record = study({"standard": BASE, "rival": BASE}, control=None, quantities=heat, probes=probes)
    assert outcomes(record) == {"rival": "higher"}


@pytest.mark.parametrize(("apart", "leads"), [(0.05, True), (0.0003, False)])
def test_only_a_lead_that_the_test_supports_is_a_lead(apart, leads):
    rivals = {"good": shifted(-0.05), "best": shifted(-0.05 - apart, 0.003)}
    judged = Judged(study({"standard": BASE, "uniform": shifted(0.5)} | rivals))
    assert judged.leaders(judged.families[0]) == ({("", FIRST): "best"} if leads else {})


def test_the_control_never_leads_and_is_not_among_the_tests():
    judged = Judged(
        study({"standard": BASE, "good": shifted(-0.01), "uniform": shifted(-0.5)}, quantities=(PERPLEXITY,))
    )
    assert judged.n_tests(judged.families[0]) == 1
    assert judged.differences["uniform", "", FIRST].adjusted is None
    assert "uniform" not in judged.leaders(judged.families[0]).values()


def test_layers_have_measures_of_their_own_and_a_mean():
    probes = {"standard": {"entropy": [2.0, 3.0]}, "rival": {"entropy": [2.5, 3.5]}}
    judged = Judged(study({"standard": BASE, "rival": BASE}, quantities=(ENTROPY,), probes=probes, control=None))
    mean, second = Measure(ENTROPY, None, 2), Measure(ENTROPY, 1, 2)
    assert judged.headlines == (mean,)
    assert judged.spread("standard", "", second).by_seed == pytest.approx({0: 3.0, 1: 3.0, 2: 3.0}, abs=0.07)
    assert judged.spread("rival", "", mean).mean == pytest.approx(judged.spread("standard", "", mean).mean + 0.5)


def test_a_stored_record_says_the_same():
    losses = {"standard": BASE, "uniform": shifted(0.5), "lost": [1.6, math.nan, 1.6], "good": shifted(-0.05)}
    record = study(losses, quantities=(PERPLEXITY, SPEED))
    stored = StudyRecord.from_dict(json.loads(json.dumps(plain(record.to_dict()))))
    assert [line.text for line in Judged(stored).verdict()] == [line.text for line in Judged(record).verdict()]


def test_more_parameters_are_said_beside_the_difference():
    record = study({"standard": BASE, "uniform": shifted(0.5), "gated": shifted(-0.05)})
    assert "with 5.3% more parameters" in Judged(record).verdict()[1].text
