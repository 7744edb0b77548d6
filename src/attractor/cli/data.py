"""Commands about corpora on disk: data prepare and verify."""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from tyro.conf import Positional

from attractor.cli.console import answer, say


@dataclass(frozen=True)
class DataPrepareArguments:
    source: Positional[str]
    """file, folder, pattern, saved data set, or owner/name:config:column of the Hugging Face Hub"""
    out: Path
    """folder to write"""
    tokenizer: str = "bytes"
    """bytes, gpt2, bpe:SIZE (trained on this corpus), or a path"""
    column: str | None = None
    """column of tables that holds the text, or several as title,abstract; by default 'text' or the only one"""
    split: str = "train"
    """split of a data set that has several"""
    articles: bool = False
    """rows are lines of articles as in WikiText; ' = Title = ' begins a document"""
    max_tokens: str | None = None
    """most training tokens, as 250k, 100M or 1.5G; by default all"""
    valid_share: float = 0.1
    """share of documents held out for validation"""
    drop_duplicates: bool = False
    """leave out training documents whose words are in validation, too; copies within training stay"""
    special_tokens: bool = False
    """read names of special tokens in a text as these tokens, for chats that you rendered yourself"""
    max_bad: float = 0.01
    """largest share of malformed records that is accepted"""
    workers: int | None = None
    """threads; by default one per core"""


@dataclass(frozen=True)
class DataVerifyArguments:
    folder: Positional[Path]
    """folder that 'attractor data prepare' wrote"""


def data_prepare(args: DataPrepareArguments, console: Console) -> None:
    """Turn text into a prepared corpus of tokens. If it is interrupted, the same command continues.

    attractor data prepare notes.txt --tokenizer bpe:4096 --out corpora/notes
    """
    from attractor.corpus.columns import columns_from
    from attractor.corpus.prepare import Preparation, count_of, prepare
    from attractor.corpus.progress import LivePreparation, print_corpus

    given = {name: value for name, value in vars(args).items() if name not in ("column", "max_tokens", "json")}
    max_tokens = None if args.max_tokens is None else count_of(args.max_tokens)
    with LivePreparation(console, args.source) as live:
        corpus = prepare(Preparation(**given, columns=columns_from(args.column), max_tokens=max_tokens), live)
    print_corpus(console, corpus)
    say(console, str(args.out))
    answer(console, folder=str(args.out), train_tokens=len(corpus.train), valid_tokens=len(corpus.valid))


def data_verify(args: DataVerifyArguments, console: Console) -> None:
    """Read all of a prepared corpus and check it: checksums, and ids within the vocabulary.

    attractor data verify corpora/notes
    """
    from attractor.corpus.shards import PreparedCorpus

    corpus = PreparedCorpus.open(args.folder)
    corpus.verify()
    n_tokens = len(corpus.train) + len(corpus.valid)
    console.print(f"{n_tokens:,} tokens are as they were written", highlight=False)
    answer(console, folder=str(args.folder), intact_tokens=n_tokens)
