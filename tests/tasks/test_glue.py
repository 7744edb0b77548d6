"""GLUE tasks are read from their official files, metrics keep their definitions, and batches have the right
padding."""

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from attractor.corpus.tokenizer import END_OF_TEXT, PAD, ByteTokenizer
from attractor.errors import InputError
from attractor.tasks.glue import TABLE, Glue, GlueTask
from attractor.tasks.glue.metrics import METRICS
from attractor.tasks.glue.reading import read_examples
from attractor.tasks.glue.table import file_names
from attractor.tasks.glue.task import TokenizedSplit, shares

OFFICIAL_FOLDERS = ["CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI", "QNLI", "RTE", "WNLI"]
NAMED_LABELS = {"mnli", "qnli", "rte"}  # tasks whose tsv files have the names of labels
TEXTS = ['A "quoted, text', "naïve \u2028 line", "x\x85y", "plain words", "it 's 日本"]
Row = dict[str, Any]


def rows_of(task: str, n_rows: int = 6) -> list[Row]:
    """Return rows with the column names of the Hub."""
    entry = TABLE[task]
    columns = [names[0] for names in entry.texts]
    rows: list[Row] = []
    for i in range(n_rows):
        texts = {column: f"{TEXTS[(i + j) % len(TEXTS)]} {i}" for j, column in enumerate(columns)}
        rows.append(texts | {"label": i % len(entry.labels) if entry.labels else i * 0.75})
    return rows


def write_official_tsv(path: Path, task: str, rows: list[Row]) -> None:
    """Write a file with the benchmark's own column names, and a carriage return and byte order mark, which some copies
    have."""
    entry = TABLE[task]
    texts, label = [names[-1] for names in entry.texts], entry.label_columns[-1]
    lines = [] if entry.headerless else ["\t".join([label, "index", *texts])]
    for i, row in enumerate(rows):
        value = entry.labels[row["label"]] if task in NAMED_LABELS else str(row["label"])
        sentences = [row[names[0]] for names in entry.texts]
        fields = ["gj04", value, "*", *sentences] if entry.headerless else [value, str(i), *sentences]
        lines.append("\t".join(fields))
    path.write_bytes("\ufeff".encode() + "".join(f"{line}\r\n" for line in lines).encode())


def write_task(folder: Path, task: str, rows: list[Row], parts: tuple[str, ...] = ()) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for part in parts or ("train", *TABLE[task].valid_sets):
        write_official_tsv(folder / f"{file_names(part)[-1]}.tsv", task, rows)
    return folder


def build(folder: Path, task: str = "sst2", seq_len: int = 64, seed: int = 0) -> GlueTask:
    return Glue(glue_task=task, glue_data=str(folder)).build(seq_len, seed)


@pytest.mark.parametrize("folder", OFFICIAL_FOLDERS)
def test_every_task_is_read_from_its_official_files(tmp_path: Path, folder: str) -> None:
    task = folder.lower().replace("-", "")
    rows = rows_of(task)
    write_task(tmp_path / folder, task, rows)
    for part in ("train", *TABLE[task].valid_sets):
        texts, labels, n_malformed = read_examples(task, str(tmp_path), part)
        assert texts == [tuple(row[names[0]] for names in TABLE[task].texts) for row in rows]
        assert labels.tolist() == [row["label"] for row in rows]
        assert labels.dtype == (np.int64 if TABLE[task].labels else np.float64)
        assert n_malformed == 0


@pytest.mark.parametrize(("task", "number"), [("mnli", 0), ("qnli", 0), ("rte", 0), ("wnli", 1)])
def test_entailment_has_the_number_that_the_hub_gives_it(task: str, number: int) -> None:
    """GLUE and SuperGLUE number the labels differently, and a file that has only numbers does not show which
    applies."""
    assert TABLE[task].labels.index("entailment") == number


def test_the_two_validation_sets_of_mnli_are_separate(tmp_path: Path) -> None:
    rows = rows_of("mnli", 9)
    write_task(tmp_path, "mnli", rows[:3], parts=("train",))
    write_task(tmp_path, "mnli", rows[3:5], parts=("matched",))
    write_task(tmp_path, "mnli", rows[5:], parts=("mismatched",))
    task = build(tmp_path, "mnli")
    assert task.valid_sets == ("matched", "mismatched")
    assert [len(b.inputs) for b in task.valid_batches(10)] == [2]
    assert [len(b.inputs) for b in task.valid_batches(10, part="mismatched")] == [4]
    assert "3 training examples, 2 matched, 4 mismatched" in task.describe()
    with pytest.raises(InputError, match="unknown validation set 'mismatch'; did you mean 'mismatched'"):
        task.valid_batches(10, part="mismatch")


def test_labels_may_be_names_or_numbers_of_any_spelling(tmp_path: Path) -> None:
    labels = ("negative", "positive", "0", "1", "1.0", "0.0")
    (tmp_path / "train.tsv").write_text("\n".join(["sentence\tlabel", *(f"x\t{label}" for label in labels)]))
    assert read_examples("sst2", str(tmp_path), "train").labels.tolist() == [0, 1, 0, 1, 1, 0]


def test_a_data_set_saved_to_disk_is_read(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = rows_of("qqp")
    split = datasets.Dataset.from_list(rows)
    datasets.DatasetDict({"train": split, "validation": split}).save_to_disk(tmp_path / "qqp")
    texts, labels, _ = read_examples("qqp", str(tmp_path), "valid")
    assert texts == [(row["question1"], row["question2"]) for row in rows]
    assert labels.tolist() == [row["label"] for row in rows]


def test_only_the_requested_part_is_read_from_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    asked = []

    def load_dataset(repository: str, name: str, split: str) -> Any:
        asked.append((repository, name, split))
        return datasets.Dataset.from_list(rows_of("mnli"))

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr("attractor.tasks.glue.reading.reachable", lambda: True)
    assert read_examples("mnli", "huggingface", "mismatched").labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert asked == [("nyu-mll/glue", "mnli", "validation_mismatched")]


def test_without_network_the_library_works_offline_and_the_error_names_a_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the library would retry for half a minute."""
    datasets = pytest.importorskip("datasets")
    was_offline = []

    def load_dataset(*_: object, **__: object) -> None:
        was_offline.append(datasets.config.HF_HUB_OFFLINE)
        raise ConnectionError("nothing\nthere")

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr("attractor.tasks.glue.reading.reachable", lambda: False)
    message = r"glue data 'rte' must be downloaded, but .* cannot be reached; .*save_to_disk\('FOLDER/rte'\), copy"
    with pytest.raises(InputError, match=message) as caught:
        read_examples("rte", "huggingface", "train")
    assert "\n" not in str(caught.value)
    assert was_offline == [True]
    assert datasets.config.HF_HUB_OFFLINE is False
    monkeypatch.setattr("attractor.tasks.glue.reading.reachable", lambda: True)
    with pytest.raises(InputError, match=r"must be downloaded, but the Hugging Face Hub did not give it \(nothing\);"):
        read_examples("rte", "huggingface", "train")
    assert was_offline == [True, False]


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match=r"package 'datasets' must be installed .*pip install -e '\.\[text\]'"):
        read_examples("sst2", "huggingface", "train")


@pytest.mark.parametrize(
    ("line", "flaw"),
    [
        (b"one field", r"1 fields where there are 2 columns"),
        (b"one\ttoo\tmany", r"3 fields where there are 2 columns"),
        (b"text\t2", r"label '2' is not one of negative, positive"),
        (b"text\tnan", r"label 'nan' is not one of"),
        (b"text\t-1", r"the label is hidden, as in test sets"),
        (b"  \t1", r"no text in 'sentence'"),
        (b"caf\xe9\t1", r"'sentence' is not UTF-8"),
    ],
)
def test_a_malformed_line_is_reported_and_skipped_and_many_are_an_error(tmp_path: Path, line: bytes, flaw: str) -> None:
    good = b"".join(b"text %d\t%d\n" % (i, i % 2) for i in range(199))
    (tmp_path / "train.tsv").write_bytes(b"sentence\tlabel\n" + line + b"\n" + good)
    with pytest.warns(UserWarning, match=rf"skipped 1 malformed line\(s\) of '.*train.tsv': line 2 \({flaw}.*\)"):
        texts, labels, n_malformed = read_examples("sst2", str(tmp_path), "train")
    assert (len(texts), len(labels), n_malformed) == (199, 199, 1)
    (tmp_path / "train.tsv").write_bytes(b"sentence\tlabel\n" + (line + b"\n") * 5 + good)
    with pytest.raises(InputError, match=rf"one malformed line in 100, but has 5 of 204: line 2 \({flaw}.*; line 4"):
        read_examples("sst2", str(tmp_path), "train")


def test_malformed_lines_are_counted_in_the_description(tmp_path: Path) -> None:
    write_task(tmp_path, "sst2", rows_of("sst2", 200))
    with (tmp_path / "train.tsv").open("a") as file:
        file.write("cut off")
    with pytest.warns(UserWarning, match=r"line 202 \(1 fields where there are 3 columns\)"):
        task = build(tmp_path)
    assert "200 training examples" in task.describe()
    assert task.describe().endswith("1 malformed lines left out")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train.tsv", b"", "must hold examples, but is empty; fetch it again"),
        ("train.tsv", b"sentence\tlabel\n", "must hold examples, but is empty; fetch it again"),
        ("train.tsv", b"sentence\tlabel\nx\t1" + b"0" * 400, r"1 of 1: line 2 \(label '10+ is not one"),
        ("train.tsv", b"sentence\tidx\nx\t1\n", "must have a column 'label', but has sentence, idx; rename one"),
        ("dataset_dict.json", b"{}", "must be a saved data set, but cannot be read"),
        ("train.txt", b"x", r"must hold a file 'train.tsv' or a saved .* for 'sst2', but '.*' has train.txt; add it"),
    ],
)
def test_an_unusable_file_is_refused_with_the_reason(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    if name == "dataset_dict.json":
        pytest.importorskip("datasets")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_examples("sst2", str(tmp_path), "train")
    assert "\n" not in str(caught.value)


def test_a_missing_folder_or_task_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"glue_data must be a folder, or 'huggingface', but '.*nowhere' is not"):
        read_examples("sst2", str(tmp_path / "nowhere"), "train")
    with pytest.raises(InputError, match="unknown glue_task 'sst'; did you mean 'sst2'"):
        Glue(glue_task="sst")
    with pytest.raises(InputError, match="seq_len must be at least 3 for 'rte', got 2; give"):
        build(write_task(tmp_path, "rte", rows_of("rte")), "rte", seq_len=2)


binary = st.integers(1, 30).flatmap(lambda n: st.tuples(*[st.lists(st.integers(0, 1), min_size=n, max_size=n)] * 2))
grades = st.integers(2, 30).flatmap(
    lambda n: st.tuples(*[st.lists(st.integers(0, 20).map(lambda i: i / 4), min_size=n, max_size=n)] * 2)
)


def measured(name: str, targets: list, predictions: list) -> float:
    return METRICS[name](np.array(targets), np.array(predictions))


@given(binary)
def test_classes_are_measured_as_defined(given_labels: tuple[list[int], list[int]]) -> None:
    targets, predictions = given_labels
    pairs = list(zip(targets, predictions, strict=True))
    tp = pairs.count((1, 1))
    assert measured("accuracy", targets, predictions) == sum(t == p for t, p in pairs) / len(pairs)
    precision = tp / sum(predictions) if sum(predictions) else 0
    recall = tp / sum(targets) if sum(targets) else 0
    f1 = 2 * precision * recall / (precision + recall) if tp else 0
    assert measured("f1", targets, predictions) == pytest.approx(f1)
    # Matthews' coefficient (1975) is the correlation of the two indicators.
    constant = len(set(targets)) == 1 or len(set(predictions)) == 1
    matthews = 0 if constant else np.corrcoef(targets, predictions)[0, 1]
    assert measured("matthews", targets, predictions) == pytest.approx(matthews)


def test_counts_too_large_for_64_bits_do_not_overflow() -> None:
    targets = np.tile([0, 1], 200_000)
    assert METRICS["matthews"](targets, targets) == 1.0
    assert METRICS["matthews"](targets, 1 - targets) == -1.0


@given(grades)
def test_correlations_equal_those_of_scipy(given_numbers: tuple[list[float], list[float]]) -> None:
    targets, predictions = given_numbers
    constant = len(set(targets)) == 1 or len(set(predictions)) == 1
    for name, truth in (("pearson", stats.pearsonr), ("spearman", stats.spearmanr)):
        wanted = 0 if constant else truth(targets, predictions).statistic
        assert measured(name, targets, predictions) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("name", ["pearson", "spearman"])
def test_a_prediction_that_is_nan_is_not_measured(name: str) -> None:
    assert math.isnan(measured(name, [0.0, 1.0, 2.0], [0.0, math.nan, 1.0]))


def test_numbers_that_differ_by_rounding_alone_are_constant() -> None:
    assert measured("pearson", [0.0, 1.0, 2.0], [0.1, 0.1, 0.1]) == 0.0


@pytest.mark.parametrize("task", TABLE)
def test_a_task_gives_its_official_metrics(tmp_path: Path, task: str) -> None:
    built = build(write_task(tmp_path, task, rows_of(task)), task)
    targets = np.concatenate([batch.targets for batch in built.valid_batches(4)])
    values = built.measure(targets, targets)
    assert tuple(values) == TABLE[task].metrics
    assert built.metric == TABLE[task].metrics[0]
    assert all(value == pytest.approx(1.0) for value in values.values())
    assert built.demands == {"vocab_size": 320, "n_classes": TABLE[task].n_classes}


@given(st.integers(0, 12), st.integers(0, 12), st.integers(2, 20))
def test_a_pair_that_is_too_long_loses_the_end_of_its_longer_text(n_first: int, n_second: int, room: int) -> None:
    kept = [n_first, n_second]
    while sum(kept) > room:
        kept[1 if kept[1] >= kept[0] else 0] -= 1
    kept_first, kept_second = shares(n_first, n_second, room)
    assert {kept_first, kept_second} == set(kept)
    assert kept_first + kept_second == sum(kept)
    assert (kept_first > kept_second) == (kept[0] > kept[1])


def expected(task: str, row: Row, seq_len: int) -> list[int]:
    """Return the sequence of a row that fits without truncation."""
    texts = [list(row[names[0]].encode()) for names in TABLE[task].texts]
    joined = texts[0] + (([END_OF_TEXT] + texts[1]) if len(texts) == 2 else [])
    assert len(joined) <= seq_len
    return joined


@pytest.mark.parametrize("task", ["sst2", "rte"])
@pytest.mark.parametrize("seq_len", [60, 64])
def test_a_batch_is_sequences_padded_on_the_right(tmp_path: Path, task: str, seq_len: int) -> None:
    rows = rows_of(task, 5)
    built = build(write_task(tmp_path, task, rows), task, seq_len)
    (batch,) = built.valid_batches(5)
    inputs, targets, real = batch
    wanted = [expected(task, row, seq_len) for row in rows]
    longest = max(map(len, wanted))
    assert inputs.shape == real.shape == (5, min(-(-longest // 8) * 8, seq_len))
    assert inputs.dtype == targets.dtype == np.int64
    assert targets.tolist() == [row["label"] for row in rows]
    for tokens, mask, sequence in zip(inputs, real, wanted, strict=True):
        assert mask.tolist() == [i < len(sequence) for i in range(inputs.shape[1])]
        assert tokens[mask].tolist() == sequence
        assert (tokens[~mask] == PAD).all()


def test_a_width_never_passes_seq_len(tmp_path: Path) -> None:
    rows = [{"sentence": "x" * n, "label": 0} for n in (3, 40)]
    built = build(write_task(tmp_path, "sst2", rows), seq_len=21)
    (batch,) = built.valid_batches(2)
    assert batch.inputs.shape == (2, 21)
    assert batch.real is not None
    assert batch.real.sum(axis=1).tolist() == [3, 21]
    assert "50.0% cut to 21" in built.describe()


def test_a_text_without_tokens_still_has_a_last_token() -> None:
    part = TokenizedSplit(
        ids=np.array([7, 8]), bounds=np.array([[0, 2], [2, 2]]), labels=np.array([0, 1]), n_malformed=0
    )
    assert [part.sequence(i, 8, END_OF_TEXT).tolist() for i in range(2)] == [[7, 8], [END_OF_TEXT]]


def test_regression_targets_are_numbers(tmp_path: Path) -> None:
    built = build(write_task(tmp_path, "stsb", rows_of("stsb")), "stsb")
    (batch,) = built.valid_batches(10)
    assert batch.targets.dtype == np.float64
    assert batch.targets.tolist() == [0, 0.75, 1.5, 2.25, 3.0, 3.75]


def test_an_epoch_visits_every_example_once_in_an_order_of_the_seed(tmp_path: Path) -> None:
    folder = write_task(tmp_path, "cola", rows_of("cola", 20))
    orders = []
    for seed in (0, 1):
        built = build(folder, "cola", seed=seed)
        rows = [tuple(row) for step in range(5) for row in padded(built.train_batch(step, 4).inputs)]
        assert len(set(rows)) == 20
        orders.append(rows)
    assert orders[0] != orders[1]
    again = build(folder, "cola", seed=1).train_batch(3, 4)
    assert [tuple(row) for row in padded(again.inputs)] == orders[1][12:16]


def padded(inputs: np.ndarray, width: int = 64) -> np.ndarray:
    return np.pad(inputs, ((0, 0), (0, width - inputs.shape[1])), constant_values=PAD)


def test_a_share_of_validation_is_spread_evenly_and_the_same_for_every_seed(tmp_path: Path) -> None:
    folder = write_task(tmp_path, "sst2", [{"sentence": f"{i:03}", "label": i // 50} for i in range(100)])
    for seed in (0, 1):
        batches = list(build(folder, seed=seed).valid_batches(5, max_batches=2))
        texts = [ByteTokenizer().decode(row[:3]) for batch in batches for row in batch.inputs]
        assert texts == [f"{i:03}" for i in range(0, 100, 10)]
    assert sum(len(batch.inputs) for batch in build(folder).valid_batches(7)) == 100


def test_epochs_count_tokens_with_their_padding(tmp_path: Path) -> None:
    built = build(write_task(tmp_path, "sst2", rows_of("sst2", 30)), seq_len=32)
    n_steps, batch_size = 6, 10
    assert n_steps * batch_size * 32 / built.n_tokens == 2


def test_data_are_shared_in_a_process_and_read_only(tmp_path: Path) -> None:
    folder = write_task(tmp_path, "sst2", rows_of("sst2"))
    first, second = build(folder, seed=0), build(folder, seed=1)
    assert first.parts is second.parts
    assert not first.parts["train"].ids.flags.writeable
    batch = first.train_batch(0, 6)
    batch.targets[:] = -100
    assert (first.train_batch(0, 6).targets >= 0).all()


def test_the_fingerprint_follows_texts_and_labels(tmp_path: Path) -> None:
    rows = rows_of("sst2")
    other_text, other_label = ([*rows[:-1], rows[-1] | change] for change in ({"sentence": "other"}, {"label": 0}))
    prints = [
        build(write_task(tmp_path / str(i), "sst2", each)).fingerprint
        for i, each in enumerate([rows, rows, other_text, other_label])
    ]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3


def test_data_are_found_by_name_where_the_machine_keeps_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_of("sst2")
    write_task(tmp_path / "kept" / "glue" / "SST-2", "sst2", rows)
    monkeypatch.chdir(tmp_path)
    by_name = Glue(glue_task="sst2", glue_data="glue")
    with pytest.raises(InputError, match="glue_data must be a folder"):
        by_name.build(64, 0)
    monkeypatch.setenv("ATTRACTOR_DATA", str(tmp_path / "kept"))
    found = by_name.build(64, 0)
    assert found.fingerprint == build(tmp_path / "kept" / "glue").fingerprint
    assert len(found.parts["train"].labels) == len(rows)


def test_a_number_out_of_range_is_a_flaw(tmp_path: Path) -> None:
    lines = ["sentence1\tsentence2\tlabel", *(f"a\tb\t{label}" for label in ("5.1", "-1", "nan"))]
    (tmp_path / "train.tsv").write_text("\n".join(lines))
    message = r"line 2 \(label '5.1' is not a number from 0 to 5\); line 3 \(the label is hidden.*line 4 \(label"
    with pytest.raises(InputError, match=message):
        read_examples("stsb", str(tmp_path), "train")
