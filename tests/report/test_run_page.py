"""The page of a run shows the content of the run's folder, finished or not, and escapes all of it."""

import json
import re
from html import unescape
from pathlib import Path

import pytest

from attractor.report.run_page import write_run_page
from attractor.runs.run_folder import RunFolder

HOSTILE = "<script>alert('$x$')</script>"
TEXT = {"kind": "text", "corpus": "/home/someone/secret/tales.txt"}
CONFIG = {"label": HOSTILE, "seed": 7, "n_steps": 400, "task": TEXT}
SUMMARY = {
    "label": HOSTILE,
    "data": "/home/someone/secret/tales.txt: 3 documents",
    "n_parameters": 127_296,
    "device": "cpu",
    "threads": 1,
    "metric": {"name": "perplexity", "value": 16.42, "better": "lower"},
    "measures": {"perplexity": 16.42},
    "valid_loss": 2.798,
    "best_loss": 2.798,
    "peak_memory_bytes": 31_567_872,
    "wall_seconds": 12.5,
    "steps": 400,
    "tokens": 40_000,
    "skipped_steps": 1,
    "loss_spikes": [310],
    "trajectories": {"contraction": [[200, 0.97], [400, 0.93]]},
}


def logged(step: int, loss: float | None, spikes: int = 0, skipped: int = 0) -> dict:
    costs = {"lr": 1e-3, "grad_norm": loss and 0.5731, "param_norm": 31.47, "tokens_per_second": 29_415.1}
    return {"step": step, "tokens": 100 * step, "loss": loss, **costs, "skipped_steps": skipped, "loss_spikes": spikes}


def evaluated(step: int, loss: float) -> dict:
    return {"step": step, "tokens": 100 * step, "valid_loss": loss, "context_gain": 0.0439, "perplexity": 16.42}


def unfinished(path: Path) -> RunFolder:
    run = RunFolder.create(path, CONFIG)
    at_the_end = {"step": 400, "tokens": 40_000}
    for record in (
        logged(100, 3.2871),
        logged(213, None, skipped=1),
        logged(310, 7.1113, spikes=1, skipped=1),
        at_the_end | {"max_logit": [[6.0888, 21.9263], [7.1024, 8.6982]], "residual": [[0.9, 0.4127]]},
        at_the_end | {"novel_measure": 0.7717},
        logged(400, 2.6891, spikes=1, skipped=1),
        evaluated(400, 2.7984),
    ):
        run.append(record)
    return run


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return unfinished(tmp_path / "run")


def page_of(run: RunFolder) -> str:
    return write_run_page(run.path).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def unfinished_page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return page_of(unfinished(tmp_path_factory.mktemp("unfinished") / "run"))


@pytest.fixture(scope="module")
def finished_page(tmp_path_factory: pytest.TempPathFactory) -> str:
    run = unfinished(tmp_path_factory.mktemp("finished") / "run")
    run.write_summary(SUMMARY)
    return page_of(run)


def test_a_run_from_a_record_shows_the_machines_of_the_record(run: RunFolder) -> None:
    """Criterion: such a run has a list of the record's values for each fact, and "False" among them is no change."""
    facts = {"commit": ["1" * 40], "dirty": ["False"], "platform": ["A", "B"]}
    facts["time"] = ["2026-01-02T03", "2026-01-04T03"]
    (run.path / "environment.json").write_text(json.dumps(facts))
    page = page_of(RunFolder.open(run.path))
    assert "2026-01-02" in page
    assert "A, B" in page
    assert "with changes" not in page


def test_every_number_of_the_metrics_is_listed_with_its_last_value(finished_page: str) -> None:
    page = unescape(finished_page)
    for title, value in {
        "Loss": "training loss 2.689, validation loss 2.798",
        "Context gain": "0.0439",
        "Perplexity": "16.42",
        "Learning rate": "0.001",
        "Gradient norm before clipping": "0.5731",
        "Norm of all parameters": "31.47",
        "Largest logit on the probe": "layer 0 21.93, layer 1 8.698",
        "Distance of Post to its equilibrium": "0.4127",
        "Growth of an iteration of Post": "0.93",
        "Novel measure": "0.7717",
        "Speed, mean since the start": "29,415",
    }.items():
        shown = rf"<(h3|dt)>{re.escape(title)}</\1>(?:(?!<h3>).)*(last: |<dd>){re.escape(value)}( [^<]*)?<"
        assert re.search(shown, page, re.DOTALL), title
    for text in ("127,296", "400 of 400", "40,000", "32 MB", "12 s", "2.798 nats", "<dd>finished</dd>"):
        assert text in page


def test_spikes_and_skipped_steps_are_listed_and_marked_in_two_charts(unfinished_page: str) -> None:
    assert re.search(r"<dt>loss spikes</dt><dd>1, at 310</dd>", unfinished_page)
    assert re.search(r"<dt>skipped steps</dt><dd>1, at 213</dd>", unfinished_page)
    legends = [
        len(re.findall(rf"<text[^>]*>{label}</text>", unfinished_page)) for label in ("loss spike", "skipped step")
    ]
    assert legends == [2, 2]


def test_a_single_kind_of_mark_is_explained_in_both_charts_and_a_label_with_a_slash_is_whole(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run", CONFIG | {"label": "attention w/o gate"})
    for record in (logged(100, 3.2871), logged(213, 3.1, skipped=1), evaluated(213, 3.0)):
        run.append(record)
    assert len(re.findall(r"<text[^>]*>skipped step</text>", page_of(run))) == 2
    assert page_of(run).count("attention w/o gate") >= 2


def test_a_hostile_label_and_hostile_samples_are_text_and_nothing_is_fetched(run: RunFolder) -> None:
    run.append({"step": 400, "tokens": 40_000, f'"x\\1{HOSTILE}': 1.5})
    run.write_summary(SUMMARY)
    run.write_samples([{"temperature": 0.8, "seed": 0, "text": f"</pre>{HOSTILE}\x00\x1b"}])
    page = page_of(run)
    assert not re.search(r"<(script|link|iframe|img|object)\b|@import|\bsrc=|javascript:|</pre><|\x00|\x1b", page)
    # in the title, heading, configuration and sample, and in the name of a number
    assert page.count("&lt;script&gt;") == 5
    namespaces = {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}  # which are never fetched
    assert set(re.findall(r'https?://[^"\s<]+', page)) == namespaces
    assert "default-src 'none'" in page


def test_data_are_named_without_their_folders(tmp_path: Path, finished_page: str) -> None:
    task = {"kind": "sudoku", "puzzles": "/secret/easy.csv,/secret/hard.csv"}
    page = page_of(RunFolder.create(tmp_path, {"label": "standard", "seed": 0, "task": task}))
    for text, names in ((finished_page, "tales.txt: 3 documents"), (page, "easy.csv,hard.csv")):
        assert names in text
        assert "secret" not in text


def test_an_unfinished_run_with_a_torn_line_shows_its_whole_lines(run: RunFolder) -> None:
    whole = page_of(run)
    with (run.path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 410, "tokens": 41')
    assert page_of(run) == whole
    assert "unfinished, last logged at step 400" in whole
    assert "Samples" not in whole
    assert "<dt>parameters</dt>" not in whole  # the count is known when a run is finished


def test_a_run_without_evaluations_or_without_any_line_has_a_page(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "young", {"label": "standard"})
    assert "unfinished, last logged at step 0" in page_of(run)
    run.append(logged(10, None, skipped=1))  # only a skipped step, which would leave a chart of losses empty
    page = page_of(run)
    assert "Evaluations" not in page
    assert "<h3>Loss</h3>" not in page
    assert "<dt>Learning rate</dt>" in page


def test_what_was_measured_once_is_a_number_and_no_chart(unfinished_page: str) -> None:
    assert "<dt>Perplexity</dt><dd>16.42</dd>" in unfinished_page
    assert "<h3>Perplexity</h3>" not in unfinished_page
    panel = unfinished_page.partition("<h3>Loss</h3>")[2].partition("</figure>")[0]  # beside the training loss
    assert len(re.findall(r"<use [^>]*style=\"fill: #d55e00", panel)) == 2  # the point, and its sign in the legend


def test_an_empty_sample_says_so(run: RunFolder) -> None:
    run.write_summary(SUMMARY)
    run.write_samples([{"temperature": 0, "seed": 0, "text": " \n"}, {"temperature": 0.8, "seed": 0, "text": "once"}])
    said = page_of(run).partition("<h2>Samples</h2>")[2].partition("<h2>")[0]
    assert re.findall(r"<b>(.*?)</b>|<pre>(.*?)</pre>|(Empty: .*?)<", said) == [
        ("greedy", "", ""),
        ("", "", "Empty: the model wrote nothing that can be seen."),
        ("temperature 0.8, seed 0", "", ""),
        ("", "once", ""),
    ]


def test_the_highest_and_the_lowest_of_many_layers_are_named(run: RunFolder) -> None:
    layers = [[float(layer)] for layer in range(1, 33)]
    run.append({"step": 400, "tokens": 40_000, "query_norm": layers})
    assert "<dd>layer 31 32, layer 0 1<" in page_of(run)


def test_a_long_run_is_thinned_while_it_is_read(tmp_path: Path) -> None:
    """Criterion: the page is as large as that of a run of a tenth, and still has the last numbers and every spike."""
    pages = []
    for n in (10, 100):
        run = RunFolder.create(tmp_path / str(n), CONFIG)
        lines = [evaluated(s, 2.0) if s % 2 else logged(s, 4.0, spikes=s > 901) for s in range(1, 1000 * n)]
        (run.path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        pages.append(page_of(run))
    assert len(pages[1]) < 1.5 * len(pages[0])
    assert "every 16th of 50,000" in pages[1]
    assert "last logged at step 99,999" in pages[1]
    assert "1, at 902" in pages[1]


@pytest.mark.slow
def test_equal_runs_give_equal_bytes_in_every_folder(run: RunFolder, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere" / "copy"
    copy.mkdir(parents=True)
    for name in ("config.json", "environment.json", "metrics.jsonl"):
        (copy / name).write_bytes((run.path / name).read_bytes())
    there = write_run_page(copy, tmp_path / "pages")
    assert there == tmp_path / "pages" / "report.html"
    assert there.read_text(encoding="utf-8") == page_of(run) == page_of(run)
