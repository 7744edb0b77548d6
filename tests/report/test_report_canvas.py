"""Pictures inside a page: ids are told apart, and labels stay as they are."""

from studies import BASE, shifted, study

from attractor.report.judged_study import JudgedStudy
from attractor.report.study_figure import pictures
from attractor.report.study_page import render


def test_a_label_that_looks_like_an_id_stays_as_it_is() -> None:
    record = study({"standard": BASE, 'x id="a url(#b)': shifted(0.1)}, control=None)
    shown = next(iter(pictures(JudgedStudy(record)))).svg()
    assert 'x id="a url(#b)' in shown.replace("&quot;", '"')


def test_no_remark_begins_with_a_mark() -> None:
    page = render(JudgedStudy(study({"standard": BASE, "a": shifted(0.1), "b": shifted(0.1)}, control=None)), [])
    assert "<small>its runs equal those of" in page
