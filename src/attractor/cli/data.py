"""Commands about corpora on disk: data prepare, verify, describe, bench."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from tyro.conf import Positional, arg

from attractor.cli.console import command_line, say
from attractor.errors import require
from attractor.runs.machine import environment
from attractor.sign_of_life import waiting

Columns = Annotated[
    str | None,
    arg(help="column of tables that holds the text, or several as title,abstract; by default 'text' or the only one"),
]


@dataclass(frozen=True)
class DataPrepareArguments:
    """Turn text into a prepared corpus of tokens. If it is interrupted, the same command continues."""

    source: Annotated[
        Positional[str],
        arg(help="file, folder, pattern, saved data set, or owner/name:config:column of the Hugging Face Hub"),
    ]
    out: Annotated[Path, arg(help="folder to write")]
    tokenizer: Annotated[str, arg(help="bytes, gpt2, bpe:SIZE (trained on this corpus), or a path")] = "bytes"
    column: Columns = None
    split: Annotated[str, arg(help="split of a data set that has several")] = "train"
    articles: Annotated[
        bool, arg(help="rows are lines of articles as in WikiText; ' = Title = ' begins a document")
    ] = False
    max_tokens: Annotated[str | None, arg(help="most training tokens, as 250k, 100M or 1.5G; by default all")] = None
    valid_share: Annotated[float, arg(help="share of documents held out for validation")] = 0.1
    drop_duplicates: Annotated[
        bool, arg(help="leave out training documents that are in validation, too; copies within training stay")
    ] = False
    special_tokens: Annotated[
        bool, arg(help="read names of special tokens in a text as these tokens, for chats that you rendered yourself")
    ] = False
    max_bad: Annotated[float, arg(help="largest share of malformed records that is accepted")] = 0.01
    workers: Annotated[int | None, arg(help="threads; by default one per core")] = None


@dataclass(frozen=True)
class DataDescribeArguments:
    """Measure how coherent corpora are, on equal samples of each. Writes a table, a figure and the numbers."""

    sources: Annotated[Positional[tuple[str, ...]], arg(help="files, folders, patterns or names, as for prepare")]
    out: Annotated[Path, arg(help="folder for describe.json and describe.svg")]
    column: Columns = None
    split: Annotated[str, arg(help="split of a data set that has several")] = "train"
    max_words: Annotated[str, arg(help="words sampled from each corpus, as 250k or 1M")] = "1M"
    piece_words: Annotated[int, arg(help="words sampled from one document")] = 125
    order: Annotated[int, arg(help="order of the n-gram model")] = 3
    max_documents: Annotated[int | None, arg(help="documents to read at most; by default all")] = None


@dataclass(frozen=True)
class DataBenchArguments:
    """Time the preparation and loading of data. Preparing is compared with the tokenizers library alone."""

    text: Annotated[str, arg(help="corpus that is prepared")] = "stdlib-docs"
    tokenizer: Annotated[str, arg(help="as for prepare, but not bytes")] = "bpe:4096"
    puzzles: Annotated[str | None, arg(help="file of Sudoku boards to solve; by default generated boards")] = None
    rounds: Annotated[int, arg(help="repetitions of each measurement")] = 5


@dataclass(frozen=True)
class DataVerifyArguments:
    """Read all of a prepared corpus and check it: checksums, and ids within the vocabulary."""

    folder: Annotated[Positional[Path], arg(help="folder that 'attractor data prepare' wrote")]


def data_prepare(args: DataPrepareArguments, console: Console) -> None:
    from attractor.corpus.columns import columns_from
    from attractor.corpus.prepare import Preparation, count_of, prepare
    from attractor.corpus.progress import LivePreparation, print_corpus

    given = {name: value for name, value in vars(args).items() if name not in ("column", "max_tokens")}
    max_tokens = None if args.max_tokens is None else count_of(args.max_tokens)
    with LivePreparation(console, args.source) as live:
        corpus = prepare(Preparation(**given, columns=columns_from(args.column), max_tokens=max_tokens), live)
    print_corpus(console, corpus)
    say(console, str(args.out))


def data_describe(args: DataDescribeArguments, console: Console) -> None:
    from attractor.corpus.columns import columns_from
    from attractor.corpus.describe import Settings
    from attractor.corpus.description_report import report_sources
    from attractor.corpus.prepare import count_of

    require(len(args.sources) >= 1, "sources", "at least one", args.sources)
    settings = Settings(count_of(args.max_words, "max_words"), args.piece_words, args.order, args.max_documents)
    provenance = {"command": command_line(), "environment": environment()}
    with waiting(f"measuring {', '.join(args.sources)}"):
        report_sources(args.sources, args.out, settings, console, provenance, columns_from(args.column), args.split)
    say(console, str(args.out))


def data_bench(args: DataBenchArguments, console: Console) -> None:
    from attractor.bench.data_speed import measure_data

    require(args.rounds >= 1, "rounds", "at least 1", args.rounds)
    require(args.tokenizer != "bytes", "tokenizer", "one that merges bytes", args.tokenizer, "give bpe:4096")
    for figure in measure_data(args.text, args.tokenizer, args.puzzles, args.rounds):
        say(console, f"{figure.what:<64} {figure.measured}")


def data_verify(args: DataVerifyArguments, console: Console) -> None:
    from attractor.corpus.shards import PreparedCorpus

    corpus = PreparedCorpus.open(args.folder)
    corpus.verify()
    console.print(f"{len(corpus.train) + len(corpus.valid):,} tokens are as they were written", highlight=False)


COMMANDS: dict[str, tuple[type, Callable[[Any, Console], None]]] = {
    "prepare": (DataPrepareArguments, data_prepare),
    "verify": (DataVerifyArguments, data_verify),
    "describe": (DataDescribeArguments, data_describe),
    "bench": (DataBenchArguments, data_bench),
}
