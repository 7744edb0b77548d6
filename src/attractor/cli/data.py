"""Commands about corpora on disk: data prepare and verify."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from tyro.conf import Positional, arg

from attractor.cli.console import say

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
        bool, arg(help="leave out training documents whose words are in validation, too; copies within training stay")
    ] = False
    special_tokens: Annotated[
        bool, arg(help="read names of special tokens in a text as these tokens, for chats that you rendered yourself")
    ] = False
    max_bad: Annotated[float, arg(help="largest share of malformed records that is accepted")] = 0.01
    workers: Annotated[int | None, arg(help="threads; by default one per core")] = None


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


def data_verify(args: DataVerifyArguments, console: Console) -> None:
    from attractor.corpus.shards import PreparedCorpus

    corpus = PreparedCorpus.open(args.folder)
    corpus.verify()
    console.print(f"{len(corpus.train) + len(corpus.valid):,} tokens are as they were written", highlight=False)


COMMANDS: dict[str, tuple[type, Callable[[Any, Console], None]]] = {
    "prepare": (DataPrepareArguments, data_prepare),
    "verify": (DataVerifyArguments, data_verify),
}
