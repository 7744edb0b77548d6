"""The list of `attractor watch` agrees with the run folders, and the server serves only these runs."""

import base64
import hashlib
import http.client
import json
import re
import shutil
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from html import escape, unescape
from pathlib import Path
from urllib.parse import quote
from urllib.request import urlopen

import pytest
from studies import study

from attractor.report import live_server
from attractor.report.live_list import RunLine, WatchedFolder
from attractor.report.live_server import LiveServer
from attractor.runs.run_folder import RunFolder
from attractor.runs.study_record import study_as_dict
from browser import in_browser, opened
from in_process import Command, assert_refused

HOSTILE = "<script>alert(1)</script>"
CONFIG = {"label": "gated", "seed": 0, "n_steps": 100, "task": {"kind": "text"}, "model": {"vocab_size": 320}}


def begun(path: Path, steps: int = 3, **config: object) -> RunFolder:
    run = RunFolder.create(path, CONFIG | config)
    for step in range(1, steps + 1):
        run.append({"step": step, "tokens": 64 * step, "loss": 4.0 / step, "tokens_per_second": 64.0})
    return run


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Make a run in every state, one with a hostile label, and a secret outside of the folder."""
    (tmp_path / "secret.txt").write_text("secret")
    begun(tmp_path / "elsewhere" / "run", label="secret")
    folder = tmp_path / "runs"
    begun(folder / "interrupted")
    begun(folder / "study" / "finished", label="standard").write_summary({"steps": 100, "valid_loss": 1.0})
    RunFolder.create(folder / "waiting", CONFIG)
    begun(folder / "hostile", label=HOSTILE, seed="<b>")
    (folder / "damaged").mkdir()
    (folder / "damaged" / "config.json").write_text("{")
    (folder / "outside").symlink_to(tmp_path / "elsewhere")
    return folder


@pytest.fixture
def server(runs: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveServer]:
    monkeypatch.setattr(live_server, "SECONDS_BETWEEN_LOOKS", 0.0)
    with LiveServer(runs, port=0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(server: LiveServer, path: str, method: str = "GET", host: str | None = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.request(method, path, headers={"Host": host or f"127.0.0.1:{server.server_port}"})
    answer = connection.getresponse()
    status, text = answer.status, answer.read().decode()
    connection.close()
    return status, text


def test_a_window_that_has_the_list_is_sent_what_is_new(server: LiveServer, runs: Path) -> None:
    """Criterion: an unchanged list sends no line, and a changed run its own. A new run brings the whole list."""

    def sent(since: str) -> tuple[set[str], str]:
        page = ask(server, f"/?since={since}")[1]
        return set(re.findall(r'<a href="/run/([^"]+)"', page)), re.findall(r'data-look="(\d+)"', page)[0]

    run = begun(runs / "going")
    every, look = sent("")
    assert {"going", "damaged"} < every
    nothing, look = sent(look)
    assert nothing == set()
    run.append({"step": 50, "tokens": 3200, "loss": 0.5})
    assert sent(look)[0] == {"going"}
    begun(runs / "late")
    assert sent(look)[0] == every | {"late"}
    assert sent("nonsense")[0] == every | {"late"}


def lines_in(folder: Path | WatchedFolder) -> dict[str, RunLine]:
    watched = folder if isinstance(folder, WatchedFolder) else WatchedFolder(folder)
    return {line.key: line for line in watched.look()}


def states(folder: Path) -> dict[str, str]:
    return {key: line.state for key, line in lines_in(folder).items()}


def test_every_run_has_its_state_and_running_ones_come_first(runs: Path) -> None:
    expected = {
        "damaged": "damaged",
        "waiting": "not begun",
        "hostile": "interrupted",
        "interrupted": "interrupted",
        "study/finished": "finished",
    }
    assert states(runs) == expected
    with RunFolder.open(runs / "interrupted").hold():
        assert states(runs) == expected | {"interrupted": "running"}
        assert next(iter(states(runs))) == "interrupted"


def test_a_line_holds_the_numbers_of_the_run(runs: Path) -> None:
    """Criterion: a run of 100 steps with 64 tokens each, at 64 tokens a second, has 80 seconds left after 20 steps."""
    run = begun(runs / "going", steps=20)
    run.append({"step": 20, "tokens": 1280, "valid_loss": 1.25})
    run.append({"step": 20, "tokens": 1280, "valid_loss": 1.5})
    with run.hold():
        line = lines_in(runs)["going"]
    assert line.numbers == {
        "step": "20 of 100",
        "loss": "0.200",
        "best validation": "1.250 nats/byte",
        "speed": "64 tok/s",
        "time left": "80 s",
    }
    assert line.share == 0.2
    assert line.curve.count(",") == 20


def test_a_folder_that_may_not_be_read_hides_no_run(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (runs / "forbidden").mkdir()
    expected, listing = states(runs), Path.iterdir

    def refused(folder: Path) -> Iterator[Path]:
        if folder.name == "forbidden":
            raise PermissionError(13, "Permission denied", str(folder))
        return listing(folder)

    monkeypatch.setattr(Path, "iterdir", refused)
    assert len(expected) == 5
    assert states(runs) == expected


def test_new_runs_and_new_steps_appear_and_removed_runs_go(runs: Path) -> None:
    watched = WatchedFolder(runs)
    watched.look()
    run = begun(runs / "late")
    assert "late" in lines_in(watched)
    run.append({"step": 50, "tokens": 3200, "loss": 0.5})
    assert lines_in(watched)["late"].numbers["step"] == "50 of 100"
    run.keep_until(2)
    assert lines_in(watched)["late"].numbers["step"] == "2 of 100"
    assert len(watched.runs["late"].losses) == 2
    run.write_summary({"steps": 100})
    assert lines_in(watched)["late"].state == "finished"
    shutil.rmtree(run.path)
    assert "late" not in lines_in(watched)


def test_a_refresh_reads_only_lines_that_were_added(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = WatchedFolder(runs)
    watched.look()
    read: list[int] = []
    record = RunFolder.record
    monkeypatch.setattr(RunFolder, "record", lambda *given: (read.append(given[1]), record(*given))[1])
    watched.look()
    assert read == []
    RunFolder.open(runs / "interrupted").append({"step": 4, "tokens": 256, "loss": 1.0})
    watched.look()
    assert read == [4]


@pytest.mark.parametrize(
    "content", ["nonsense\n", '{"step": "x", "tokens": 1}\n', '{"step": 1, "tokens": 1, "loss": "low"}\n', "[1]\n"]
)
def test_a_damaged_run_is_shown_as_damaged_until_it_is_repaired(runs: Path, content: str) -> None:
    watched = WatchedFolder(runs)
    n_lines = len(watched.look())
    metrics = runs / "interrupted" / "metrics.jsonl"
    before = metrics.read_text()
    metrics.write_text(before + content)
    for _ in range(2):
        lines = lines_in(watched)
        assert (len(lines), lines["interrupted"].state) == (n_lines, "damaged")
        assert lines["interrupted"].remark
    metrics.write_text(before)
    assert lines_in(watched)["interrupted"].state == "interrupted"


def test_the_list_and_the_pages_of_its_runs_are_served_and_names_are_escaped(server: LiveServer) -> None:
    status, page = ask(server, "/")
    assert status == 200
    assert HOSTILE not in page
    assert escape(HOSTILE) in page
    links = re.findall(r'href="(/run/[^"]+)"', page)
    assert sorted(links) == sorted(f"/run/{quote(key)}" for key in states(server.pages.watched.folder))
    for link in links:
        status, run_page = ask(server, link)
        assert status == 200
        assert "<h1>" in run_page
        assert HOSTILE not in run_page


def compared(study_folder: Path, *keys: str) -> None:
    """Write the plan of a comparison whose runs lie in its folder or in a pool beside it."""
    design = study({"standard": [1.7]}, seeds=tuple(range(len(keys)))).design
    study_folder.mkdir(exist_ok=True)
    (study_folder / "study.json").write_text(
        json.dumps(study_as_dict(design, {("standard", ""): dict(enumerate(keys))}))
    )


def test_runs_of_a_comparison_stand_together_below_a_link_to_its_report(server: LiveServer, runs: Path) -> None:
    """Criterion: runs of two comparisons, one with a pool beside it, are grouped, whatever their states. A report is
    served with rules by which it reaches nothing, and only where no link leads out of the folder."""
    begun(runs / "mine" / "runs" / "a")
    begun(runs / "mine" / "runs" / "b").write_summary({"steps": 100})
    begun(runs / "runs" / "c")
    compared(runs / "mine", "a", "b")
    compared(runs / HOSTILE.replace("/", ""), "c")
    _, page = ask(server, "/")
    groups = {
        re.findall(r'scope="rowgroup"[^>]*>([^<]*)', part)[0]: set(re.findall(r'href="/run/([^"]*)"', part))
        for part in page.split("<tbody>")[1:]
    }
    assert groups.pop("mine") == {"mine/runs/a", "mine/runs/b"}
    assert groups.pop(escape(HOSTILE.replace("/", ""))) == {"runs/c"}
    assert {*groups.pop("Single runs")} == {"damaged", "hostile", "interrupted", "study/finished", "waiting"}
    assert not groups
    assert ask(server, "/report/mine")[0] == 404
    (runs / "mine" / "report.html").symlink_to(runs.parent / "secret.txt")
    assert ask(server, "/report/mine")[0] == 404
    (runs / "mine" / "report.html").unlink()
    (runs / "mine" / "report.html").write_text("the report")
    assert 'href="/report/mine"' in ask(server, "/")[1]
    assert ask(server, "/report/mine") == (200, "the report")
    assert [ask(server, f"/report/{path}")[0] for path in ("", "study", "mine/runs", "..", "mine/")] == [404] * 5
    rules = urlopen(f"{server.address}report/mine").headers["Content-Security-Policy"].split("; ")
    assert {"sandbox allow-scripts allow-downloads", "default-src 'none'"} < set(rules)
    (runs / "mine" / "study.json").write_text("{")
    assert ask(server, "/report/mine")[0] == 404


def test_chosen_runs_are_drawn_over_each_other(server: LiveServer, runs: Path) -> None:
    """Criterion: both figures name every chosen run that is there, those of equal labels by their places as well."""
    run = begun(runs / "twin")
    run.append({"step": 3, "tokens": 192, "valid_loss": 1.5})
    status, page = ask(server, "/overlay?run=interrupted&run=twin&run=hostile&run=nonsense")
    assert (status, HOSTILE in page, page.count("<svg")) == (200, False, 2)
    names = [re.findall(r"<text[^>]*>([^<]*, seed [^<]*)</text>", part) for part in page.split("<svg")[1:]]
    hostile = f"{escape(HOSTILE)}, seed &lt;b&gt;"
    assert {*names[0]} == {hostile, "gated, seed 0 (interrupted)", "gated, seed 0 (twin)"}
    assert names[1] == ["gated, seed 0 (twin)"]
    assert "<h1>3 runs</h1>" in page
    first, second = (ask(server, f"/overlay?run={key}")[1] for key in ("interrupted", "twin"))  # of one label
    assert first != second
    assert "Tick runs" in ask(server, "/overlay")[1]
    many = "&".join(f"run={begun(runs / f'many-{n}').path.name}" for n in range(25))
    assert "<h1>24 runs of 25</h1>" in ask(server, f"/overlay?{many}")[1]


CHOICE = """
const seen = {};
const rows = () => [...document.querySelectorAll("tbody tr:not([hidden])")].map((row) => row.dataset.key);
const whole = new DOMParser().parseFromString(document.documentElement.outerHTML, "text/html");
for (const key of ["interrupted", "study/finished"]) document.querySelector(`input[value="/run/${key}"]`).click();
search.value = "SINGLE finished"; search.dispatchEvent(new Event("input")); seen.rows = [rows()];
document.querySelector('input[value="/run/study/finished"]').focus();
put(whole); seen.rows.push(rows()); seen.focus = document.activeElement.value;
const link = document.querySelector(".overlay");
seen.link = [link.hidden, link.textContent, link.getAttribute("href")];
document.querySelectorAll("input:checked").forEach((box) => box.click()); seen.hidden = link.hidden;
document.body.dataset.seen = JSON.stringify(seen);
"""


@in_browser
def test_the_list_is_filtered_and_chosen_runs_stay_chosen_when_it_is_new(server: LiveServer, tmp_path: Path) -> None:
    """The page contains a test script in the role of a visitor, which its policy would otherwise refuse."""
    page = re.sub(r"<meta http-equiv[^>]*>", "", ask(server, "/")[1])
    (tmp_path / "list.html").write_text(page.replace("</body>", f"<script>{CHOICE}</script></body>"))
    (seen,) = re.findall(r'data-seen="([^"]*)"', opened((tmp_path / "list.html").as_uri(), tmp_path))
    assert json.loads(unescape(seen)) == {
        "rows": [["study Single runs", "/run/study/finished"]] * 2,
        "focus": "/run/study/finished",
        "link": [False, "Overlay 2 runs", "/overlay?run=interrupted&run=study/finished"],
        "hidden": True,
    }


def test_a_page_may_run_its_own_script_and_no_other(server: LiveServer) -> None:
    for path in ("/", "/run/interrupted", "/run/damaged", "/overlay?run=interrupted"):
        _, page = ask(server, path)
        (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
        (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"script-src &#39;sha256-{digest}&#39;" in policy
        assert "default-src &#39;none&#39;" in policy
        assert not re.search(r"https?://(?!www\.w3\.org)", page.split("</style>")[1].split("<h2>Environment")[0])


def test_the_server_answers_only_get_from_this_machine_under_its_own_name(server: LiveServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    port = server.server_port
    for host in (f"127.0.0.1:{port}", f"localhost:{port}"):
        assert ask(server, "/", host=host)[0] == 200
    strangers = ("example.org", f"example.org:{port}", f"127.0.0.1.example.org:{port}", f"localhost:{port + 1}", "0")
    asked = [(path, "GET", host, 403) for host in strangers for path in ("/", "/run/interrupted")]
    asked += [("/", method, None, 501) for method in ("POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH")]
    for path, method, host, refused in asked:
        status, text = ask(server, path, method, host)
        assert (status, "interrupted" in text) == (refused, False), (method, host)


def test_no_address_leads_out_of_the_runs_of_the_folder(server: LiveServer) -> None:
    for path in (
        "/run/../../secret.txt",
        "/run/..%2f..%2fsecret.txt",
        "/run/%2e%2e/secret.txt",
        "/run/outside/run",
        "/run/interrupted/metrics.jsonl",
        "/run/interrupted/",
        "/run/%00",
        "/run/%ff",
        "/etc/passwd",
        "/run/",
        "/run",
    ):
        status, text = ask(server, path)
        assert status == 404, path
        assert "secret" not in text, path


def test_a_folder_that_is_a_run_is_a_list_of_one(runs: Path) -> None:
    with LiveServer(runs / "interrupted", port=0) as server:
        (line,) = server.pages._look()
        assert server.pages.page(line.address) is not None


def test_a_run_is_drawn_again_only_after_a_change_and_a_pause(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Path] = []
    monkeypatch.setattr(live_server, "render", lambda run, **_: (drawn.append(run.path), f"page {len(drawn)}")[1])
    run = RunFolder.open(server.pages.watched.folder / "interrupted")
    pages = [ask(server, "/run/interrupted")[1] for _ in range(3)]
    assert pages == ["page 1"] * 3
    run.append({"step": 4, "tokens": 256, "loss": 1.0})
    monkeypatch.setattr(live_server, "SHARE_OF_DRAWING", 1e-9)
    server.pages.drawn.clear()
    assert ask(server, "/run/interrupted")[1] == "page 2"
    run.append({"step": 5, "tokens": 320, "loss": 1.0})
    assert ask(server, "/run/interrupted")[1] == "page 2"
    server.pages.drawn["interrupted"] = live_server.Drawn((), "old", stays_until=0.0)
    assert ask(server, "/run/interrupted")[1] == "page 3"


def test_samples_that_are_written_after_the_end_of_a_run_appear(server: LiveServer) -> None:
    run = RunFolder.open(server.pages.watched.folder / "study" / "finished")
    assert "Once upon a time" not in ask(server, "/run/study/finished")[1]
    run.write_samples([{"temperature": 0.8, "seed": 0, "text": "Once upon a time"}])
    server.pages.drawn["study/finished"] = replace(server.pages.drawn["study/finished"], stays_until=0.0)
    assert "Once upon a time" in ask(server, "/run/study/finished")[1]


@in_browser
def test_in_a_browser_the_page_refreshes_and_shows_a_new_run(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    page, asked = server.pages.page, []

    def page_of_a_growing_folder(path: str, since: str) -> str | None:
        """At first the folder gets new runs. Later a run goes on, which alone is sent."""
        text = page(path, since)
        if path == "/":
            asked.append(path)
            run = begun(server.pages.watched.folder / f"later-{min(len(asked), 2)}")
            if len(asked) > 2:
                run.append({"step": 77, "tokens": 4928, "loss": 0.5})
        return text

    monkeypatch.setattr(server.pages, "page", page_of_a_growing_folder)
    document = opened(server.address, tmp_path, milliseconds=9000)
    assert len(asked) > 3
    assert 'href="/run/later-1"' in document
    assert "77 of 100" in document
    assert re.search(r'class="gone"[^>]* hidden', document)


def test_the_command_prints_the_address_and_ends_with_one_line(
    attractor: Command, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: LiveServer) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(LiveServer, "serve_forever", interrupted)
    code, said, errors = attractor("watch", str(runs), "--port", "0")
    address, end = said.splitlines()
    assert code == 0, errors
    assert re.match(r"http://127\.0\.0\.1:\d+/ shows the runs in ", address)
    assert "runs go on" in end


def test_a_port_that_is_taken_is_refused_in_one_line(attractor: Command, runs: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert_refused(
            attractor("watch", str(runs), "--port", str(port)), f"port must be free to listen on, and {port}"
        )
