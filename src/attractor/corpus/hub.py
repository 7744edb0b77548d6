"""Stream data sets of the Hugging Face Hub. Only the rows that are read are fetched, so a set may exceed the disk."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from attractor.corpus.articles import Articles
from attractor.corpus.network import OFFLINE, reachable
from attractor.corpus.records import Record, Source, parse_row
from attractor.errors import InputError, require_package, unknown


@dataclass(frozen=True)
class Address:
    """A data set of the Hub. With `articles`, its rows are lines of longer documents."""

    repository: str
    config: str | None = None
    columns: tuple[str, ...] = ("text",)
    revision: str | None = None
    articles: bool = False

    def __str__(self) -> str:
        return ":".join([self.repository, *([self.config] if self.config else [])])


# Repositories that still carry a loading script are read from the Hub's own conversion to parquet.
ALIASES = {
    "wikitext-2": Address("Salesforce/wikitext", "wikitext-2-raw-v1", articles=True),
    "wikitext-103": Address("Salesforce/wikitext", "wikitext-103-raw-v1", articles=True),
    "openwebtext": Address("Skylion007/openwebtext", revision="refs/convert/parquet"),
    "pubmed": Address("MedRAG/pubmed", columns=("title", "content")),
    "cosmopedia-v2": Address("HuggingFaceTB/smollm-corpus", "cosmopedia-v2"),
}


def hub_source(name: str, columns: Sequence[str], split: str) -> Source:
    """Open the data set of an alias or of `name:config:column`."""
    if name in ALIASES:
        address = ALIASES[name]
        if tuple(columns) != ("text",):
            address = replace(address, columns=tuple(columns))
    else:
        repository, config, column = [*name.split(":"), "", ""][:3]
        wanted = tuple(column.split(",")) if column else tuple(columns)
        address = Address(repository, config or None, wanted)
    if not reachable():
        config = f", '{address.config}'" if address.config else ""
        revision = f", revision='{address.revision}'" if address.revision else ""
        raise InputError(
            f"data set '{address}' must be downloaded, but {OFFLINE}; elsewhere, run datasets.load_dataset("
            f"'{address.repository}'{config}{revision}, split='{split}').save_to_disk('FOLDER'), copy FOLDER here and "
            f"give its path as the source{', with --articles' if address.articles else ''}"
        )
    require_package("datasets")
    rows = HubSource(name, address, split, _commit(address))
    return Articles(rows) if address.articles else rows


class HubSource:
    """One split at a fixed commit, so that a resumed preparation reads the same rows."""

    sizes = None

    def __init__(self, name: str, address: Address, split: str, commit: str) -> None:
        self.name = name
        self.address = address
        self.split = split
        self.commit = commit
        self.files = [f"{address}/{split}"]

    @property
    def identity(self) -> dict[str, Any]:
        address = self.address
        return {
            "kind": "hub",
            "name": address.repository,
            "config": address.config,
            "split": self.split,
            "columns": list(address.columns),
            "commit": self.commit,
        }

    def records(self, file: int = 0, position: int = 0) -> Iterator[Record]:
        from datasets import load_dataset

        if file > 0:
            return
        try:
            stream = load_dataset(
                self.address.repository, self.address.config, split=self.split, streaming=True, revision=self.commit
            )
            rows = iter(stream.skip(position) if position else stream)
            first = next(rows, None)
            if first is None:
                return
            missing = [column for column in self.address.columns if column not in first]
            if missing:
                raise InputError(
                    f"column '{missing[0]}' must be in data set '{self.address}', which has {', '.join(first)}; give "
                    "--column NAME, or several as NAME,NAME"
                )
            splits = stream.info.splits or {}
            n_rows = splits[self.split].num_examples if self.split in splits else None
            for place, row in enumerate(chain([first], rows), start=position):
                yield Record(0, place, place + 1, (place + 1) / n_rows if n_rows else 0.0, row)
        except InputError:
            raise
        except Exception as error:  # the library lets through whatever its many layers raise
            raise _in_one_line(error, self.address) from error

    def text(self, record: Record) -> str:
        return parse_row(record.raw, self.address.columns)


def _commit(address: Address) -> str:
    """Return the present commit of a branch."""
    from huggingface_hub import HfApi

    try:
        return str(HfApi().dataset_info(address.repository, revision=address.revision, timeout=30).sha)
    except Exception as error:  # as above
        raise _in_one_line(error, address) from error


def _in_one_line(error: Exception, address: Address) -> InputError:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    bad_split = re.search(r"[Bb]ad split: (\S+). Available splits: \[(.*)\]", lines[0])
    if bad_split:
        return unknown("split", bad_split[1], re.findall(r"'(.+?)'", bad_split[2]))
    return InputError(
        f"data set '{address}' must be readable, but is not ({type(error).__name__}: {lines[0]}); check its name, or "
        "repeat the command, which goes on where it stopped"
    )
