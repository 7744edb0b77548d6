"""GLUE is read from its official files or the Hub, and its batches have labels and the right padding. A run of it is
opened by the file that defines the task, and its study trains it in processes of their own."""

import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attractor.corpus.tokenizer import END_OF_TEXT, PAD, ByteTokenizer
from attractor.errors import InputError
from attractor.files.code import imported
from papers.coupled_qk.glue import FILES, TABLE, Glue, GlueTask, TokenizedSplit, examples, shares

OFFICIAL = {  # the folder, and the names of the columns of texts and of the label
    "sst2": ("SST-2", ["sentence"], "label"),
    "mnli": ("MNLI", ["sentence1", "sentence2"], "gold_label"),
    "qnli": ("QNLI", ["question", "sentence"], "label"),
}
TEXTS = ['A "quoted, text', "naïve \u2028 line", "x\x85y", "plain words", "it 's 日本"]
Rows = list[tuple[tuple[str, ...], int]]  # texts and labels


def rows_of(task: str, n_rows: int = 6) -> Rows:
    entry = TABLE[task]
    texts = [tuple(f"{TEXTS[(i + j) % len(TEXTS)]} {i}" for j in range(len(entry.texts))) for i in range(n_rows)]
    return [(text, i % len(entry.labels)) for i, text in enumerate(texts)]


def write_task(folder: Path, task: str, rows: Rows, parts: tuple[str, ...] = ()) -> Path:
    """Write the benchmark's files, with a carriage return and a byte order mark, which some copies have."""
    name, texts, label = OFFICIAL[task]
    (folder / name).mkdir(parents=True, exist_ok=True)
    lines = [[label, "index", *texts]]
    lines += [
        [str(number) if task == "sst2" else TABLE[task].labels[number], str(i), *sentences]
        for i, (sentences, number) in enumerate(rows)
    ]
    content = "\ufeff".encode() + "".join("\t".join(line) + "\r\n" for line in lines).encode()
    for part in parts or ("train", *TABLE[task].valid_sets):
        (folder / name / f"{FILES[part][1]}.tsv").write_bytes(content)
    return folder


def build(folder: Path, task: str = "sst2", seq_len: int = 64, seed: int = 0) -> GlueTask:
    return Glue(glue_task=task, glue_data=str(folder)).build(seq_len, seed)


@pytest.mark.parametrize("task", OFFICIAL)
def test_every_task_is_read_from_its_official_files(tmp_path: Path, task: str) -> None:
    rows = rows_of(task)
    write_task(tmp_path, task, rows)
    for part in ("train", *TABLE[task].valid_sets):
        texts, labels = examples(task, str(tmp_path), part)
        assert list(zip(texts, labels.tolist(), strict=True)) == rows
        assert labels.dtype == np.int64
    built = build(tmp_path, task)
    assert built.demands == {"vocab_size": 320, "n_classes": len(TABLE[task].labels)}
    targets = np.concatenate([batch.targets for batch in built.valid_batches(4)])
    assert built.measure(targets, targets) == {"accuracy": 1.0}
    assert built.measure(targets, targets + (targets == 0))["accuracy"] == (targets != 0).mean()


def test_the_two_validation_sets_of_mnli_are_separate(tmp_path: Path) -> None:
    rows = rows_of("mnli", 9)
    for part, of_part in (("train", rows[:3]), ("matched", rows[3:5]), ("mismatched", rows[5:])):
        write_task(tmp_path, "mnli", of_part, parts=(part,))
    task = build(tmp_path, "mnli")
    assert [len(b.inputs) for b in task.valid_batches(10)] == [2]
    assert [len(b.inputs) for b in task.valid_batches(10, part="mismatched")] == [4]
    assert "3 training examples, 2 matched, 4 mismatched" in task.describe()
    with pytest.raises(InputError, match="unknown validation set 'mismatch'; did you mean 'mismatched'"):
        task.valid_batches(10, part="mismatch")


def test_the_requested_part_is_read_from_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    asked = []

    def load_dataset(*place: str, split: str) -> Any:
        asked.append((*place, split))
        return datasets.Dataset.from_list([{"premise": "a", "hypothesis": "b", "label": 2, "idx": 0}])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    texts, labels = examples("mnli", "huggingface", "mismatched")
    assert (texts, labels.tolist(), asked) == ([("a", "b")], [2], [("nyu-mll/glue", "mnli", "validation_mismatched")])

    def fail(*_: object, **__: object) -> None:
        raise ConnectionError("nothing\nthere")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(InputError, match=r"the Hugging Face Hub did not give it \(nothing\); give glue_data=FOLDER"):
        examples("mnli", "huggingface", "train")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match="package 'datasets' must be installed"):
        examples("mnli", "huggingface", "train")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "must hold examples, but is empty; fetch it again"),
        (b"sentence\tlabel\n", "must hold examples, but is empty; fetch it again"),
        (b"sentence\tidx\nx\t1\n", "must have a column 'label', but has sentence, idx; rename one"),
        *((b"sentence\tlabel\nx\t1\n" + row, "row 2 has not; mend") for row in (b"x", b"x\t2", b"x\t-1", b" \t1")),
        (None, r"must hold a file 'train.tsv' for 'sst2', but '.*' has none; add it"),
    ],
)
def test_an_unusable_file_is_refused_with_the_reason(tmp_path: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / "train.tsv").write_bytes(content)
    with pytest.raises(InputError, match=message):
        examples("sst2", str(tmp_path), "train")


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown glue_task 'sst'; did you mean 'sst2'"):
        Glue(glue_task="sst")
    with pytest.raises(InputError, match="seq_len must be at least 3 for 'qnli', got 2; give"):
        build(write_task(tmp_path, "qnli", rows_of("qnli")), "qnli", seq_len=2)


@given(st.integers(0, 12), st.integers(0, 12), st.integers(2, 20))
def test_a_pair_that_is_too_long_loses_the_end_of_its_longer_text(n_first: int, n_second: int, room: int) -> None:
    kept = [n_first, n_second]
    while sum(kept) > room:
        kept[1 if kept[1] >= kept[0] else 0] -= 1
    assert list(shares(n_first, n_second, room)) == kept


@pytest.mark.parametrize("task", ["sst2", "qnli"])
@pytest.mark.parametrize("seq_len", [60, 64])
def test_a_batch_is_sequences_padded_on_the_right(tmp_path: Path, task: str, seq_len: int) -> None:
    rows = rows_of(task, 5)
    (batch,) = build(write_task(tmp_path, task, rows), task, seq_len).valid_batches(5)
    inputs, targets, real = batch
    wanted = []
    for (first, *second), _ in rows:
        wanted.append([*first.encode(), *(token for text in second for token in (END_OF_TEXT, *text.encode()))])
    assert real is not None
    assert inputs.shape == real.shape == (5, min(-(-max(map(len, wanted)) // 8) * 8, seq_len))
    assert inputs.dtype == targets.dtype == np.int64
    assert targets.tolist() == [label for _, label in rows]
    for tokens, mask, sequence in zip(inputs, real, wanted, strict=True):
        assert mask.tolist() == [i < len(sequence) for i in range(inputs.shape[1])]
        assert tokens[mask].tolist() == sequence
        assert (tokens[~mask] == PAD).all()


def test_a_text_may_be_too_long_or_have_no_tokens(tmp_path: Path) -> None:
    built = build(write_task(tmp_path, "sst2", [(("x" * n,), 0) for n in (3, 40)]), seq_len=21)
    (batch,) = built.valid_batches(2)
    assert batch.inputs.shape == (2, 21)
    assert batch.real is not None
    assert batch.real.sum(axis=1).tolist() == [3, 21]
    assert "50.0% cut to 21" in built.describe()
    part = TokenizedSplit(np.array([7, 8]), np.array([[0, 2], [2, 2]]), np.array([0, 1]))
    assert [part.sequence(i, 8, END_OF_TEXT).tolist() for i in range(2)] == [[7, 8], [END_OF_TEXT]]


def test_an_epoch_visits_every_example_once_in_an_order_of_the_seed(tmp_path: Path) -> None:
    folder = write_task(tmp_path, "sst2", [((f"{i:03}",), i % 2) for i in range(20)])
    orders = []
    for seed in (0, 1):
        built = build(folder, seed=seed, seq_len=32)
        assert built.n_tokens == 20 * 32
        rows = [tuple(row[:3]) for step in range(5) for row in built.train_batch(step, 4).inputs]
        assert len(set(rows)) == 20
        orders.append(rows)
    assert orders[0] != orders[1]
    assert [tuple(row[:3]) for row in build(folder, seed=1).train_batch(3, 4).inputs] == orders[1][12:16]


def test_a_share_of_validation_is_spread_evenly_and_the_same_for_every_seed(tmp_path: Path) -> None:
    folder = write_task(tmp_path, "sst2", [((f"{i:03}",), i // 50) for i in range(100)])
    for seed in (0, 1):
        batches = list(build(folder, seed=seed).valid_batches(5, max_batches=2))
        texts = [ByteTokenizer().decode(row[:3]) for batch in batches for row in batch.inputs]
        assert texts == [f"{i:03}" for i in range(0, 100, 10)]
    assert sum(len(batch.inputs) for batch in build(folder).valid_batches(7)) == 100


def test_data_are_shared_read_only_and_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = write_task(tmp_path / "kept" / "glue", "sst2", rows_of("sst2"))
    first, second = build(kept, seed=0), build(kept, seed=1)
    assert first.parts is second.parts
    assert not first.parts["train"].ids.flags.writeable
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ATTRACTOR_DATA", raising=False)
    with pytest.raises(InputError, match=rf"glue_data must be a folder, .*looked for in '{tmp_path}'; ATTRACTOR_DATA"):
        Glue(glue_data="glue").build(64, 0)
    monkeypatch.setenv("ATTRACTOR_DATA", str(tmp_path / "kept"))
    assert Glue(glue_data="glue").build(64, 0).fingerprint == first.fingerprint


def test_the_fingerprint_follows_texts_and_labels(tmp_path: Path) -> None:
    *rows, (text, label) = rows_of("sst2")
    changed = [[*rows, last] for last in ((text, label), (text, label), (("other",), label), (text, 1 - label))]
    prints = [build(write_task(tmp_path / str(i), "sst2", each)).fingerprint for i, each in enumerate(changed)]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3


def test_another_process_executes_the_file_of_the_task_first() -> None:
    """A task that a file defines names that file where it is pickled, since no module of its name can be imported."""
    task = imported(str(Path(__file__).parents[2] / "papers" / "coupled_qk" / "glue.py"), "file").Glue("mnli")
    again = pickle.loads(pickle.dumps(task))
    assert again == task
    assert again.glue_task == "mnli"
