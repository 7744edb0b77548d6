"""Mutation check: plant known faults in copies of the source, one at a time, and check whether the tests notice.

`make mutants` checks the fast tests, and `make mutants ARGS=--all` every test. Further arguments choose faults by
number or by a part of their file's path. The tests nearest to the fault run first, then those of its room, then all
others; a check ends at the first test that fails.

The faults were chosen before anyone looked at which tests exist. Where a fault is missed, the remedy is a new test,
never another fault. Where a change moves the line that a fault replaces, the fault moves along.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
LEFT_BEHIND = {".git", ".venv", "dist", "runs"}  # these entries of the repository's root are not copied
LONGEST_SECONDS = 3600  # a limit, since a fault may make a test wait for ever


@dataclass(frozen=True)
class Mutant:
    file: str  # the path below src/attractor
    old: str  # this text occurs exactly once in the file
    new: str
    breaks: str

    def apply(self, source: Path) -> None:
        path = source / "attractor" / self.file
        text = path.read_text()
        n_found = text.count(self.old)
        if n_found != 1:
            raise ValueError(
                f"{self.file} must hold {self.old!r} exactly once, and holds it {n_found} times; where a change moved "
                "the line, give the fault its new text in tests/mutation.py"
            )
        path.write_text(text.replace(self.old, self.new))


MUTANTS = (
    Mutant(
        "attention/couple/leapfrog.py",
        "DRIFT, FORCE, 0.5)",
        "DRIFT, FORCE, 1.0)",
        "the half kick that ends a leapfrog step is a whole one",
    ),
    Mutant(
        "attention/cache.py",
        "room[:, :, : self.length] = old[:, :, : self.length]",
        "room[:, :, : self.length - 1] = old[:, :, : self.length - 1]",
        "a cache loses its newest position when it grows",
    ),
    Mutant(
        "attention/mask.py", ".tril(n_keys - n_queries)", ".tril(n_keys - n_queries + 1)", "a query sees the next key"
    ),
    Mutant(
        "attention/score/differential.py",
        "(1 - self.lambda_init) * self.norm(difference)",
        "self.norm(difference)",
        "differential attention lacks the factor 1 - lambda_init",
    ),
    Mutant(
        "kernels/coupling.py",
        "(move / groups) * dt * grad_k",
        "move * dt * grad_k",
        "the gradient of a key that several queries share is a sum instead of a mean",
    ),
    Mutant(
        "kernels/cross_entropy.py",
        "return total / (targets != NOT_SCORED).sum(), grad_hidden",
        "return total / len(targets), grad_hidden",
        "the mean loss counts positions that are not scored",
    ),
    Mutant(
        "kernels/decay.py",
        "F.pad(after, (0, 0, 1, 0))",
        "F.pad(after, (0, 0, 0, 1))",
        "a piece of linear attention reads the state that it adds to",
    ),
    Mutant(
        "models/fast_decoding.py",
        "torch.cat((-sin, sin), dim=-1)",
        "torch.cat((sin, -sin), dim=-1)",
        "cached decoding rotates the new position the other way round",
    ),
    Mutant(
        "models/block_pooling.py",
        "sums[:, :1] + memory.sum()",
        "sums[:, :1]",
        "the mean of a block leaves out its tokens from an earlier cached call",
    ),
    Mutant(
        "models/block_pooling.py",
        "self.index = before // period",
        "self.index = before // period + 1",
        "cached decoding places a slow block one position late",
    ),
    Mutant(
        "models/fast_slow.py",
        "if evaluation == 0 and self.training and",
        "if self.training and",
        "the fixed-point loss counts every evaluation instead of the first",
    ),
    Mutant(
        "models/akorn.py",
        "return y - (x * y).sum(-1, keepdim=True) * x",
        "return y + (x * y).sum(-1, keepdim=True) * x",
        "what pulls at an oscillator is not tangent to its sphere",
    ),
    Mutant(
        "equilibrium/fixed_point.py",
        "search.take(g + pulled)",
        "search.take(pulled)",
        "the implicit gradient lacks the term of the loss itself",
    ),
    Mutant("control/quack.py", 'norms, "amax")', 'norms, "sum")', "QuacK adds up the query heads that share a key"),
    Mutant(
        "control/qk_clip.py",
        "0.5 if has_one_reader[read] else 1.0",
        "0.5",
        "QK-clip takes only the root of its factor where several queries share a key",
    ),
    Mutant(
        "control/logit_maxima.py",
        "largest = torch.maximum(largest, logits.amax((0, 2, 3)))",
        "largest = logits.amax((0, 2, 3))",
        "the largest logit is that of the last block of queries",
    ),
    Mutant(
        "analysis/lyapunov.py",
        "logs = growth[n_transient:].log()",
        "logs = growth.log()",
        "Lyapunov exponents count the transient",
    ),
    Mutant("analysis/sink.py", "weights[..., 1:, 0]", "weights[..., 0, 1:]", "the sink is read from the first row"),
    Mutant(
        "verdict/intervals.py",
        "error, moments.n - 1, moments.n",
        "error, moments.n, moments.n",
        "a mean has one degree of freedom too many",
    ),
    Mutant(
        "claims/rules.py",
        "            if missing:\n",
        "            if missing and not self.premises:\n",
        "an equivalence holds although its premise is not shown",
    ),
    Mutant(
        "corpus/split.py",
        "return line or character_start(text, cut)",
        "return line or cut",
        "a text without line breaks is cut inside a character",
    ),
    Mutant(
        "corpus/duplicates.py",
        "first[place[duplicates]]",
        "place[duplicates]",
        "the twin of a duplicate is counted in the order of hashes",
    ),
    Mutant(
        "tasks/epochs.py",
        "key=philox_key(self.seed, epoch)",
        "key=philox_key(self.seed, 0)",
        "every epoch of a text has the same order",
    ),
    Mutant(
        "tasks/sudoku/task.py",
        "np.where(some.boards > 0, NOT_SCORED, some.solutions)",
        "some.solutions",
        "validation on Sudoku scores the cells that were given",
    ),
    Mutant("train/trainer.py", "(loss + aux_loss) * share", "loss * share", "training leaves out the auxiliary loss"),
    Mutant(
        "train/trainer.py",
        'torch.set_rng_state(tensors["random"].cpu())',
        "pass",
        "a resumed run does not go on with its random state",
    ),
    Mutant(
        "train/distributed.py",
        "self.size * n_scored(rows) / n)",
        "n_scored(rows) / n)",
        "the gradients of N processes are divided by N twice",
    ),
    Mutant(
        "train/checkpoint.py",
        "{*newest, best_checkpoint(folder)}",
        "{*newest}",
        "the best checkpoint is removed once it is old",
    ),
    Mutant(
        "hf/weights.py",
        "deinterleave(query[:, nope:])",
        "query[:, nope:]",
        "an imported DeepSeek query keeps its rotary pairs interleaved",
    ),
    Mutant(
        "hf/export.py",
        "model = deepcopy(model).to(dtype)",
        "model = model.to(dtype)",
        "an export in half precision changes the model that was exported",
    ),
)


def copy_repository(copy: Path) -> None:
    def left_behind(folder: str, names: list[str]) -> set[str]:
        return {"__pycache__"} | (LEFT_BEHIND if Path(folder) == ROOT else set())

    shutil.copytree(ROOT, copy, ignore=left_behind)


def tests_near(mutant: Mutant) -> list[list[str]]:
    """Return the test files named like the file with the fault, and the test folder of its room."""
    room, name = mutant.file.split("/")[0], Path(mutant.file).stem
    named = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "tests").rglob(f"test_*{name}*.py"))]
    folder = [f"tests/{room}"] if (ROOT / "tests" / room).is_dir() else []
    return [paths for paths in (named, folder) if paths]


def first_failure(copy: Path, arguments: Sequence[str]) -> str | None:
    """Run pytest in the copy; return the first test that fails, or None if all pass."""
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "--ignore=tests/test_mutation.py"]
    environment = os.environ | {"PYTHONPATH": str(copy / "src"), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            [*command, *arguments], cwd=copy, env=environment, capture_output=True, text=True, timeout=LONGEST_SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"(no end within {LONGEST_SECONDS} s)"
    if done.returncode in (0, 5):  # 5 means that no test was selected
        return None
    failures = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    return failures[0] if failures else f"(pytest ended with {done.returncode}: {(done.stdout + done.stderr)[-500:]})"


def check(mutant: Mutant, tier: Sequence[str], workers: int) -> str | None:
    """Return the test that notices the fault, or None."""
    with tempfile.TemporaryDirectory(prefix="attractor-mutant-") as folder:
        copy = Path(folder) / "repository"
        copy_repository(copy)
        mutant.apply(copy / "src")
        near = tests_near(mutant)
        for paths in near:
            if (noticed := first_failure(copy, [*tier, *paths])) is not None:
                return noticed
        others = [f"--ignore={path}" for paths in near for path in paths]
        return first_failure(copy, [*tier, "-n", str(workers), "--dist", "loadfile", *others])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("chosen", nargs="*", help="numbers of faults, or parts of their files' paths; all by default")
    parser.add_argument("--all", action="store_true", help="run every test instead of the fast ones")
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    tier = [] if arguments.all else ["-m", "not slow"]
    chosen = [
        (number, mutant)
        for number, mutant in enumerate(MUTANTS, start=1)
        if not arguments.chosen
        or any(word == str(number) or (not word.isdigit() and word in mutant.file) for word in arguments.chosen)
    ]
    n_caught = 0
    print("|  # | file | fault | noticed by | s |\n|---:|---|---|---|---:|")
    for number, mutant in chosen:
        started = time.monotonic()
        noticed = check(mutant, tier, arguments.workers)
        n_caught += noticed is not None
        seconds = time.monotonic() - started
        print(f"| {number:2} | {mutant.file} | {mutant.breaks} | {noticed or 'MISSED'} | {seconds:.0f} |", flush=True)
    print(f"\n{n_caught} of {len(chosen)} faults were noticed")


if __name__ == "__main__":
    main()
