"""Count how often `judge` errs on simulated tables, setting by setting: `verdict_rates.py FILE [TABLES]`.

A setting has a number of seeds and of ideas, a correlation between the runs of one seed, a ratio between the variances
of every second row and of the others, and normal or t-distributed noise (four degrees of freedom). Of each setting it
appends to the file the share of tables with a false "better", the share with a false "no difference" where all rows
differ by the margin, and the coverage of the 95% intervals; then, of a fifth of the tables, the power against a
difference of three standard deviations beside that of the plain t test with Holm's correction. The same command goes on
after the last setting in the file. A share p of n tables has the standard error √(p (1 - p) / n).
"""

import itertools
import math
import sys
from pathlib import Path

import numpy as np
from scipy import stats

from attractor.verdict.judge import judge_observations
from attractor.verdict.multiplicity import holm
from attractor.verdict.observations import Observations, ObservedRun
from attractor.verdict.outcome import Verdicts

SETTINGS = itertools.product((4, 16, 8), (40, 1, 5), (0.8, -0.2), (4.0, 1.0), ("t4", "normal"))
HEADINGS = ("seeds", "ideas", "corr", "ratio", "noise", "better", "same", "cover", "power", "plain")
EFFECT = 3.0


def table(rng: np.random.Generator, n: int, m: int, correlation: float, ratio: float, law: str) -> np.ndarray:
    """Return the baseline's values and those of m rows without any difference, by seed."""
    noise = rng.standard_normal if law == "normal" else lambda shape: rng.standard_t(4, shape) / math.sqrt(2)
    shared, own = math.sqrt(abs(correlation)) * noise(n), math.sqrt(1 - abs(correlation)) * noise((m + 1, n))
    values = own + shared
    values[0] = own[0] + math.copysign(1.0, correlation) * shared
    values[1::2] *= math.sqrt(ratio)
    return values


def judged(values: np.ndarray, margin: float | None = None) -> Verdicts:
    of_rows = enumerate(values.tolist())
    rows = {str(row): {seed: ObservedRun(x) for seed, x in enumerate(of_row)} for row, of_row in of_rows}
    return judge_observations(Observations(rows, "loss"), baseline="0", margin=margin)


def main(file: Path, n_tables: int) -> None:
    if not file.exists():
        file.write_text("".join(f"{heading:>8}" for heading in HEADINGS) + "\n")
    done = [line[:40] for line in file.read_text().splitlines()]
    for place, setting in sorted(enumerate(SETTINGS), key=lambda placed: placed[1][1]):  # few ideas take less time
        written = "".join(f"{part:>8}" for part in setting)
        if written in done:
            continue
        rng = np.random.default_rng(place)
        counts = np.zeros(5)
        for number in range(n_tables):
            values = table(rng, *setting)
            verdicts = judged(values).verdicts
            counts[0] += any(verdict.outcome == "better" for verdict in verdicts)
            counts[2] += np.mean([verdict.low <= 0 <= verdict.high for verdict in verdicts])
            apart = values.copy()
            apart[1:] += 1.0
            counts[1] += any(verdict.outcome == "no difference" for verdict in judged(apart, 1.0).verdicts)
            if number % 5:
                continue
            apart = values.copy()
            apart[1] -= EFFECT
            counts[3] += 5 * (judged(apart)["1"].outcome == "better")
            p = stats.ttest_rel(apart[1:], apart[:1], axis=1).pvalue
            counts[4] += 5 * (holm(dict(enumerate(p)))[0] < 0.05)
        with file.open("a") as rates:
            rates.write(written + "".join(f"{share:8.3f}" for share in counts / n_tables) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 2000)
