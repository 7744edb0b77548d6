"""Every source format gives the same documents, reading continues from any record, and each flaw has a reason."""

import gzip
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from table_files import written

from attractor.corpus import readers, records, sources
from attractor.corpus.documents import SEPARATOR_LINE
from attractor.corpus.prepare import Preparation, prepare
from attractor.corpus.records import Source
from attractor.corpus.sources import documents, open_source
from attractor.errors import InputError
from attractor.files import in_json
from attractor.tables import FlawError

TEXTS = ['one\ntwo, "three"', "  spaces  ", "é 日本\r\nlast", "<|endoftext|> in passing", "x" * 300]


NAMES = ("a.txt", "a.jsonl", "a.csv", "a.tsv", "a.parquet", "a.arrow", "a.jsonl.gz", "a.txt.gz")


def texts_of(source: Source) -> list[str]:
    return [text.decode() for _, text in documents(source, max_bad=1)]


@pytest.mark.parametrize("name", NAMES)
def test_every_format_gives_the_documents_and_continues_from_any_record(tmp_path: Path, name: str) -> None:
    source = open_source(str(written(tmp_path, name, TEXTS)))
    wanted = [text + "\n" for text in TEXTS[:-1]] + TEXTS[-1:] if ".txt" in name else TEXTS
    found = list(source.records())
    assert [source.text(record) for record in found] == wanted
    for record, behind in zip(found, [*found[1:], None], strict=True):
        rest = list(source.records(0, record.after))
        assert rest[:1] == ([] if behind is None else [behind])
        assert len(rest) == len(found) - found.index(record) - 1
    assert 0 <= found[0].read <= found[-1].read <= 1


@given(
    st.lists(
        st.sampled_from([b"<|endoftext|>", b"<|endoftext|>\r", b"a", b"bb bb", b"", b" <|endoftext|>", b"cccccccc"])
    ),
    st.booleans(),
    st.integers(1, 7),
)
def test_the_size_of_blocks_does_not_change_the_documents_of_a_text(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], ended: bool, size: int
) -> None:
    """Criterion: for any block size the documents are the texts between separators, if none is too long."""
    whole = b"\n".join(lines) + b"\n" * ended
    parts = SEPARATOR_LINE.split(whole)
    assume(max(map(len, parts)) <= 100)
    path = tmp_path_factory.mktemp("text") / "a.txt"
    path.write_bytes(whole)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers, "READ_SIZE", size)
        patch.setattr(readers, "LONGEST_TEXT", 100)
        found = [raw for *_, raw in readers.read_text(path, 0, ())]
    assert found == (parts if parts[-1] else parts[:-1])


def test_a_text_that_is_too_long_is_cut_at_a_line_without_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "LONGEST_TEXT", 1000)
    monkeypatch.setattr(readers, "READ_SIZE", 512)
    monkeypatch.setattr(records, "LONGEST_TEXT", 1000)
    text = "".join(f"line {i:04} é\n" for i in range(1000)) + "é" * 3000
    (tmp_path / "a.txt").write_text(text)
    found = [raw for *_, raw in readers.read_text(tmp_path / "a.txt", 0, ())]
    assert b"".join(found).decode() == text
    assert max(map(len, found)) <= 1001
    assert all(raw.endswith(b"\n") for raw in found[:10])
    assert all(raw.decode() for raw in found), "no character is cut"
    for at, after, _, raw in readers.read_text(tmp_path / "a.txt", 0, ()):
        assert (after - at, next(readers.read_text(tmp_path / "a.txt", at, ()))[3]) == (len(raw), raw)
    assert b"".join(records.parts(text)).decode() == text
    assert len(list(records.parts(text))) == len(found)


def test_a_folder_is_read_by_sorted_name_and_others_are_named(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / ".git").mkdir()
    for name in ("z.md", "a.txt", "deep/b.txt", ".hidden.txt", ".git/c.txt", "picture.png"):
        (tmp_path / name).write_text(f"text of {name}")
    source = open_source(str(tmp_path))
    assert texts_of(source) == ["text of a.txt", "text of deep/b.txt", "text of z.md"]
    assert source.skipped == ("picture.png",)  # type: ignore[attr-defined]


def test_a_pattern_names_files(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt", "c.md"):
        (tmp_path / name).write_text(f"text of {name}")
    assert texts_of(open_source(f"{tmp_path}/*.txt")) == ["text of a.txt", "text of b.txt"]
    with pytest.raises(InputError, match="matches none"):
        open_source(f"{tmp_path}/*.csv")


def test_a_saved_data_set_is_read_by_its_own_list(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    half = datasets.Dataset.from_dict({"text": TEXTS, "id": list(range(len(TEXTS)))})
    datasets.DatasetDict({"train": half, "test": half.select([0])}).save_to_disk(str(tmp_path / "saved"))
    assert texts_of(open_source(str(tmp_path / "saved"))) == TEXTS
    assert texts_of(open_source(str(tmp_path / "saved"), split="test")) == TEXTS[:1]
    assert texts_of(open_source(str(tmp_path / "saved" / "train"))) == TEXTS
    with pytest.raises(InputError, match="unknown split 'tests'; did you mean 'test'"):
        open_source(str(tmp_path / "saved"), split="tests")


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet", "a.arrow"])
def test_a_missing_column_is_refused_with_the_existing_ones(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, name, TEXTS)
    with pytest.raises(InputError, match=r"column 'body' must be in .*, but '.*' has (id, text|text, id); give"):
        list(open_source(str(path), ("body",)).records())


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{'text': 1}", "not JSON: Expecting property name"),
        (b'{"text": "\xff"}', "not UTF-8 at byte 10"),
        (b'{"text": "\\ud800"}', "half a surrogate pair at character 0 of column 'text'"),
        (b"[1]", "not a JSON object"),
        (b'{"title": "x"}', "no column 'text'"),
        (b'{"text": 5}', "column 'text' holds no text but int"),
        (b"[" * 100_000, "not JSON: "),
    ],
)
def test_a_malformed_line_has_a_reason_and_stops_nothing(tmp_path: Path, line: bytes, reason: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "first"}\n' + line + b'\n{"text": "last"}\n')
    source = open_source(str(tmp_path / "a.jsonl"))
    first, malformed, last = source.records()
    assert (source.text(first), source.text(last)) == ("first", "last")
    with pytest.raises(FlawError, match=reason):
        source.text(malformed)


def test_rows_that_do_not_fit_their_header_are_flaws(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b'id,text\n1,one\n2\n3,a,b\n4,\xff\n5,five\n6,"open')
    source = open_source(str(tmp_path / "a.csv"))
    reasons = []
    for record in source.records():
        try:
            reasons.append(source.text(record))
        except FlawError as flaw:
            reasons.append(str(flaw))
    fields = ["1 fields where the header has 2", "3 fields where the header has 2"]
    assert reasons[:5] == ["one", *fields, "not UTF-8 at character 0", "five"]
    assert reasons[5].startswith("not a row: ")


@pytest.mark.parametrize(
    ("name", "content", "texts"),
    [
        ("a.jsonl", b"x" * 1000 + b'\n{"text": "last"}', ["last"]),
        ("a.csv", b"\n\nid,text\n1,one\n", ["one"]),
        ("a.txt", b"fine\n<|endoftext|>\n\xe9\n<|endoftext|>\nfine, too", ["fine\n", "fine, too"]),
    ],
    ids=["an endless line", "blank lines before a header", "bytes that are not UTF-8"],
)
def test_what_is_no_text_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes, texts: list[str]
) -> None:
    monkeypatch.setattr(readers, "LONGEST_LINE", 100)
    (tmp_path / name).write_bytes(content)
    assert texts_of(open_source(str(tmp_path / name))) == texts


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.png", b"", r"file type must be one of .txt, .*\.jsonl"),
        ("a.parquet.gz", b"", "file type must be one of"),
        ("a.jsonl.gz", gzip.compress(b'{"text": "x"}\n' * 9000, mtime=0)[:-30], "gzip file must be whole"),
        ("a.txt.gz", b"text", "gzip file must be whole"),
        ("b.jsonl.gz", b'{"text": "not zipped"}', "gzip file must be whole"),
        ("c.jsonl.gz", gzip.compress(b'{"text": "x"}', mtime=0)[:-10], "gzip file must be whole"),
        ("a.csv", b'"id"s,text\n1,one\n', "table must begin with its columns' names, but '.*' does not"),
        ("a.parquet", b"text", "file must be parquet, but '.*' cannot be read as such"),
        ("a.arrow", b"text", "file must be arrow, but '.*' cannot be read as such"),
    ],
)
def test_an_unreadable_file_is_refused_with_the_reason(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        list(open_source(str(tmp_path / name)).records())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_a_damaged_body_is_refused_as_a_flaw_of_the_file(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, name, TEXTS)
    raw = bytearray(path.read_bytes())
    if name == "a.arrow":
        del raw[len(raw) // 2 :]
    else:  # damages all pages but not the footer, whose last bytes hold its length
        pages = slice(4, len(raw) - 8 - int.from_bytes(raw[-8:-4], "little"))
        raw[pages] = b"Z" * (pages.stop - pages.start)
    path.write_bytes(raw)
    with pytest.raises(InputError, match=f"file must be {path.suffix[1:]}, but '.*' cannot be read as such"):
        list(open_source(str(path)).records())


def test_lines_of_a_text_become_articles(tmp_path: Path) -> None:
    articles = [" \n = One = \n\n = = Part = = \n one \n", " = Two = \n \n two <unk> \n"]
    (tmp_path / "wiki.txt").write_text(articles[0][2:] + articles[1])
    source = open_source(str(tmp_path / "wiki.txt"), articles=True)
    first, second = source.records()
    assert [source.text(first), source.text(second)] == [articles[0][2:], articles[1]]
    assert list(source.records(0, first.after)) == [second]


def test_the_flawed_line_of_an_article_is_named(tmp_path: Path) -> None:
    (tmp_path / "wiki.txt").write_bytes(b" = One = \nfine\n = Two = \nfine\ncaf\xe9\nfine\n")
    source = open_source(str(tmp_path / "wiki.txt"), articles=True)
    with pytest.raises(InputError, match=r"the first is line 5 of 'wiki.txt': not UTF-8 at byte 3"):
        list(documents(source))
    _, flawed = source.records()
    assert flawed.after == (tmp_path / "wiki.txt").stat().st_size


def test_lines_without_a_title_do_not_accumulate_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attractor.corpus.articles.LONGEST_TEXT", 100)
    (tmp_path / "a.txt").write_text("twenty signs a line\n" * 100)
    source = open_source(str(tmp_path / "a.txt"), articles=True)
    found = list(source.records())
    assert max(len(record.raw) for record in found) == 120
    assert "".join(source.text(record) for record in found) == "twenty signs a line\n" * 100
    assert list(source.records(0, found[3].after)) == found[4:]


def test_a_prepared_corpus_is_no_source_and_is_left_out_of_its_folder(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(f"a text of {name}\n" * 9)
    wanted = Preparation(str(tmp_path), tmp_path / "corpus", workers=1)
    first = prepare(wanted)
    assert prepare(wanted).fingerprint == first.fingerprint
    assert open_source(str(tmp_path)).files == ("a.txt", "b.txt")
    with pytest.raises(InputError, match=r"'.*corpus' is a prepared corpus; give the source that it was made from"):
        open_source(str(tmp_path / "corpus"))


@pytest.mark.parametrize("options", [{"columns": ("body",)}, {"split": "test"}])
def test_an_option_that_plain_text_has_not_is_refused(tmp_path: Path, options: dict) -> None:
    (tmp_path / "a.txt").write_text("words\n" * 9)
    with pytest.raises(InputError, match=r"(column|split) must be left out with .*; leave it out"):
        prepare(Preparation(str(tmp_path / "a.txt"), tmp_path / "out", **options))


def test_a_built_in_corpus_is_not_replaced_by_a_folder_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "CORPORA", {"stdlib-docs": lambda: [("a", b"built in")]})
    monkeypatch.chdir(tmp_path)
    Path("stdlib-docs").mkdir()
    Path("stdlib-docs/a.txt").write_text("a folder")
    assert texts_of(open_source("stdlib-docs")) == ["built in"]
    assert texts_of(open_source("./stdlib-docs")) == ["a folder"]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("a.png", "", r"files of a known type .* but '.*' has .png; give another"),
        ("state.json", '{"mine": 1}', "state.json' must be what save_to_disk of the datasets library writes"),
        ("dataset_dict.json", "mine", "dataset_dict.json' must be what save_to_disk of the datasets library writes"),
    ],
)
def test_a_folder_that_is_no_source_is_refused_with_its_contents(
    tmp_path: Path, file: str, content: str, message: str
) -> None:
    (tmp_path / file).write_text(content)
    with pytest.raises(InputError, match=message):
        open_source(str(tmp_path))


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_short_codes_for_long_texts_do_not_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Criterion: 300 rows that share a text of 100 kB are read in 5 MB."""
    monkeypatch.setattr("attractor.tables.BATCH_BYTES", 1 << 20)
    source = open_source(str(written(tmp_path, name, ["x" * 100_000] * 300)), ("text",))
    tracemalloc.start()
    assert sum(len(source.text(record)) for record in source.records()) == 300 * 100_000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5_000_000


def test_a_column_must_hold_text(tmp_path: Path) -> None:
    path = written(tmp_path, "a.parquet", TEXTS)
    with pytest.raises(InputError, match=r"column 'id' must hold text, but in '.*' it holds int64"):
        list(open_source(str(path), ("id",)).records())


@pytest.mark.slow
def test_a_built_in_corpus_is_a_source() -> None:
    source = open_source("stdlib-docs")
    found = list(source.records())
    assert len(found) > 100
    assert next(source.records(7, 1)) == found[8]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wikitext-13", "unknown source 'wikitext-13'; did you mean 'wikitext-103'"),
        ("missing/novel.txt", "'missing/novel.txt' does not exist"),
        ("", "data must have a name, got ''"),
        ("~nobody123/a.txt", "~ must stand before / or the name of a user, got '~nobody123/a.txt'; give a whole path"),
        ("texts/a**b/*.txt", r"\*\* must be a whole part of a pattern, got 'texts/a\*\*b/\*.txt'"),
    ],
)
def test_a_name_that_is_not_a_source_is_refused(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        open_source(name)


def test_many_files_are_identified_by_a_checksum_in_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Criterion: beyond the number that is listed one by one, the identity has a fixed size and tells changed names and
    sizes, and an open source takes less than 300 bytes a file. Paths took 550, JSON of a list 1,500."""
    monkeypatch.setattr(sources, "MOST_LISTED", 100)
    n = 2000
    for number in range(n):
        (tmp_path / f"document-{number:05}.txt").write_text("text" * (1 + number % 3))
    open_source(str(tmp_path))  # what Python keeps after a first time does not count
    tracemalloc.start()
    source = open_source(str(tmp_path))
    in_json(source.identity)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 300 * n
    before = source.identity
    assert before["files"]["count"] == n
    assert len(in_json(before)) < 500
    (tmp_path / "document-00000.txt").write_text("more text")
    changed = open_source(str(tmp_path)).identity
    (tmp_path / "document-00001.txt").rename(tmp_path / "document-1.txt")
    renamed = open_source(str(tmp_path)).identity
    assert before != changed != renamed
