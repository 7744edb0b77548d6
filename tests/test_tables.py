"""One table reads alike from every format, and what is no table is refused in one line."""

import csv
import gzip
import json
import math
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attractor import tables
from attractor.errors import InputError
from attractor.tables import LARGEST, MOST_CELLS, read_table

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
COLUMNS = st.integers(1, 5).flatmap(
    lambda n: st.fixed_dictionaries(
        {
            "row": st.lists(TEXT, min_size=n, max_size=n),
            "seed": st.lists(st.integers(0, 2**62), min_size=n, max_size=n),
            "value": st.lists(st.none() | st.floats(), min_size=n, max_size=n),
        }
    )
)


@given(columns=COLUMNS)
def test_formats_agree(tmp_path_factory: pytest.TempPathFactory, columns: dict) -> None:
    folder = tmp_path_factory.mktemp("formats")
    records = [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    for name, delimiter in (("a.csv", ","), ("a.tsv", "\t"), ("a.txt", ";")):
        with (folder / name).open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, delimiter=delimiter).writerows([list(columns), *(record.values() for record in records)])
    (folder / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "records.json").write_text(json.dumps(records, indent=1))
    (folder / "columns.json").write_text(json.dumps(columns))
    nested = {"tags": [["a"]] * len(records), "config": [{"rate": 1}] * len(records)}  # which only Parquet leaves out
    pyarrow.parquet.write_table(pyarrow.table(nested | columns), folder / "a.parquet")
    with pytest.raises(InputError, match="column 'tags' must hold texts or numbers, and in"):
        list(tables.parquet_batches(folder / "a.parquet", ["tags"]))
    for path in [path for path in folder.iterdir() if path.suffix != ".parquet"]:
        (folder / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    read = [read_table(path) for path in folder.iterdir()]
    assert len(read) == 13
    expected = [math.nan if value is None else value for value in columns["value"]]
    for table in read:
        assert list(table.columns) == list(columns)
        assert table.texts("row") == [text or None for text in columns["row"]]
        assert table.texts("seed") == [str(seed) for seed in columns["seed"]]
        numbers = table.numbers("value")
        assert [number is None for number in numbers] == [value is None for value in columns["value"]]
        assert list(map(str, [math.nan if n is None else n for n in numbers])) == list(map(str, expected))


def test_numbers_are_read_leniently(tmp_path: Path) -> None:
    cells = ["3.28", " 1e-3 ", "NaN", "-inf", "+Infinity", "", "N/A", "null", "7"]
    (tmp_path / "a.csv").write_text("a,b\n" + "".join(f"x,{cell}\n" for cell in cells), encoding="utf-8-sig")
    numbers = read_table(tmp_path / "a.csv").numbers("b")
    assert str(numbers) == str([3.28, 1e-3, math.nan, -math.inf, math.inf, None, None, None, 7.0])


def test_a_formula_is_a_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('row,value\n"=HYPERLINK(""http://x"")",1\n')
    assert read_table(tmp_path / "a.csv").texts("row") == ['=HYPERLINK("http://x")']


def sparse(path: Path) -> None:
    """Make a file that is larger than what is read, and takes no room."""
    with path.open("wb") as file:
        file.truncate(LARGEST + 1)


REFUSED: dict[str, tuple[Callable[[Path], object] | bytes, str]] = {
    "empty": (b"", "with rows below"),
    "blank": (b"\n\n", "with rows below"),
    "no rows": (b"row,value\n", "with rows below"),
    "no records": (b"[]", "with rows below"),
    "wide row": (b"row,value\na,1\nb,2,3\n", "line 3 .*: 3 fields where the header has 2"),
    "open quote": (b'row,value\n"a,1\n', "line 2"),
    "same name twice": (b"a,a\n1,2\n", "two of 'a'"),
    "not UTF-8": ("räw,value\n".encode("latin-1"), "byte 2 .*iconv"),
    "binary": (b"PK\x03\x04\0\0", "not binary data"),
    "broken line": (b'{"a": 1}\n{"a": \n', "line 2"),
    "numbers alone": (b"[1, 2]", "list of objects"),
    "unequal columns": (b'{"a": [1], "b": [1, 2]}', "equally long"),
    "deep JSON": (b"[" * 100_000, "line 1"),
    "many cells": (json.dumps([{str(n): 0} for n in range(math.isqrt(MOST_CELLS) + 1)]).encode(), "at most"),
    "Parquet only by its first bytes": (b"PAR1 and no more", "must be a Parquet file"),
    "cut gzip": (gzip.compress(b"a,b\n1,2\n")[:-5], "must be a whole gzip file"),
    "damaged gzip": (b"\x1f\x8b and no more", "must be a whole gzip file"),
    "too large when unpacked": (gzip.compress(bytes(LARGEST + 1), 1), "at most 128 MiB when it is unpacked"),
    "too large": (sparse, "at most 128 MiB"),
    "pipe": (os.mkfifo, "regular file"),
    "folder": (os.mkdir, "cannot be read: Is a directory"),
    "absent": (lambda path: None, "cannot be read"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_table_is_refused_in_a_line(case: str, tmp_path: Path) -> None:
    content, message = REFUSED[case]
    path = tmp_path / "input"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        content(path)
    with pytest.raises(InputError, match=message) as error:
        read_table(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_short_codes_for_long_texts_do_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Criterion: batches stay below the limit, give every row, and a table that does not fit is refused."""
    texts = pyarrow.DictionaryArray.from_arrays([0, 1] * 150, ["x" * 100_000, "y"])
    path = tmp_path / "coded.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), path, store_schema=False, row_group_size=200)
    monkeypatch.setattr(tables, "BATCH_BYTES", 1 << 20)
    batches = list(tables.parquet_batches(path))
    assert max(batch.nbytes for *_, batch in batches) <= 1 << 20
    assert [text for *_, batch in batches for text in batch.column(0).to_pylist()] == texts.to_pylist()
    assert next(tables.parquet_batches(path, start=250))[0] > 200
    monkeypatch.setattr(tables, "MOST_BYTES", 4 << 20)
    with pytest.raises(InputError, match="at most 4 MiB when it is unpacked"):
        read_table(path)


def test_a_text_among_numbers_is_refused_where_it_stands(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("row,loss\na,1\nb,3.2x\n")
    with pytest.raises(InputError, match=r"column 'loss' .* row 2 of '.*a\.csv' has '3\.2x'; mend"):
        read_table(tmp_path / "a.csv").numbers("loss")
