"""What a person sees of a preparation: its progress, and at the end what the folder holds."""

import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Column

from attractor.corpus import prepare
from attractor.corpus.shards import SIDES, PreparedCorpus
from attractor.numerals import in_bytes, with_prefix


class LivePreparation:
    """A bar with tokens a second and the time left. Where nobody watches live, each stage is a line."""

    def __init__(self, console: Console, due: Callable[[], bool] = lambda: False) -> None:
        """`due` says, whenever it is asked, whether a log should have another line."""
        self.console, self._due = console, due
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TimeRemainingColumn(table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[numbers]}", markup=False),
            console=console,
            refresh_per_second=4,
        )
        self._task: TaskID | None = None
        self._stage = ""
        self._began = (0.0, 0)

    def __enter__(self) -> "LivePreparation":
        if self.console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self._bar.stop()

    def __call__(self, progress: "prepare.Progress") -> None:
        if progress.stage != self._stage:
            self._stage = progress.stage
            self._began = (time.monotonic(), progress.n_tokens)
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task = self._bar.add_task(progress.stage, total=1.0 if progress.share else None, numbers="")
            if not self.console.is_terminal:
                self.console.print(progress.stage, highlight=False)
        assert self._task is not None
        seconds = max(time.monotonic() - self._began[0], 1e-3)
        speed = (progress.n_tokens - self._began[1]) / seconds
        numbers = f"{with_prefix(progress.n_tokens)} tokens of {progress.n_documents:,} documents"
        if progress.stage == "tokenising":
            numbers += f"  {with_prefix(speed)} tok/s"
        if not self.console.is_terminal and self._due():
            share = f"{progress.share:.0%}  " if progress.share else ""
            self.console.print(f"{progress.stage}: {share}{numbers}", highlight=False, soft_wrap=True)
        total = 1.0 if progress.share else None
        self._bar.update(self._task, total=total, completed=progress.share, numbers=numbers)


def print_corpus(console: Console, corpus: PreparedCorpus) -> None:
    """What was prepared, what was left out, and what validation shares with training."""
    manifest = corpus.manifest
    for line in in_lines(manifest):
        console.print(line, markup=False, highlight=False, soft_wrap=not console.is_terminal)


def in_lines(manifest: dict[str, Any]) -> list[str]:
    tokenizer, duplicates, malformed = (manifest[key] for key in ("tokenizer", "duplicates", "malformed"))
    lines = [f"{manifest['source']['name']}: {tokenizer['name']} tokens, a vocabulary of {tokenizer['vocab_size']:,}"]
    for side in SIDES:
        held = manifest[side]
        size = sum(shard["size"] for shard in held["shards"])
        lines.append(
            f"{side}: {held['tokens']:,} tokens of {held['documents']:,} documents in {len(held['shards'])} shard(s), "
            f"{in_bytes(size)}"
        )
    if manifest["empty"]:
        lines.append(f"{manifest['empty']:,} empty records skipped")
    if malformed["count"]:
        lines.append(f"{malformed['count']:,} malformed records skipped:")
        lines += [f"  {sample}" for sample in malformed["samples"]]
    if manifest["skipped_files"]:
        first, *others = manifest["skipped_files"]
        lines.append(f"{1 + len(others):,} file(s) of another type skipped, the first is {first}")
    found = duplicates["exact"] + duplicates["near"]
    if found:
        lines.append(
            f"{duplicates['exact']:,} exact and {duplicates['near']:,} near duplicates of "
            f"{duplicates['valid_documents']:,} validation documents in training, {duplicates['train_tokens']:,} "
            f"tokens: {'dropped' if duplicates['dropped'] else 'kept (--drop-duplicates removes them)'}"
        )
        for kind in ("exact", "near"):
            for sample in duplicates[f"{kind}_samples"][:2]:
                lines.append(f"  {kind}: {sample['train']} is like {sample['valid']} ({sample['share']:.0%})")
    else:
        lines.append("no training document is a duplicate of a validation document")
    return lines
