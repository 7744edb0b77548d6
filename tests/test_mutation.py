"""The mutation check (`make mutants`) plants faults of every pattern, and draws them by its seed."""

import ast
from collections.abc import Sequence

import pytest

from mutation import ROOMS, drawn, faults_in, source_files

CASES = (  # a statement, and what its faults make of it
    ("a < b", ["a <= b"]),
    ("x = a is b", ["x = a is not b"]),
    ("y = a + b", ["y = a - b"]),
    ("y = a / b", ["y = a * b"]),
    ("a or b", ["a and b"]),
    ("y = x.detach().sum()", ["y = x.sum()"]),
    ("f(a, mask=b, dim=c)", ["f(a, dim=c)", "f(a, mask=b)"]),
    ("g(causal)", ["g(not causal)"]),
    ("y = self.causal", ["y = not self.causal"]),
    ("y = min(a, b)", ["y = max(a, b)"]),
    ("y = x.amax()", ["y = x.amin()"]),
    ("y = x[3]", ["y = x[4]"]),
    ("x = f(x)", ["pass"]),
    ("x += y", ["pass"]),
    ("x: Literal[1]", []),
    ("raise ValueError(f'{1 + 2}', 3)", []),
)


@pytest.mark.parametrize(("statement", "faulty"), CASES)
def test_each_pattern_changes_what_it_says(statement: str, faulty: Sequence[str]) -> None:
    """Criterion: the file with a fault is the file with one statement changed, in a line after words of several
    bytes."""
    around = "name = 'é × ≤'; {}\nafter = 'é'"  # noqa: RUF001
    found = [ast.dump(ast.parse(fault.source)) for fault in faults_in("file.py", around.format(statement))]
    assert found == [ast.dump(ast.parse(around.format(text))) for text in faulty]


def test_a_seed_draws_the_same_faults_of_every_pattern() -> None:
    files = source_files(ROOMS)
    one, again, other = (drawn(files, 27, seed) for seed in (0, 0, 1))
    assert one == again != other
    assert len({fault.pattern for fault in one}) == 9
    for fault in one:
        compile(fault.source, fault.path, "exec")
