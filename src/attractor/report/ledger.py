"""The ledger of claims: a table and reasons for the console, and a page that begins with the papers' introduction."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from attractor.claims.claim import Paper
from attractor.claims.ledger import SCALES, Entry
from attractor.claims.verdicts import ClaimVerdict
from attractor.console import console_table, print_line, with_prefix
from attractor.report.table import in_markdown
from attractor.runs.study_record import StudyRecord
from attractor.verdict.words import UNKNOWN, markdown_escaped

HEADINGS = ("id", "claim", "published", "ours", "size", "seeds", "interval", "verdict")
INTRODUCTION = "introduction.md"  # of a folder of papers
BRIEF = 160  # characters of the reason in the table of the page
SHORTENED = {"claim": 40, "published": 28}  # characters, on the console
COLOURS = {"holds": "green", "fails": "red", "partly": "cyan", "unclear": "yellow", "not run": "dim"}
PAGE_HEADINGS = ("id", "claim", "verdict", "reason")


def print_ledger(console: Console, entries: Sequence[Entry], only: Sequence[str] = ()) -> None:
    """Print the table and the reason of every verdict that rests on runs; for claims in `only`, the rule as well."""
    chosen = [entry for entry in entries if not only or entry.claim.id in only]
    console.print(ledger_table(chosen))
    for entry in chosen:
        if only:
            print_line(console, f"{entry.claim.id}: {entry.claim.statement}")
            print_line(console, f"  published: {entry.claim.published}")
            if entry.claim.rule is not None:
                since = (
                    f", as it stands since {_to_the_minute(entry.rule_since)}"
                    if entry.rule_since
                    else ", of unknown age (no rules.json beside the records names it)"
                )
                age = ", younger than the runs that it judges" if entry.rule_is_younger else ""
                print_line(console, f"  rule {entry.claim.rule.fingerprint}{since}{age}: {entry.claim.rule.words}")
            print_line(console, f"  {reason(entry)}")
        elif entry.verdict.status != "not run":
            print_line(console, f"{entry.claim.id} {reason(entry)}")


def ledger_table(entries: Sequence[Entry]) -> Table:
    table = console_table(HEADINGS, left={*HEADINGS} - {"size", "seeds"}, padding=(0, 1, 0, 0))
    for entry in entries:
        texts = [
            shortened(text, SHORTENED[heading]) if heading in SHORTENED else text
            for heading, text in zip(HEADINGS, cells(entry), strict=True)
        ]
        table.add_row(*map(Text, texts[:-1]), Text(texts[-1], COLOURS[entry.verdict.status]))
    return table


def cells(entry: Entry) -> list[str]:
    claim, verdict = entry.claim, entry.verdict
    scale = f" ({verdict.scale})" if verdict.scale and verdict.status != "not run" else ""
    figures = [verdict.ours, size(verdict), str(verdict.seeds or ""), verdict.bounds]
    status = ", ".join(filter(None, (verdict.status, verdict.remark))) + (" †" if entry.rule_is_younger else "")
    return [claim.id, claim.statement, claim.published, *(text or UNKNOWN for text in figures), status + scale]


def size(verdict: ClaimVerdict) -> str:
    """Return the number of parameters, or a range where columns have models of several sizes."""
    if verdict.size is None or verdict.status == "not run":
        return ""
    return " to ".join(dict.fromkeys(map(with_prefix, verdict.size)))


def shortened(text: str, length: int) -> str:
    if len(text) <= length:
        return text
    return text[: length - 1].rpartition(" ")[0].rstrip(",;:") + "…"


def reason(entry: Entry) -> str:
    """Return the verdict in words, followed by the verdicts of smaller scales."""
    return "; ".join([_because(entry.verdict), *(f"otherwise {_because(other)}" for other in entry.others)])


def _because(verdict: ClaimVerdict) -> str:
    where = ", ".join(filter(None, (verdict.scale, verdict.corpus)))
    return f"{verdict.status}{f' ({where})' if where else ''}: {verdict.reason}"


def markdown(papers: Mapping[Path, Paper], entries: Sequence[Entry], records: Sequence[StudyRecord] = ()) -> str:
    """Return the page: a section for each paper with a short table, and folded below it figures, reasons and rules."""
    introductions = filter(Path.is_file, dict.fromkeys(folder.parent / INTRODUCTION for folder in papers))
    parts = [path.read_text(encoding="utf-8") for path in introductions] or ["# Claims\n"]
    if records:
        parts.append(f"Behind the verdicts stand {extent(records)}. A run that several studies share counts once.\n")
    for paper in papers.values():
        ids = {claim.id for claim in paper.claims}
        chosen = [entry for entry in entries if entry.claim.id in ids]
        if not chosen:
            continue
        counts: Counter[str] = Counter(entry.verdict.status for entry in chosen)
        counted = ", ".join(f"{status} {counts[status]}" for status in COLOURS if counts[status])
        rows = [[entry.claim.id, entry.claim.statement, cells(entry)[-1], _brief(entry)] for entry in chosen]
        summary = f"Figures, full reasons and rules of {chosen[0].claim.id} to {chosen[-1].claim.id}"
        parts += [
            f"## {paper.key}\n",
            f"{paper.citation} {paper.says}\n",
            f"Verdicts on {len(chosen)} claims: {counted}.\n",
            in_markdown(PAGE_HEADINGS, rows, n_texts=len(PAGE_HEADINGS)),
            f"<details>\n<summary>{summary}</summary>\n",
            "".join(map(_details, chosen)),
            "</details>\n",
        ]
    return "\n".join(parts)


def extent(records: Sequence[StudyRecord]) -> str:
    """Return the number of runs at each scale in words, with the hours that they took by the clock."""
    runs = {outcome.key: (record.design.scale, outcome.summary) for record in records for outcome in record.outcomes}
    phrases = []
    for scale in SCALES:
        summaries = [summary for of_run, summary in runs.values() if of_run == scale]
        seconds = {"core": 0.0, "GPU": 0.0}
        for summary in summaries:
            unit, n = ("core", summary.get("threads") or 1) if summary.get("device", "cpu") == "cpu" else ("GPU", 1)
            seconds[unit] += n * (summary.get("wall_seconds") or 0.0)
        times = [f"{total / 3600:,.{total < 3600:d}f} {unit}-hours" for unit, total in seconds.items() if total]
        phrases += [f"{len(summaries):,} runs at `{scale}` ({' and '.join(times)})"] if times else []
    return ", ".join(phrases)


def _brief(entry: Entry) -> str:
    verdict = entry.verdict
    return shortened(verdict.reason if verdict.status == "not run" else verdict.brief, BRIEF)


def _details(entry: Entry) -> str:
    """Return the list item of one claim: what is published, what was measured, why, and by which rule."""
    claim, verdict = entry.claim, entry.verdict
    lines = [
        f"- **{claim.id}**: {markdown_escaped(claim.statement)}",
        f"published: {markdown_escaped(claim.published)}",
    ]
    if verdict.status != "not run":
        figures = [verdict.ours, verdict.bounds, size(verdict) and f"{size(verdict)} parameters"]
        seeds = [f"{verdict.seeds} seeds" if verdict.seeds != 1 else "1 seed"] if verdict.seeds else []
        lines.append(f"ours: {markdown_escaped(', '.join(filter(None, [*figures, *seeds])))}")
        lines.append(markdown_escaped(reason(entry)))
    if claim.rule is not None:
        since = _to_the_minute(entry.rule_since) or "today"
        lines.append(f"rule {claim.rule.fingerprint}, since {since}: {markdown_escaped(claim.rule.words)}")
    return "\n  - ".join(lines) + "\n"


def _to_the_minute(time: str) -> str:
    return time[:16].replace("T", " ")
