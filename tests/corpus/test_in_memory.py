"""Corpora in memory give the same documents from every file format, and content that is not text is refused."""

import codecs
import gzip
import io
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet
from table_files import FILES, as_cells, as_lines, written, zstd

from attractor import tables
from attractor.corpus import compression, in_memory, readers
from attractor.corpus.in_memory import documents_at
from attractor.corpus.prepare import Preparation, prepare
from attractor.corpus.sources import documents, open_source
from attractor.errors import InputError
from attractor.tasks.text import Text, load_corpus

DOCUMENTS = [f"document {i} says é 日本 and\nends" + "." * i for i in range(40)]
CUT, ZST = zstd(as_lines(DOCUMENTS))[:-5], ("a.zst", "a.jsonl.zst")
PLAIN = FILES.keys() - {"a.parquet", "a.arrow"}
COMPRESSED = {f"{name}{suffix}" for name in PLAIN for suffix in compression.SUFFIXES}


@pytest.mark.parametrize("name", sorted(FILES.keys() | COMPRESSED))
def test_every_file_gives_the_documents_that_were_written(tmp_path: Path, name: str) -> None:
    found = [text.decode() for _, text in documents_at(written(tmp_path, name, DOCUMENTS))]
    assert [text.removesuffix("\n") for text in found] == DOCUMENTS


@pytest.mark.parametrize("name", ["b.jsonl", "b.jsonl.gz", "b.csv", "b.parquet"])
def test_the_fingerprint_is_that_of_the_documents(tmp_path: Path, name: str) -> None:
    """Criterion: other columns and the names of the column and the file do not change it; another document does."""
    lines = load_corpus(written(tmp_path, "a.jsonl", DOCUMENTS))
    other = load_corpus(written(tmp_path, name.replace("b", "a", 1), DOCUMENTS).rename(tmp_path / name))
    assert other.fingerprint == lines.fingerprint
    (tmp_path / "c.jsonl").write_bytes(as_lines(DOCUMENTS, "body"))
    assert load_corpus(tmp_path / "c.jsonl").fingerprint == lines.fingerprint
    (tmp_path / "d.jsonl").write_bytes(as_lines([*DOCUMENTS[:-1], "another"]))
    assert load_corpus(tmp_path / "d.jsonl").fingerprint != lines.fingerprint


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet"])
def test_a_table_in_memory_and_prepared_has_the_same_held_out_set(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, name, DOCUMENTS)
    prepared = prepare(Preparation(str(path), tmp_path / "prepared"))
    for side in ("train", "valid"):
        tokens = getattr(prepared, side)[:]
        assert np.array_equal(tokens[:-1], getattr(load_corpus(path), side)), "but for the last end of text"


def test_a_folder_holds_texts_and_tables_of_one_column(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    written(tmp_path / "deep", "a.jsonl", DOCUMENTS[:2])
    (tmp_path / "b.jsonl").write_bytes(as_lines(DOCUMENTS[2:4]))
    (tmp_path / "c.txt").write_text("a text")
    (tmp_path / "package.json").write_text('{\n  "name": "no table"\n}')
    found = [text.decode() for _, text in documents_at(tmp_path)]
    assert found == [*DOCUMENTS[2:4], "a text", *DOCUMENTS[:2], '{\n  "name": "no table"\n}']
    (tmp_path / "z.csv").write_bytes(as_cells(DOCUMENTS, ",", "body"))
    with pytest.raises(InputError, match=r"column 'text' must be in every file, but '.*z.csv' has id, body; give"):
        documents_at(tmp_path)


@pytest.mark.parametrize(
    ("content", "column", "wanted"),
    [
        (b'{"n": 1, "body": "one"}\n{"n": 2, "body": null}\n', None, "one"),
        (b'{"title": "t", "text": "one"}\n', None, "one"),
        (b'{"title": "t", "body": "one"}\n', "body", "one"),
        (b'{"title": "t", "body": "one"}\n{"title": null, "body": "two"}\n', "title, body", "t\n\none two"),
    ],
)
def test_the_column_is_named_or_unambiguous(tmp_path: Path, content: bytes, column: str | None, wanted: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(content)
    assert " ".join(text.decode() for _, text in documents_at(tmp_path / "a.jsonl", column) if text) == wanted


def test_numbers_in_cells_are_no_strings(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,score,body\n1,0.5,one\n2,-1e3,two\n")
    assert [text for _, text in documents_at(tmp_path / "a.csv")] == [b"one", b"two"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"title": "t", "body": "b"}', r"'.*a.jsonl' has title, body; give --column NAME"),
        ("a.csv", b"title,body\nx,y\n", r"'.*a.csv' has title, body; give --column NAME"),
        ("a.jsonl", b'{"text": "x"}\n\n[1]\n', "the first is line 3 of 'a.jsonl': not a JSON object"),
        ("a.jsonl", b'{"text": "x"}\n{"t": "y"}\n', "the first is line 2 of 'a.jsonl': no column 'text'"),
        ("a.jsonl", b'{"text": "x"}\n{"text": 5}\n', "line 2 of 'a.jsonl': column 'text' holds no text but int"),
        ("a.jsonl", b'{"text": "x"}\nword\n', "line 2 of 'a.jsonl': not JSON"),
        ("a.csv", b'text,id\n"x\ny",1\nz\n', "line 4 of 'a.csv': 1 fields where the header has 2"),
        ("a.jsonl", b'{"text": "x"}\n{"text": "\xe9"}', r"line 2 of .*: not UTF-8 at byte 10; convert .* iconv -f"),
        ("a.csv", b"text\nx\n\xe9\n", "line 3 of 'a.csv': not UTF-8 at character 0; convert .* iconv -f"),
        ("a.csv", b"text\nx\0\n", "line 2 of 'a.csv': no text but binary data, with a NUL character"),
        ("a.txt", b"ab\0c", "must be UTF-8 text, but '.*' has a NUL byte at offset 2; it is binary, so give another"),
        ("a.txt", b"abc\xff", "has a byte at offset 3 that is not UTF-8; convert it, .*: iconv -f latin-1"),
        ("a.txt", "text".encode("utf-16"), "a byte at offset 0 that is not UTF-8; .* iconv -f utf-16"),
        ("a.txt.gz", gzip.compress(b"ab\xe2\x82", mtime=0), "a byte at offset 2 that is not UTF-8"),
        ("a.txt.gz", gzip.compress(b"text" * 99, mtime=0)[:-9], "gzip file must be whole"),
        *((name, CUT, r"zst file must be whole, but '.*' is not \(Truncated compressed stream\)") for name in ZST),
        *((name, b"no zst", "zst file must be whole") for name in ZST),
        ("a.json", b'[{"text": "x"}]', r"json file must hold one object in each line, but .* run: jq -c"),
        ("a.json", b'{\n  "text": "x"}', "json file must hold one object in each line"),
    ],
)
def test_a_file_without_text_is_refused_in_one_line(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        documents_at(tmp_path / name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "text\nx\n".encode("utf-16"), "table must be UTF-8 text, but the columns' names .* iconv -f utf-16"),
        ("a.csv", b"text,text\nx,y\n", "columns must have different names, and .* has two of 'text'; rename one"),
        ("a.jsonl", b'{"text": "x"}\n{"text": "ab\\ud83d"}\n',
            "half a surrogate pair at character 2 of column 'text'; mend or remove"),  # which is no matter of encoding
    ],
)  # fmt: skip
def test_unreadable_tables_are_refused_as_streams_too(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message) as said:
        list(documents(open_source(tmp_path / name), max_bad=0))
    assert ("iconv" in str(said.value)) == ("iconv" in message)


@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8], ids=["plain", "with a mark"])
@pytest.mark.parametrize("name", ["a.txt", "A.TXT"])
def test_a_byte_order_mark_and_capitals_change_no_document(tmp_path: Path, name: str, mark: bytes) -> None:
    (tmp_path / name).write_bytes(mark + b"one\n<|endoftext|>\ntwo")
    for found in (documents_at(tmp_path / name), documents(open_source(tmp_path / name), max_bad=0)):
        assert [text.strip() for _, text in found] == [b"one", b"two"]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.csv", "a.tsv", "a.json", "a.parquet", "a.txt"])
def test_an_empty_file_has_no_text(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, name, [])
    if name in ("a.jsonl", "a.csv"):
        path.write_bytes(b"")
    if name == "a.txt":
        path.write_bytes(b" \n\n")
    with pytest.raises(InputError, match=r"corpus must contain text, but '.*' has none"):
        load_corpus(path)


@pytest.mark.parametrize("use_dictionary", [True, False])
@pytest.mark.parametrize("n_rows", [1, 4])
def test_a_parquet_file_that_unpacks_to_far_more_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_rows: int, use_dictionary: bool
) -> None:
    """Criterion: from what the file says of itself, before a cell is read."""
    monkeypatch.setattr(tables, "BATCH_BYTES", 1 << 20)
    monkeypatch.setattr(tables, "LARGEST", 2 << 20)
    table = pyarrow.table({"text": [str(row) + "x" * (4 << 20) for row in range(n_rows)]})
    parquet.write_table(table, tmp_path / "a.parquet", compression="zstd", use_dictionary=use_dictionary)
    assert (tmp_path / "a.parquet").stat().st_size < 10_000
    with pytest.raises(InputError, match=r"column 'text' of '.*' must be at most 1 MiB a cell, and 1000 times its"):
        load_corpus(tmp_path / "a.parquet")


def test_a_column_is_refused_where_there_is_no_table_or_it_has_no_name(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a text")
    prepare(Preparation(str(written(tmp_path, "a.jsonl", DOCUMENTS)), tmp_path / "prepared"))
    for corpus in (tmp_path / "a.txt", tmp_path / "prepared", "stdlib-docs"):
        with pytest.raises(InputError, match=r"column must be left out with .*, got 'text'"):
            load_corpus(corpus, "text")
    with pytest.raises(InputError, match="column must be one name or several, as title,abstract, got 'text,'"):
        documents_at(tmp_path / "a.jsonl", "text,")


def test_without_a_column_a_configuration_is_stored_as_before() -> None:
    assert Text("a.txt").to_dict() == {"kind": "text", "corpus": "a.txt"}
    named = Text("a.jsonl", "body")
    assert Text.from_dict({k: v for k, v in named.to_dict().items() if k != "kind"}) == named


@pytest.mark.parametrize("name", ["a.jsonl.zst", "a.parquet"])
def test_a_missing_package_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (tmp_path / name).write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"package 'pyarrow' must be installed .* pip install -e '..text.'"):
        documents_at(tmp_path / name)


@pytest.mark.parametrize("suffix", compression.SUFFIXES)
def test_a_file_that_unpacks_too_far_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    """Criterion: a few kilobytes decompress to 64 MiB, of which only the beginning is ever in memory."""
    monkeypatch.setattr(in_memory, "MEMORY_SHARE", 1 << 60)
    content = io.BytesIO(b" " * (1 << 26))
    if suffix == ".gz":
        (tmp_path / "a.txt.gz").write_bytes(gzip.compress(content.getvalue(), 1))
    else:
        (tmp_path / "a.txt.zst").write_bytes(pyarrow.Codec("zstd").compress(content.getvalue(), asbytes=True))
    del content
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=r"corpus must be at most .* of text to be held in memory"):
            documents_at(tmp_path / f"a.txt{suffix}")
        assert tracemalloc.get_traced_memory()[1] < 40 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.jsonl.gz", "a.parquet"])
def test_reading_a_large_table_takes_little_memory_besides_its_documents(tmp_path: Path, name: str) -> None:
    """Criterion: neither the whole file nor all of its rows are ever in memory."""
    texts = [f"{i:09} " * 100 for i in range(6000)]
    path = written(tmp_path, name, texts)
    documents_at(path)  # the first call imports the readers
    tracemalloc.start()
    try:
        found = documents_at(path)
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(len(text) for _, text in found) == 6_000_000
    assert peak - held < 4 * readers.READ_SIZE, "a few blocks"
