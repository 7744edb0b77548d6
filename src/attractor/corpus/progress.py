"""Show the progress of a preparation on the console, and at the end the contents of the folder."""

import time
from typing import Any

from rich.console import Console
from rich.progress import TaskID

from attractor.console import SECONDS_BETWEEN, SignOfLife, in_bytes, in_time, run_progress, with_prefix
from attractor.corpus import prepare
from attractor.corpus.shards import SIDES, PreparedCorpus


class LivePreparation:
    """Show a progress bar with tokens per second and the time left.

    In a log, print a line for every stage and one about its progress every half minute."""

    def __init__(self, console: Console, source: str = "the source") -> None:
        self.console = console
        self._lines = SignOfLife(self._print, self._line, SECONDS_BETWEEN)
        self._bar = run_progress(console, counts=False)
        self._task: TaskID | None = None
        self._stage = f"reading {source}"
        self._share, self._numbers = 0.0, ""
        self._began = (0.0, 0)

    def __enter__(self) -> "LivePreparation":
        self._begin_stage()
        if self.console.is_terminal:
            self._bar.start()
        else:
            self._lines.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self._bar.stop()
        else:
            self._lines.__exit__(None, None, None)

    def __call__(self, progress: "prepare.Progress") -> None:
        if progress.stage != self._stage:
            self._stage = progress.stage
            self._began = (time.monotonic(), progress.n_tokens)
            self._begin_stage()
        seconds = max(time.monotonic() - self._began[0], 1e-3)
        speed = (progress.n_tokens - self._began[1]) / seconds
        numbers = f"{with_prefix(progress.n_tokens)} tokens of {progress.n_documents:,} documents"
        if progress.stage == "tokenising":
            numbers += f"  {with_prefix(speed)} tok/s"
        self._share, self._numbers = progress.share, numbers
        assert self._task is not None
        self._bar.update(self._task, total=1.0 if progress.share else None, completed=progress.share, numbers=numbers)

    def _begin_stage(self) -> None:
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(self._stage, total=None, numbers="")
        if not self.console.is_terminal:
            self._print(self._stage)

    def _line(self, seconds: float) -> str:
        share = f" {self._share:.0%}" if self._share else ""
        return f"{self._stage}:{share} {self._numbers} ({in_time(seconds)} so far)"

    def _print(self, line: str) -> None:
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)


def print_corpus(console: Console, corpus: PreparedCorpus) -> None:
    """Print what was prepared, what was left out, and how many documents validation shares with training."""
    manifest = corpus.manifest
    for line in in_lines(manifest):
        console.print(line, markup=False, highlight=False, soft_wrap=not console.is_terminal)


def in_lines(manifest: dict[str, Any]) -> list[str]:
    tokenizer, duplicates, malformed = (manifest[key] for key in ("tokenizer", "duplicates", "malformed"))
    lines = [f"{manifest['source']['name']}: {tokenizer['name']} tokens, a vocabulary of {tokenizer['vocab_size']:,}"]
    for side in SIDES:
        entry = manifest[side]
        shards = entry["shards"]
        lines.append(
            f"{side}: {entry['tokens']:,} tokens of {entry['documents']:,} documents in {len(shards)} shard(s), "
            f"{in_bytes(sum(shard['size'] for shard in shards))}"
        )
    if manifest["empty"]:
        lines.append(f"{manifest['empty']:,} empty records skipped")
    if malformed["count"]:
        lines.append(f"{malformed['count']:,} malformed records skipped:")
        lines += [f"  {sample}" for sample in malformed["samples"]]
    if manifest["skipped_files"]:
        first, *others = manifest["skipped_files"]
        lines.append(f"{1 + len(others):,} file(s) of another type skipped, the first is {first}")
    if duplicates["exact"]:
        lines.append(
            f"{duplicates['exact']:,} duplicates of {duplicates['valid_documents']:,} validation documents in "
            f"training, {duplicates['train_tokens']:,} tokens: "
            f"{'dropped' if duplicates['dropped'] else 'kept (--drop-duplicates removes them)'}"
        )
        for sample in duplicates["exact_samples"][:2]:
            lines.append(f"  {sample['train']} has the words of {sample['valid']}")
    else:
        lines.append("no training document is a duplicate of a validation document")
    return lines
