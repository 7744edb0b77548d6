"""The advice of a pilot in words: which mechanism to use, how sure and how general that is, and what would change it.

Sensitivity comes first: unless the control is clearly worse, the only advice is a longer pilot.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from attractor.claims.pilot import Finding, Judgement, Losses, Pilot
from attractor.files import in_json, write_text
from attractor.numerals import in_bytes, in_time, with_prefix
from attractor.report.judged_study import with_pairs
from attractor.report.table import in_markdown as table_in_markdown
from attractor.runs.study_record import BYTE_VOCABULARY
from attractor.verdict.intervals import Interval
from attractor.verdict.power import POWER, pairs_needed

MANY_PAIRS = 1000  # beyond this, nobody runs so many and the exact number does not matter
LARGE_VOCABULARY = 1_000
# C1, C6, C7 and C8 of CoupledQK.
SIZE_PUBLISHED = (
    " (CoupledQK publishes that coupled attention leads at 60M and 150M parameters, and differential attention at 350M)"
)
CORPUS_PUBLISHED = (
    " (CoupledQK publishes for coupled attention a perplexity of -6.6% on WikiText, -4.5% on PubMed and +10.4% on "
    "OpenWebText)"
)


@dataclass(frozen=True)
class Cost:
    """The costs of the finished runs of one mechanism."""

    n_parameters: int
    tokens_per_second: float
    peak_memory_bytes: int


@dataclass(frozen=True)
class PilotSetting:
    """The conditions of the pilot, beyond which its answer is not known to hold."""

    corpus: str
    recipe: str
    next_recipe: str  # the recipe of a larger budget; empty if this corpus has no longer one
    tokens: int  # per run
    epochs: float
    vocab_size: int
    lr: float
    budget_seconds: float
    spent_seconds: float
    pair_seconds: float  # for one more seed of the baseline and of one rival on this machine


def unit_of_losses(vocab_size: int) -> str:
    """Return the unit of losses: per byte if the corpus is read in bytes, else per token."""
    return "nats/byte" if vocab_size == BYTE_VOCABULARY else "nats/token"


@dataclass(frozen=True)
class Advice:
    pilot: Pilot
    judgement: Judgement
    losses: Losses
    costs: Mapping[str, Cost]
    setting: PilotSetting
    failures: Mapping[str, str]
    command: str
    path: Path

    @property
    def unit(self) -> str:
        return unit_of_losses(self.setting.vocab_size)

    @property
    def recommended(self) -> str:
        """The best mechanism among those that are better than the baseline, or the baseline if there are none.

        If several remain, of which none is shown to be worse than another, the fastest is chosen if their differences
        are shown not to matter, and otherwise the one with the lowest mean loss.
        """
        if not self.judgement.sensitive or not self.judgement.better:
            return self.pilot.baseline
        beaten = {duel.of if duel.outcome == "worse" else duel.against for duel in self.judgement.duels if _shown(duel)}
        # Among three or more, each may be worse than another; then all of them stay.
        best = [label for label in self.judgement.better if label not in beaten] or list(self.judgement.better)
        among = [duel.outcome for duel in self.judgement.duels if {duel.of, duel.against} <= {*best}]
        if any(outcome != "no relevant difference" for outcome in among):
            return min(best, key=lambda label: self._advantage(label).mean)
        return max(best, key=lambda label: (self.costs[label].tokens_per_second, label))

    def words(self) -> list[str]:
        return [
            *self._answer(),
            self._setting(),
            *(self._against_baseline(finding) for finding in self.judgement.rivals),
            *(self._between_rivals(duel) for duel in self.judgement.duels if self.judgement.sensitive),
            *self._how_sure(),
            self._how_far(),
            *(f"would change it: {text}" for text in self._what_would_change_it()),
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the whole advice as data for programs, without any path of this machine."""
        judgement = asdict(self.judgement)
        for finding in judgement["rivals"] + judgement["duels"]:
            if not self.judgement.sensitive:
                finding["outcome"] = "not judged"
        return {
            "command": self.command,
            "recommended": self.recommended,
            "sensitive": self.judgement.sensitive,
            "finished": not self.judgement.wanted,
            "pilot": asdict(self.pilot),
            "judgement": judgement,
            "valid_loss_by_seed": {
                label: dict(sorted(by_seed.items())) for label, by_seed in sorted(self.losses.items())
            },
            "costs": {label: asdict(cost) for label, cost in sorted(self.costs.items())},
            "setting": asdict(self.setting),
            "failures": dict(self.failures),
            "words": self.words(),
        }

    # --- the answer ---------------------------------------------------------------------------------------------------

    def _answer(self) -> list[str]:
        baseline, chosen = self.pilot.baseline, self.recommended
        if not self.judgement.sensitive:
            ask = (
                f"a longer run may ({self.setting.next_recipe}): give a --budget above "
                f"{in_time(self.setting.budget_seconds)}"
                if self.setting.next_recipe
                else "longer runs may, which 'attractor compare' makes with --n-steps: a larger budget does not"
            )
            if self.setting.vocab_size > LARGE_VOCABULARY:
                ask += f", or the corpus in bytes in place of {self.setting.vocab_size:,} kinds of tokens"
            reason = " for it costs least" if self._costs_least(baseline) else " the best-known mechanism"
            return [
                f"answer: this pilot cannot tell; {ask}",
                f"until then: '{baseline}',{reason}; nothing here speaks for or against the others",
            ]
        if chosen == baseline:
            undecided = [finding.of for finding in self.judgement.rivals if finding.undecided]
            open_end = f"; {_listed(undecided)} may still be better, which this pilot could not decide"
            least = ", and it costs least" if self._costs_least(baseline) else ""
            return [f"answer: use '{baseline}': no rival is shown to be better{least}{open_end if undecided else ''}"]
        advantage = self._advantage(chosen)
        gain = 1 - math.exp(advantage.mean)
        return [
            f"answer: use '{chosen}': better than '{baseline}' by {_size(advantage, self.unit)}, {gain:.1%} of the "
            f"perplexity{self._price(chosen)}"
        ]

    def _setting(self) -> str:
        gap, control = self.judgement.gap, self.pilot.control
        what = f"the control '{control}', which attends to all positions alike,"
        if control in self.failures:
            return f"setting: sensitivity unknown: {what} failed: {self.failures[control]}"
        if gap.interval is None or gap.sensitive is None:
            lost = gap.interval is not None and not math.isfinite(gap.interval.mean)
            why = "no finite loss" if lost else "fewer than two seeds in common with the baseline"
            return f"setting: sensitivity unknown: {what} has {why}"
        shown = "is worse" if gap.sensitive else "is not shown to be worse"
        measured = f"{what} {shown} than '{self.pilot.baseline}': {with_pairs(gap.interval, self.unit)}"
        return f"setting: {'sensitive' if gap.sensitive else 'not sensitive'}: {measured}"

    def _against_baseline(self, finding: Finding) -> str:
        label = finding.of
        if finding.outcome == "failed":
            return f"{label}: no verdict: {self.failures[label]}"
        if finding.interval is None:
            return f"{label}: no verdict: the budget ended before its first pair"
        if finding.outcome == "not finite":
            return f"{label}: no verdict: a run of it or of '{finding.against}' ended without a finite loss"
        measured = with_pairs(finding.interval, self.unit)
        if not self.judgement.sensitive:
            return f"{label}: not judged: {measured}"
        return f"{label}: {self._outcome(finding)}: {measured}{self._price(label)}"

    def _between_rivals(self, duel: Finding) -> str:
        if duel.interval is None or duel.outcome in ("failed", "not finite"):
            return f"{duel.of} and {duel.against}: no verdict: further runs of one of them failed or diverged"
        return f"{duel.of} and {duel.against}: {self._outcome(duel)}: {with_pairs(duel.interval, self.unit)}"

    def _outcome(self, finding: Finding) -> str:
        if _shown(finding):
            return f"{finding.outcome} than '{finding.against}', decided"
        if finding.outcome == "no relevant difference":
            return (
                f"no relevant difference from '{finding.against}' (within {self.pilot.margin:g} {self.unit}), decided"
            )
        ended = "at the end of the budget" if finding.open else "after all pairs that were planned"
        return f"not decided {ended}"

    def _price(self, label: str) -> str:
        ours, theirs = self.costs.get(label), self.costs.get(self.pilot.baseline)
        if ours is None or theirs is None:
            return ""
        return (
            f"; at {ours.tokens_per_second / theirs.tokens_per_second:.2f} of its speed, "
            f"{ours.peak_memory_bytes / theirs.peak_memory_bytes:.2f} of its memory, "
            f"{ours.n_parameters / theirs.n_parameters:.2f} of its parameters"
        )

    # --- how sure, how far, what else ---------------------------------------------------------------------------------

    def _how_sure(self) -> list[str]:
        if not self.judgement.sensitive:
            return []
        pilot = self.pilot
        rivals = "the rival" if len(pilot.rivals) == 1 else f"all {len(pilot.rivals)} rivals"
        lines = [
            f"how sure: the chance to call a mechanism better or worse that does not differ is at most "
            f"{pilot.alpha:.2g}, over all looks (one after each of up to {pilot.n_max} pairs of seeds) and {rivals} "
            f"together; each interval against '{pilot.baseline}' holds at all looks with {pilot.rival_level:.4g} "
            "confidence. This speaks of other seeds, not of other text or sizes"
        ]
        for finding in (*self.judgement.rivals, *self.judgement.duels):
            if finding.undecided and (needed := self._pairs_needed(finding)):
                lines.append(needed)
        return lines

    def _pairs_needed(self, finding: Finding) -> str:
        """Say how many pairs would show a difference of the margin; empty if the spread is not known."""
        if not finding.sd or not math.isfinite(finding.sd):
            return ""
        pilot = self.pilot
        confidence = pilot.duel_level if finding in self.judgement.duels else pilot.rival_level
        needed = pairs_needed(finding.sd, pilot.margin, level=1 - confidence)
        assert needed is not None
        who = f"'{finding.of}' and '{finding.against}'"
        margin = f"{self.pilot.margin:g} {self.unit}"
        if needed > MANY_PAIRS:
            return f"undecided: {who}: more than {MANY_PAIRS} pairs to see {margin}: take a wider margin"
        return (
            f"undecided: {who}: about {needed} pairs would show a difference of {margin} with a "
            f"chance of {POWER:.0%}, if they scatter as these {finding.n} do; "
            f"here about {in_time(needed * self.setting.pair_seconds)}"
        )

    def _how_far(self) -> str:
        s, cost = self.setting, self.costs.get(self.pilot.baseline)
        model = "" if cost is None else f"{with_prefix(cost.n_parameters)} parameters, "
        return (
            f"how far: {model}{with_prefix(s.tokens)} tokens a run ({s.epochs:.2g} passes), recipe {s.recipe}. "
            "Whether it holds for a larger model or a longer training is not known from this pilot"
        )

    def _what_would_change_it(self) -> list[str]:
        if not self.judgement.sensitive:
            return [
                "anything that makes context matter: more steps, smaller vocabulary, a corpus with longer documents"
            ]
        of_size, of_corpus = (
            (SIZE_PUBLISHED, CORPUS_PUBLISHED) if any("coupled" in label for label in self.pilot.rivals) else ("", "")
        )
        texts = [
            f"a larger model: the order of mechanisms may turn with size{of_size}",
            f"another corpus: what helps on one kind of text may harm on another{of_corpus}",
            f"another learning rate: all mechanisms had {self.setting.lr:g}, and each may have a better one of its own",
        ]
        for finding in self.judgement.rivals:
            interval = finding.interval
            if interval is None or interval.low is None or interval.high is None or not math.isfinite(interval.mean):
                continue
            if finding.undecided:
                bound = max(abs(interval.low), abs(interval.high))
                texts.append(
                    f"a wider margin: '{finding.of}' shows no difference of {bound:.3f} {self.unit} or more, so if "
                    "smaller ones do not matter, take the cheaper"
                )
            elif finding.outcome == "better" and -interval.high < self.pilot.margin:
                texts.append(
                    f"the margin: '{finding.of}' is better, but by how much is open down to {-interval.high:.4f} "
                    f"{self.unit}, less than the {self.pilot.margin:g} that matter to you"
                )
        return texts

    def _advantage(self, rival: str) -> Interval:
        """Return the interval of a rival that is better."""
        interval = next(finding.interval for finding in self.judgement.rivals if finding.of == rival)
        assert interval is not None
        return interval

    def _costs_least(self, label: str) -> bool:
        speeds = {name: cost.tokens_per_second for name, cost in self.costs.items() if name != self.pilot.control}
        return label in speeds and speeds[label] == max(speeds.values())


def write_advice(advice: Advice, folder: Path) -> None:
    """Write advice.json for programs and advice.md for people."""
    write_text(folder / "advice.json", in_json(advice.to_dict()))
    write_text(folder / "advice.md", in_markdown(advice))


def in_markdown(advice: Advice) -> str:
    """Return the advice as markdown: the words, the losses that they rest on, and the command."""
    seeds = sorted({seed for by_seed in advice.losses.values() for seed in by_seed})
    heading = ["attention", *(f"seed {seed}" for seed in seeds), "params", "tok/s", "memory"]
    rows = []
    for label in (label for label in advice.pilot.arms if label in advice.costs):
        by_seed, cost = advice.losses.get(label, {}), advice.costs[label]
        losses = [f"{by_seed[seed]:.4f}" if seed in by_seed else "" for seed in seeds]
        costs = [with_prefix(cost.n_parameters), with_prefix(cost.tokens_per_second), in_bytes(cost.peak_memory_bytes)]
        rows.append([label, *losses, *costs])
    words = "\n".join(f"- {line}" for line in advice.words())
    return (
        f"# Which attention for {advice.setting.corpus}\n\n{words}\n\n"
        f"Validation loss in {advice.unit}, by seed:\n\n{table_in_markdown(heading, rows)}\n"
        f"`{advice.command}`\n"
    )


def _shown(finding: Finding) -> bool:
    return finding.outcome in ("better", "worse")


def _size(interval: Interval, unit: str) -> str:
    """Return an improvement with its interval, without their signs."""
    assert interval.low is not None
    assert interval.high is not None
    return f"{-interval.mean:.4f} {unit} [{-interval.high:.4f}, {-interval.low:.4f}]"


def _listed(labels: list[str]) -> str:
    return " and ".join(f"'{label}'" for label in labels)
