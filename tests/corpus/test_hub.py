"""Data sets of the Hugging Face Hub are read, with local data in place of the network."""

from pathlib import Path
from typing import Any

import pytest

from attractor.corpus import hub
from attractor.corpus.network import reachable
from attractor.corpus.prepare import Preparation, prepare
from attractor.corpus.sources import open_source
from attractor.errors import InputError

datasets = pytest.importorskip("datasets")

LINES = ["", " = First = \n", "", " one \n", " = = Part = = \n", " two \n", " = Second = \n", " three \n"]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Replace the library by one that returns the lines above; return the arguments of its calls."""
    calls: list[dict[str, Any]] = []

    def load_dataset(path: str, name: str | None, **others: Any) -> Any:
        calls.append({"path": path, "name": name, **others})
        return datasets.Dataset.from_dict({"text": LINES, "title": list("abcdefgh")}).to_iterable_dataset()

    monkeypatch.setattr(hub, "reachable", lambda: True)
    monkeypatch.setattr(hub, "_commit", lambda address: "abc123")
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return calls


def test_a_data_set_is_streamed_at_one_commit(asked: list[dict[str, Any]]) -> None:
    source = open_source("owner/name:small:title,text", split="test")
    found = list(source.records())
    assert asked == [{"path": "owner/name", "name": "small", "split": "test", "streaming": True, "revision": "abc123"}]
    assert [source.text(record) for record in found[:2]] == ["a", "b\n\n = First = \n"]
    assert list(source.records(0, found[4].after)) == found[5:]
    assert source.identity["commit"] == "abc123"


def test_lines_of_wikitext_become_articles(asked: list[dict[str, Any]]) -> None:
    source = open_source("wikitext-103")
    found = list(source.records())
    assert [source.text(record) for record in found] == ["", "".join(LINES[1:6]), "".join(LINES[6:])]
    assert [(record.position, record.after) for record in found] == [(0, 1), (1, 6), (6, 8)]
    assert list(source.records(0, 6)) == found[2:]
    assert asked[0]["path"] == "Salesforce/wikitext"


def test_a_flaw_ends_its_article_and_so_does_the_end_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": " = A = "}\n{"text": 1}\n{"text": " = B = "}\n{"text": "b"}\n')
    (tmp_path / "c.jsonl").write_text('{"text": "c"}\n')
    source = open_source(str(tmp_path), articles=True)
    found = list(source.records())
    assert [str(record.raw) for record in found] == ["column 'text' holds no text but int", " = B = b", "c"]
    for i, record in enumerate(found):
        assert [rest.raw for rest in source.records(record.file, record.after)][1:] == [r.raw for r in found[i + 2 :]]
    assert source.identity != open_source(str(tmp_path)).identity


def test_a_data_set_is_prepared(asked: list[dict[str, Any]], tmp_path: Path) -> None:
    corpus = prepare(Preparation("owner/name", tmp_path / "out"))
    assert corpus.manifest["source"]["kind"] == "hub"
    assert corpus.manifest["empty"] == 2


def test_a_missing_column_is_refused_with_the_existing_ones(asked: list[dict[str, Any]]) -> None:
    with pytest.raises(InputError, match="column 'body' must be in data set 'owner/name', which has text, title"):
        list(open_source("owner/name", ("body",)).records())


@pytest.mark.parametrize("name", ["openwebtext", "wikitext-103", "owner/name:config"])
def test_without_network_the_error_says_at_once_what_to_download(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "reachable", lambda: False)
    with pytest.raises(InputError, match=r"must be downloaded, but .* cannot be reached; .*save_to_disk") as caught:
        open_source(name)
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match=r"^'books/novel' is no file or folder here, and on the Hub: data set"):
        open_source("books/novel")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            ConnectionError("the line is dead\nand more"),
            r"is not \(ConnectionError: the line is dead\); check its name",
        ),
        (ValueError("Bad split: trian. Available splits: ['train', 'test']"), "'trian'; did you mean 'train'"),
    ],
)
def test_a_failure_during_streaming_is_one_line(
    asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, error: Exception, message: str
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(datasets, "load_dataset", broken)
    with pytest.raises(InputError, match=message) as caught:
        list(open_source("owner/name").records())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("variables", [{"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}])
def test_offline_mode_is_known_without_a_request_and_a_closed_port_is_noticed(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    reachable.cache_clear()
    try:
        assert not reachable()
    finally:
        reachable.cache_clear()
