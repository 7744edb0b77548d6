"""Preparation gives the same result however often it is interrupted and however many threads it has; budgets and
flaws."""

import gzip
import json
import os
import random
import signal
import subprocess
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from attractor.corpus import prepare as module
from attractor.corpus import readers, records, tokenise
from attractor.corpus.prepare import Preparation, Progress, count_of, prepare
from attractor.corpus.progress import LivePreparation, in_lines, print_corpus
from attractor.corpus.shards import WORK, PreparedCorpus, is_prepared
from attractor.corpus.split import place
from attractor.corpus.tokenizer import END_OF_TEXT
from attractor.errors import InputError
from attractor.tasks.text import Text, load_corpus, tokenizer_of

WORDS = [f"word{i}" for i in range(400)]


def text(seed: int, n_words: int = 80) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=n_words))


def write_jsonl(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": each}) + "\n" for each in texts))
    return path


def content(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def texts_in(corpus: PreparedCorpus, side: str) -> list[str]:
    return [corpus.tokenizer.decode(document[:-1]) for document in getattr(corpus, side).documents()]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Write a source of two files with empty and malformed records and with duplicates across the split."""
    folder = tmp_path / "source"
    folder.mkdir()
    texts = [text(seed) for seed in range(300)]
    held_out = [each for each in texts if place(each.encode()) <= 0.1]
    copies = [each.replace(" ", "  ") for each in held_out]
    in_training = [each for each in copies if place(each.encode()) > 0.1][:4]
    edited = [each + " and so on" for each in held_out[:4]]
    write_jsonl(folder / "a.jsonl", [*texts[:150], "", *in_training, *edited, " "])
    write_jsonl(folder / "b.jsonl", texts[150:])
    with (folder / "b.jsonl").open("a") as file:
        file.write('{"text": 5}\n{"text"\n')
    return folder


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:300"])
@pytest.mark.parametrize("drop_duplicates", [False, True], ids=["keep", "drop"])
def test_a_preparation_interrupted_at_any_step_ends_bit_for_bit_the_same(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokenizer: str, drop_duplicates: bool
) -> None:
    """Every third attempt commits nothing, so that the next one finds files longer than the committed part."""

    options: dict[str, Any] = {"max_tokens": 9000, "shard_tokens": 2000, "max_bad": 0.05}
    whole = Preparation(str(source), tmp_path / "whole", tokenizer, drop_duplicates=drop_duplicates, **options)
    prepare(replace(whole, workers=3))
    monkeypatch.setattr(tokenise, "BLOCK_RECORDS", 2)
    n_stops = 0
    reached: set[str] = set()
    for attempt in range(200):
        monkeypatch.setattr(module, "COMMIT_SECONDS", 1e9 if attempt % 3 == 2 else 0.0)
        stop = StopAfter(attempt % 5, reached)
        try:
            prepare(replace(whole, out=tmp_path / "stopped", workers=1), stop)
            break
        except KeyboardInterrupt:
            n_stops += 1
            assert (tmp_path / "stopped" / WORK).is_dir()
    assert n_stops > 5
    assert content(tmp_path / "stopped") == content(tmp_path / "whole")
    assert PreparedCorpus.open(tmp_path / "whole").manifest["train"]["tokens"] <= 9000


class StopAfter:
    """Raise Ctrl-C after so many blocks, or at the end of any later stage that was not reached before."""

    def __init__(self, patience: int, reached: set[str]) -> None:
        self.patience = patience
        self.reached = reached

    def __call__(self, progress: Progress) -> None:
        if progress.stage == "tokenising":
            self.patience -= 1
        elif progress.stage in self.reached or progress.share < 1:
            return
        self.reached.add(progress.stage)
        if self.patience < 0 or progress.stage != "tokenising":
            raise KeyboardInterrupt


PREPARE_AND_DIE = """
import os, signal, sys
from pathlib import Path
from attractor.corpus import prepare as module

module.BLOCK_RECORDS, module.COMMIT_SECONDS = 20, 0.0
wanted = module.Preparation(sys.argv[1], Path(sys.argv[2]), shard_tokens=5000, max_bad=0.05)
last_event = int(sys.argv[3])
n_events = 0


def count(*event):
    global n_events
    n_events += 1
    if n_events == last_event:
        os.kill(os.getpid(), signal.SIGKILL)


sys.setprofile(count)
module.prepare(wanted)
sys.setprofile(None)
print(n_events)
"""


@pytest.mark.slow
def test_a_preparation_killed_at_any_moment_ends_bit_for_bit_the_same(source: Path, tmp_path: Path) -> None:
    """The process kills itself at a drawn call or return: their count, unlike time, is the same on a busy machine."""

    def prepare_and_die(name: str, last_event: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", PREPARE_AND_DIE, str(source), str(tmp_path / name), str(last_event)]
        return subprocess.run(command, stdout=subprocess.PIPE, text=True)

    n_events = int(prepare_and_die("whole", -1).stdout)
    chance = random.Random(0)
    n_kills = 0
    for _ in range(6):
        n_kills += prepare_and_die("killed", chance.randrange(n_events // 2)).returncode == -signal.SIGKILL
    assert n_kills >= 3
    assert prepare_and_die("killed", -1).returncode == 0
    assert content(tmp_path / "killed") == content(tmp_path / "whole")


def begun(source: Path, out: Path) -> Preparation:
    """Interrupt a preparation, and return its options."""
    wanted = Preparation(str(source), out, max_bad=0.05)
    with pytest.raises(KeyboardInterrupt):
        prepare(wanted, StopAfter(0, set()))
    return wanted


def test_the_temporary_manifest_of_a_killed_process_is_removed(source: Path, tmp_path: Path) -> None:
    """A process that is killed between writing and renaming a file leaves the file under its temporary name."""
    wanted = begun(source, tmp_path / "out")
    ended = subprocess.Popen(["true"])
    ended.wait()  # no process has this number now
    (tmp_path / "out" / f".manifest.json.{ended.pid}-1398.tmp").write_text("{")
    prepare(wanted)
    prepare(Preparation(str(source), tmp_path / "whole", max_bad=0.05))
    assert content(tmp_path / "out") == content(tmp_path / "whole")


@pytest.mark.parametrize("name", ["train.tokens", "valid.documents", "progress.json"])
def test_damaged_work_is_refused(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(module, "COMMIT_SECONDS", -1.0)
    wanted = begun(source, tmp_path / "out")
    damaged = tmp_path / "out" / WORK / name
    damaged.write_bytes(damaged.read_bytes()[:-2])
    with pytest.raises(InputError, match=rf"{name} must .*; remove '.*{WORK}', and the same command begins anew"):
        prepare(wanted)


def test_a_source_that_changed_since_the_preparation_began_is_refused(source: Path, tmp_path: Path) -> None:
    wanted = begun(source, tmp_path / "out")
    lines = (source / "b.jsonl").read_text().splitlines(keepends=True)
    (source / "b.jsonl").write_text("".join(reversed(lines)))
    os.utime(source / "b.jsonl", ns=(0, 1))  # a coarse clock might give the same time
    with pytest.raises(InputError, match=r"but 'b.jsonl' has changed; remove '.*out' and begin anew"):
        prepare(wanted)


@pytest.mark.parametrize("plan", ['{"source"', "{}", "[]", '{"source": null}'])
def test_a_damaged_plan_is_refused(source: Path, tmp_path: Path, plan: str) -> None:
    (tmp_path / "out" / WORK).mkdir(parents=True)
    (tmp_path / "out" / WORK / "plan.json").write_text(plan)
    with pytest.raises(InputError, match=r"plan must be whole, but that of '.*out' is not; remove '.*out' and begin"):
        prepare(Preparation(str(source), tmp_path / "out", max_bad=0.05))


def test_another_process_may_remove_the_work(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second process finds the manifest of the first, and is faster to remove the folder of their work."""
    wanted = Preparation(str(source), tmp_path / "out", max_bad=0.05)
    write = module.write_json

    def written_beside_another(path: Path, value: object) -> None:
        write(path, value)
        if path.name == "manifest.json":
            prepare(wanted)

    monkeypatch.setattr(module, "write_json", written_beside_another)
    assert prepare(wanted).manifest["records"] == 312


def test_a_file_name_that_is_not_utf8_is_kept(tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    for name in ("caf\udce9.txt", "tea.txt", "picture\udce9.png"):
        (texts / name).write_text(f"a text of {name!r}\n" * 9)
    wanted = Preparation(str(texts), tmp_path / "out")
    assert prepare(wanted).manifest["source"]["files"][0]["name"] == "caf\udce9.txt"
    assert prepare(wanted).manifest["skipped_files"] == ["picture\udce9.png"]


def test_repeating_a_finished_preparation_changes_nothing(source: Path, tmp_path: Path) -> None:
    wanted = Preparation(str(source), tmp_path / "out", max_bad=0.05)
    prepare(wanted)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    prepare(wanted, lambda progress: pytest.fail("nothing was left to do"))
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()} == before


@pytest.mark.parametrize("n_documents", [1, 2, 5, 40])
def test_a_small_corpus_is_split_as_the_text_task_does(tmp_path: Path, n_documents: int) -> None:
    texts = [text(seed) + "\n" for seed in range(n_documents)]
    (tmp_path / "a.txt").write_text("<|endoftext|>\n".join(texts))
    prepared = prepare(Preparation(str(tmp_path / "a.txt"), tmp_path / "out"))
    read = load_corpus(tmp_path / "a.txt")
    for side in ("train", "valid"):
        tokens = getattr(prepared, side)[:]
        assert tokens[-1] == END_OF_TEXT
        assert np.array_equal(tokens[:-1], getattr(read, side))


def test_the_text_task_reads_a_prepared_folder(source: Path, tmp_path: Path) -> None:
    """Criterion: batches are a function of seed and step, whatever the shards, and the vocabulary is the folder's."""
    tasks = []
    for name, shard_tokens in (("whole", 10**6), ("pieces", 999)):
        folder = tmp_path / name
        prepare(Preparation(str(source), folder, "bpe:300", shard_tokens=shard_tokens, max_bad=0.05))
        tasks.append(Text(corpus=str(folder)).build(seq_len=64, seed=3))
    whole, pieces = tasks
    assert whole.demands["vocab_size"] == 300
    assert whole.n_tokens == len(PreparedCorpus.open(tmp_path / "whole").train)
    for step in (0, 7, 100):
        for one, other in zip(whole.train_batch(step, 8)[:2], pieces.train_batch(step, 8)[:2], strict=True):
            assert one.shape == (8, 64)
            assert np.array_equal(one, other)
    for one, other in zip(whole.valid_batches(4), pieces.valid_batches(4), strict=True):
        assert np.array_equal(one.inputs, other.inputs)
    assert tokenizer_of(tmp_path / "whole").name == "bpe:300"
    assert tokenizer_of("stdlib-docs").name == "bytes"


def test_a_large_corpus_is_split_by_the_share_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PEEKED_RECORDS", 100)
    texts = [text(seed) for seed in range(400)]
    path = write_jsonl(tmp_path / "a.jsonl", texts)
    corpus = prepare(Preparation(str(path), tmp_path / "out", valid_share=0.2))
    assert texts_in(corpus, "valid") == [each for each in texts if place(each.encode()) <= 0.2]
    assert texts_in(corpus, "train") == [each for each in texts if place(each.encode()) > 0.2]


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
@pytest.mark.parametrize("share", [0.1, 0.26, 0.5])
def test_a_single_text_holds_out_its_tail_though_it_is_read_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, share: float
) -> None:
    monkeypatch.setattr(readers, "LONGEST_TEXT", 4000)
    monkeypatch.setattr(readers, "READ_SIZE", 512)
    monkeypatch.setattr(records, "LONGEST_TEXT", 4000)
    monkeypatch.setattr(module, "PEEKED_BYTES", 8000)
    whole = "\n".join(text(seed, 10) for seed in range(300))
    path = tmp_path / name
    path.write_text(f"<|endoftext|>\n{whole}") if name == "a.txt" else write_jsonl(path, [whole])
    corpus = prepare(Preparation(str(path), tmp_path / "out", valid_share=share))
    train, valid = ("".join(texts_in(corpus, side)) for side in ("train", "valid"))
    assert train + valid == whole
    assert len(valid) / len(whole) == pytest.approx(share, abs=0.01)


def test_a_boundary_between_long_texts_leaves_no_side_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PEEKED_BYTES", 1000)
    texts = [each for each in (text(seed) for seed in range(20)) if place(each.encode()) > 0.1]
    corpus = prepare(Preparation(str(write_jsonl(tmp_path / "a.jsonl", texts)), tmp_path / "out"))
    assert texts_in(corpus, "valid") == [min(texts, key=lambda each: place(each.encode()))]


@pytest.mark.parametrize("block", [1, 7, 1000])
@pytest.mark.parametrize("max_tokens", [500, 501, 5000])
def test_a_budget_is_met_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_tokens: int, block: int) -> None:
    """Criterion: the validation side ends at the same document, whatever the size of the blocks."""
    monkeypatch.setattr(tokenise, "BLOCK_RECORDS", block)
    texts = [text(seed, 5) for seed in range(300)]
    texts[200:200] = [""] * 3
    path = write_jsonl(tmp_path / "a.jsonl", texts)
    corpus = prepare(Preparation(str(path), tmp_path / "out", max_tokens=max_tokens))
    assert len(corpus.train) == max_tokens
    expected: dict[str, list[int]] = {"train": [], "valid": []}
    for each in texts:
        side = "valid" if place(each.encode()) <= corpus.manifest["split_rule"]["boundary"] else "train"
        if each:
            expected[side] += [*each.encode(), END_OF_TEXT]
        if len(expected["train"]) >= max_tokens:
            break
    assert corpus.train[:].tolist() == expected["train"][:max_tokens]
    assert corpus.valid[:].tolist() == expected["valid"]


def test_a_source_without_text_for_both_sides_is_refused(tmp_path: Path) -> None:
    texts = sorted((text(seed) for seed in range(50)), key=lambda each: -place(each.encode()))
    few = Preparation(str(write_jsonl(tmp_path / "a.jsonl", texts)), tmp_path / "out", max_tokens=1)
    empty = Preparation(str(write_jsonl(tmp_path / "b.jsonl", ["", " \n"])), tmp_path / "empty")
    none_for_valid = "both sides must have a document, but of 1 records none is for valid"
    for wanted, message in ((few, none_for_valid), (empty, r"source must contain text, but '.*' has none")):
        with pytest.raises(InputError, match=message):
            prepare(wanted)


def test_duplicates_are_reported_and_dropped_on_request(source: Path, tmp_path: Path) -> None:
    kept = prepare(Preparation(str(source), tmp_path / "kept", max_bad=0.05))
    report = kept.manifest["duplicates"]
    assert (report["exact"], report["valid_documents"], report["dropped"]) == (4, 4, False)
    sample = report["exact_samples"][0]
    file, _, offset = sample["train"].partition("@")
    line = (source / file).read_bytes()[int(offset) :].split(b"\n")[0]
    file, _, offset = sample["valid"].partition("@")
    twin = (source / file).read_bytes()[int(offset) :].split(b"\n")[0]
    assert json.loads(line)["text"].split() == json.loads(twin)["text"].split()
    assert any("4 duplicates of 4 validation documents" in line for line in in_lines(kept.manifest))

    dropped = prepare(Preparation(str(source), tmp_path / "dropped", max_bad=0.05, drop_duplicates=True))
    left = texts_in(dropped, "train")
    missing = [each for each in texts_in(kept, "train") if each not in left]
    assert len(missing) == 4
    assert all("  " in each for each in missing)
    assert texts_in(dropped, "valid") == texts_in(kept, "valid")
    assert len(kept.train) - len(dropped.train) == report["train_tokens"]


def test_stages_speed_and_outcome_are_reported(source: Path, tmp_path: Path) -> None:
    """Criterion: in a log, and on a terminal with a bar."""
    said, drawn = StringIO(), StringIO()
    console = Console(file=said, width=150)
    with LivePreparation(console) as live:
        corpus = prepare(Preparation(str(source), tmp_path / "out", max_tokens=50_000, max_bad=0.05), live)
    print_corpus(console, corpus)
    for part in ("tokenising", "writing shards", "train: 50,000 tokens of", "validation document", "bytes tokens"):
        assert part in said.getvalue()
    with LivePreparation(Console(file=drawn, force_terminal=True, width=150)) as live:
        live(Progress("tokenising", 0.1, 1000, 3))
        live(Progress("tokenising", 0.5, 5000, 15))
    for part in ("tokenising", "50%", "5.00k tokens of 15 documents", "tok/s", ":"):
        assert part in drawn.getvalue()


def test_flawed_and_empty_records_are_counted(source: Path, tmp_path: Path) -> None:
    manifest = prepare(Preparation(str(source), tmp_path / "out", max_bad=0.05)).manifest
    assert (manifest["records"], manifest["empty"], manifest["malformed"]["count"]) == (312, 2, 2)
    first, second = manifest["malformed"]["samples"]
    assert first == "line 151 of 'b.jsonl': column 'text' holds no text but int"
    assert second.startswith("line 152 of 'b.jsonl': not JSON: ")
    assert manifest["train"]["documents"] + manifest["valid"]["documents"] == 308


def test_too_many_flaws_end_a_preparation_and_a_larger_limit_continues_it(source: Path, tmp_path: Path) -> None:
    """Criterion: the reading of a long source ends early."""
    with pytest.raises(InputError, match=r"at most 0.001 of all \(max_bad\), but 2 of 312 are, the first is line 151"):
        prepare(Preparation(str(source), tmp_path / "out", max_bad=0.001))
    prepare(Preparation(str(source), tmp_path / "out", max_bad=0.01))
    (tmp_path / "a.jsonl").write_text("nothing\n" * 50_000)
    with pytest.raises(InputError, match=r"but 2,000 of 2,000 are, the first is line 1 of 'a.jsonl': not JSON"):
        prepare(Preparation(str(tmp_path / "a.jsonl"), tmp_path / "long"))


def test_a_tokenizer_trained_on_the_corpus_uses_no_validation_text(tmp_path: Path) -> None:
    """Criterion: a word that occurs only in the validation text has no token of its own."""
    rare, with_rare = "zyzzyva", (f"{text(seed)} zyzzyva zyzzyva zyzzyva" for seed in range(200))
    texts = [each if place(each.encode()) <= 0.1 else text(seed) for seed, each in enumerate(with_rare)]
    assert sum(rare in each for each in texts) > 5
    path = write_jsonl(tmp_path / "a.jsonl", texts)
    corpus = prepare(Preparation(str(path), tmp_path / "out", "bpe:600"))
    assert 300 < corpus.vocab_size <= 600
    assert len(corpus.tokenizer.encode(" word7")) < 4
    assert len(corpus.tokenizer.encode(f" {rare}")) > 4
    assert sorted(texts_in(corpus, "train") + texts_in(corpus, "valid")) == sorted(texts)


def test_another_corpus_is_never_overwritten(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare(Preparation(str(source), out, max_bad=0.05))
    before = content(out)
    for change, message in (
        ({"max_tokens": 50}, r"another max_tokens \(None there, 50 here\)"),
        ({"tokenizer": "bpe:300"}, "another tokenizer"),
        ({"source": str(source / "a.jsonl")}, "another source; choose another folder"),
    ):
        with pytest.raises(InputError, match=message):
            prepare(Preparation(**{"source": str(source), "out": out, **change}))
    (source / "b.jsonl").write_text('{"text": "more"}\n')
    with pytest.raises(InputError, match="holds a corpus prepared with another source"):
        prepare(Preparation(str(source), out))
    assert content(out) == before
    with pytest.raises(InputError, match=r"out must be a new folder, but '.*' holds other files"):
        prepare(Preparation(str(source), source))


def test_a_foreign_folder_with_the_name_of_the_work_folder_is_left_alone(source: Path, tmp_path: Path) -> None:
    mine = tmp_path / "drafts" / WORK / "novel.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("precious")
    assert not is_prepared(tmp_path / "drafts")
    with pytest.raises(InputError, match=r"out must be a new folder, but '.*' holds other files"):
        prepare(Preparation(str(source), tmp_path / "drafts", max_bad=0.05))
    assert content(tmp_path / "drafts") == {f"{WORK}/novel.txt": b"precious"}


def test_a_preparation_killed_before_its_plan_was_written_can_begin_again(source: Path, tmp_path: Path) -> None:
    work = tmp_path / "out" / WORK
    work.mkdir(parents=True)
    for name in ("lock", ".plan.json.1-1.tmp"):
        (work / name).touch()
    assert prepare(Preparation(str(source), tmp_path / "out", max_bad=0.05)).manifest["records"] == 312
    assert not work.exists()


@pytest.mark.parametrize("zipped", [False, True])
def test_a_tokenizer_is_trained_on_the_end_of_a_source_too(tmp_path: Path, zipped: bool) -> None:
    """The size of a compressed file does not say how much text it has."""
    rows = [json.dumps({"text": text(seed)}) for seed in range(200)] + [json.dumps({"text": "zyzzyva " * 60})] * 20
    path = tmp_path / ("a.jsonl.gz" if zipped else "a.jsonl")
    raw = "\n".join(rows).encode()
    path.write_bytes(gzip.compress(raw) if zipped else raw)
    corpus = prepare(Preparation(str(path), tmp_path / "out", "bpe:600"))
    assert len(corpus.tokenizer.encode(" zyzzyva")) == 1


def test_a_second_process_is_refused(source: Path, tmp_path: Path) -> None:
    wanted = Preparation(str(source), tmp_path / "out", max_bad=0.05)

    def again(progress: Progress) -> None:
        with pytest.raises(InputError, match="out must be free, but another process prepares"):
            prepare(wanted)

    prepare(wanted, again)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"valid_share": 0.0}, "valid_share must be above 0 and at most 0.5, got 0.0"),
        ({"max_bad": 2.0}, "max_bad must be between 0 and 1, got 2.0"),
        ({"max_tokens": 0}, "max_tokens must be at least 1, got 0"),
        ({"workers": 0}, "workers must be at least 1, got 0"),
        *(
            ({"tokenizer": f"bpe:{size}"}, f"must have from 257 tokens.* to 1,048,576, got 'bpe:{size}'")
            for size in (256, 10**12, 10**30)
        ),
    ],
)
def test_an_option_out_of_range_is_refused_before_anything_is_written(
    source: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        prepare(Preparation(str(source), tmp_path / "out", **options))
    assert not (tmp_path / "out").exists()


def test_counts_are_read_as_people_write_them() -> None:
    written = {"250": 250, "250k": 250_000, "1.5G": 1_500_000_000, "100M": 10**8}
    assert {text: count_of(text) for text in written} == written
    for text in ("", "M", "1T", "-5", "1e6", "100 M"):
        with pytest.raises(InputError, match="max_tokens must be a number with k, M or G behind it"):
            count_of(text)


def test_a_corpus_with_special_tokens_is_none_without_them(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", [text(seed) for seed in range(40)])
    tokenizer = tmp_path / "tokenizer.json"
    prepare(Preparation(str(source), tmp_path / "first", "bpe:300"))
    tokenizer.write_bytes(PreparedCorpus.open(tmp_path / "first").tokenizer.definition)
    for before in (True, False):
        out = tmp_path / f"out-{before}"
        prepare(Preparation(str(source), out, str(tokenizer), special_tokens=before))
        with pytest.raises(InputError, match=rf"another special_tokens \({before} there, {not before} here\)"):
            prepare(Preparation(str(source), out, str(tokenizer), special_tokens=not before))
