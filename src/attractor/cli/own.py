"""Commands about mechanisms of one's own: init, check."""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from tyro.conf import Positional

from attractor.cli.console import answer, say
from attractor.errors import InputError, RunStopped
from attractor.files import write_text

WRITTEN = '''"""A mechanism of my own: softmax off by one, whose weights may sum to less than one.

    attractor check {file}:Mine
    attractor compare standard {file}:Mine --corpus notes.txt
"""

import torch
from torch import nn


class Mine(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x):  # B T D to B T D
        q, k, v = self.qkv(x).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        logits = q @ k.mT * q.shape[-1] ** -0.5
        past = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
        logits = logits.masked_fill(~past, -torch.inf)
        zero = torch.zeros_like(logits[..., :1])  # the logit of attending to nothing
        weights = torch.cat([logits, zero], -1).softmax(-1)[..., :-1]
        return self.out((weights @ v).transpose(1, 2).flatten(-2))
'''
SIGNS = {True: "yes", False: "NO", None: "–"}  # noqa: RUF001  (an en dash is the sign for "none")


@dataclass(frozen=True)
class InitArguments:
    file: Positional[Path]
    """file to write"""


@dataclass(frozen=True)
class CheckArguments:
    mechanism: Positional[str]
    """a preset, FILE.py:NAME or package.module:NAME"""
    d_model: int = 32
    """width at which it is tried"""
    n_heads: int = 4
    """heads at which it is tried"""


def init(args: InitArguments, console: Console) -> None:
    """Write a working mechanism of 25 lines to begin with.

    attractor init mine.py
    """
    if args.file.exists():
        raise InputError(f"file must be new, and '{args.file}' exists; choose another name")
    if args.file.suffix != ".py":
        raise InputError(f"file must be Python, got '{args.file}'; choose a name that ends in .py")
    write_text(args.file, WRITTEN.format(file=args.file))
    say(console, f"check it: attractor check {args.file}:Mine")
    say(console, f"compare it: attractor compare standard {args.file}:Mine")
    say(console, str(args.file))
    answer(console, file=str(args.file))


def check(args: CheckArguments, console: Console) -> None:
    """Try what a mechanism can do: shapes, the past alone, gradients, cache, bf16, padding, compilation.

    attractor check mine.py:Mine
    """
    from attractor.attention.check import check as findings_of
    from attractor.console import console_table

    findings = findings_of(args.mechanism, args.d_model, args.n_heads)
    table = console_table(["", "holds", "found"], left=["", "found"])
    for finding in findings:
        table.add_row(finding.what, SIGNS[finding.holds], finding.words)
    console.print(table)
    answer(console, findings=[finding._asdict() for finding in findings])
    if failed := [finding for finding in findings if finding.holds is False]:
        raise RunStopped(f"{args.mechanism}: {failed[0].words}")
