"""The pages are true: trees name existing files, code runs, commands work, and recipes can be followed literally."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from attractor.report.judged_study import JudgedStudy
from attractor.runs.study_record import read_record
from attractor.verdict.words import signed
from five_papers import PAPERS, RECORDS
from in_process import command_in_process

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("papers/*/page.md"))]
READ_FIRST = (ROOT / "README.md", ROOT / "docs" / "index.md")


def page_id(page: Path) -> str:
    return page.relative_to(ROOT).with_suffix("").as_posix()


TRACKED = [
    path
    for pattern in ("*", "docs/**/*", "src/**/*", "tests/**/*", ".ci/*", "results/**/*", "papers/**/*")
    for path in ROOT.glob(pattern)
    if path.is_file()
    and path.suffix in {".md", ".py", ".toml", ".txt", ".json", ".j2", ""}
    and path.name != ".coverage"
]


def blocks(page: Path, *languages: str) -> list[tuple[str, str]]:
    """Return the fenced blocks of a page in order, as (language, content)."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return [(language, content) for language, content in found if language in languages]


def run(command: str, folder: Path, source: Path = ROOT / "src") -> str:
    """Run a command as a reader types it, with this environment's programs; return its output, or fail with it."""
    programs = str(Path(sys.executable).parent) + os.pathsep + os.environ["PATH"]
    environment = os.environ | {"PATH": programs, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, shell=True, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"`{command}` failed:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def tree() -> list[tuple[int, str, str]]:
    """Parse the layout of the repository in CONTRIBUTING.md into indentation, path and phrase. A line may name several
    paths, with one space between them and more before the phrase."""
    (text,) = [content for _, content in blocks(ROOT / "CONTRIBUTING.md", "") if "src/attractor/" in content]
    lines = [re.match(r"( *)(\S+(?: \S+)*)(?: {2,}(.*))?$", line) for line in text.splitlines()]
    return [(len(line[1]), name, line[3] or "") for line in lines if line for name in line[2].split()]


def test_every_path_in_the_tree_exists() -> None:
    parents: dict[int, Path] = {}
    for indent, name, phrase in tree():
        folder = next((parents[i] for i in sorted(parents, reverse=True) if i < indent), ROOT)
        parents = {i: path for i, path in parents.items() if i < indent} | {indent: folder / name}
        assert (folder / name).exists(), f"the tree names {name}, which is not in {folder.relative_to(ROOT)}"
        for file in re.findall(r"[\w]+\.py", phrase):
            assert (folder / name / file).exists() or (folder / file).exists(), f"{file} is not in {name}"


def test_every_room_is_in_the_tree() -> None:
    named = {name.rstrip("/") for _, name, _ in tree()}
    inside = [path for path in (ROOT / "src" / "attractor").iterdir() if path.is_dir() or path.suffix == ".py"]
    rooms = {path.stem if path.is_file() else path.name for path in inside}
    rooms -= {"__init__", "__pycache__"}
    missing = {room for room in rooms if room not in named and f"{room}.py" not in named}
    assert not missing, f"add to the tree in CONTRIBUTING.md: {sorted(missing)}"


def test_the_readme_is_read_in_a_minute_and_names_the_papers() -> None:
    """Criterion: it has at most 110 lines, and names the five papers as the claims do."""
    readme = (ROOT / "README.md").read_text()
    assert len(readme.splitlines()) <= 110
    citation = (ROOT / "CITATION.cff").read_text()
    for paper in (paper for folder, paper in PAPERS.items() if folder.name != "contested"):
        assert paper.title in readme
        assert paper.title in citation
        assert paper.year is None or str(paper.year) in readme
        assert paper.arxiv is None or f"arXiv:{paper.arxiv}" in readme
        if paper.arxiv is not None:
            assert f"arXiv:{paper.arxiv}" in citation


def test_the_readmes_verdict_is_shown_on_its_page() -> None:
    (verdict,) = [content for _, content in blocks(ROOT / "README.md", "") if "outcome" in content]
    assert verdict.partition("\n")[2] in (ROOT / "docs" / "is-it-real.md").read_text()


def test_the_glossary_names_every_claim_by_its_paper() -> None:
    glossary = (ROOT / "docs" / "glossary.md").read_text()
    for paper in PAPERS.values():
        first, last = paper.claims[0].id, paper.claims[-1].id
        assert f"| {first} to {last} |" in glossary
        assert paper.title in glossary


def test_make_has_the_targets_that_the_readme_names() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"make (\w+)", (ROOT / "README.md").read_text()):
        assert target in ("compare", "test") or target in makefile
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"the Makefile has no target {target}"


def test_the_readmes_table_is_the_stored_result() -> None:
    """Criterion: every cell of the numbers under the figure comes from results/."""
    readme = (ROOT / "README.md").read_text()
    judged = JudgedStudy(read_record(ROOT / "results" / "compare-laptop.json"))
    perplexity = judged.headlines[0]
    cells = [line.removeprefix("| ").split(" | ") for line in readme.splitlines() if " | " in line]
    lines = {first: [first, *others] for first, *others in cells}
    for row in judged.design.rows:
        assert row in lines, f"the README's table lacks {row}"
        _, seeds, _, metric, difference, *_ = lines[row]
        spread = judged.spread(row, "", perplexity)
        assert int(seeds) == spread.n
        mean, sd = (float(number.strip("*\\")) for number in metric.split(" ± "))
        assert (mean, sd) == (pytest.approx(spread.mean, rel=1e-3), pytest.approx(spread.sd, abs=6e-3))
        if row != judged.design.baseline:
            interval = judged.differences[row, "", perplexity].verdict.measured
            assert interval is not None
            assert difference == signed(interval)


def test_the_readmes_figure_is_drawn_from_the_stored_result() -> None:
    """Criterion: it names the checksum of its record; `PYTHONPATH=docs/_ext:. python docs/figures.py` draws it anew."""
    record = json.loads((RECORDS["study-coupling-ablation-desk"]).read_text())
    assert "docs/ablation.svg" in (ROOT / "README.md").read_text()
    assert record["checksum"] in (ROOT / "docs" / "ablation.svg").read_text()


@pytest.mark.parametrize(
    "page", [page if page in READ_FIRST else pytest.param(page, marks=pytest.mark.slow) for page in PAGES], ids=page_id
)
def test_code_and_commands_of_a_page_run_in_order(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python blocks share one namespace, and `attractor` commands really run, in a folder of their own. Each line of
    output shown below a command begins like a line of the real output."""
    monkeypatch.chdir(tmp_path)
    attractor = command_in_process(monkeypatch, capsys)
    names: dict[str, object] = {}
    printed = ""
    for language, content in blocks(page, "python", "sh", "output"):
        if language == "python":
            exec(compile(content, str(page), "exec"), names)
            continue
        if language == "output":
            begins = {first_word(line) for line in printed.splitlines() if line.split()} | {"..."}
            strangers = [line for line in content.splitlines() if line.split() and first_word(line) not in begins]
            assert not strangers, f"not printed by the commands above: {strangers}\n{printed}"
            continue
        printed = ""
        for command in content.splitlines():
            if command.startswith("attractor "):
                code, said, errors = attractor(*shlex.split(command, comments=True)[1:])
                printed += said
                assert code == 0, f"`{command}` ended with {code}:\n{said[-3000:]}\n{errors[-3000:]}"


@pytest.mark.slow
def test_the_readmes_own_mechanism_gets_its_verdict(tmp_path: Path) -> None:
    """Criterion: its commands run, given a text and a short training, and end with the verdict and the page."""
    readme = (ROOT / "README.md").read_text()
    (block,) = re.findall(r"^~~~sh\n(attractor init .*?)^~~~$", readme, re.MULTILINE | re.DOTALL)
    (tmp_path / "notes.txt").write_text("".join(f"{n} squared is {n * n}\n" for n in range(3000)))
    short = block.replace(" notes.txt", " notes.txt --n-steps=40")
    *_, verdict, page = [line for line in run(short, tmp_path).splitlines() if line.startswith(("Mine: ", "runs/"))]
    assert re.match(r"Mine: (better|worse|undecided)", verdict)
    assert (tmp_path / page).is_file()


def first_word(line: str) -> str:
    """Return the first word of a line; the rule of a table is shortened, since its length depends on the digits of a
    speed."""
    return line.split()[0].rstrip("─")


@pytest.mark.parametrize("page", [*PAGES, *(ROOT.glob("[AC]*.md"))], ids=page_id)
def test_every_link_has_a_target(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


SECTIONS = re.split(r"^## ", (ROOT / "CONTRIBUTING.md").read_text(), flags=re.MULTILINE)[1:]
RECIPES = [section for section in SECTIONS if section.startswith("Add ")]
STEP = re.compile(
    r"^(?:Create `(?P<new>[^`]+)`[^\n]*:"
    r"|In `(?P<below_file>[^`]+)`, below `(?P<line>[^`]+)`, add:"
    r"|In `(?P<in_file>[^`]+)`, replace `(?P<old>[^`]+)` by:)\n\n```(?:python)?\n(?P<code>.*?)^```$"
    r"|^```sh\n(?P<commands>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


def misshapen_tables(text: str) -> list[str]:
    """Return the lines of a page's text that have cells of a table but are none: reflowed, or of another width."""
    blocks = re.sub(r"^( *)```.*?^\1```", "", text, flags=re.MULTILINE | re.DOTALL)
    plain = re.sub(r"\\\||`[^`\n]*`", "", blocks)  # pipes that are text
    wrong = []
    for paragraph in re.split(r"\n\s*\n", plain):
        lines = [line.strip() for line in paragraph.splitlines()]
        if not re.search(r"\|\s*:?-{3,}", paragraph):
            continue
        start = next(n for n, line in enumerate(lines) if line.startswith("|") or re.search(r"\|\s*:?-{3,}", line))
        counts = {line.count("|") for line in lines[start:]}
        of_dashes = any(re.fullmatch(r"\|?(\s*:?-{3,}:?\s*\|)+(\s*:?-+:?\s*)?", line) for line in lines)
        if len(counts) > 1 or not of_dashes:
            wrong.append(lines[start])
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_table_is_a_table(page: Path) -> None:
    assert misshapen_tables(page.read_text(encoding="utf-8")) == []


def test_a_table_that_was_reflowed_is_found() -> None:
    table = "| a | b |\n|---|---|\n| 1 | `x|y` |\n"
    assert misshapen_tables(f"text\n\n{table}") == []
    assert misshapen_tables(f"text\n\n{table.replace(chr(10), ' ')}")
    assert misshapen_tables(f"{table}| 2 |\n")


def test_there_are_three_recipes() -> None:
    assert [recipe.splitlines()[0] for recipe in RECIPES] == ["Add a mechanism", "Add a measure", "Add a task"]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.splitlines()[0].split()[-1])
def test_a_recipe_followed_to_the_letter_works(recipe: str, tmp_path: Path) -> None:
    """The test creates the recipe's files, adds its lines and runs its commands in a copy of the repository."""
    copy = tmp_path / "repository"
    for name in ("src", "tests"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    steps = list(STEP.finditer(recipe))
    assert recipe.count("```") == 2 * len(steps), "a block of this recipe is introduced in words the test cannot follow"
    for step in steps:
        if step["new"]:
            assert not (copy / step["new"]).exists()
            (copy / step["new"]).write_text(step["code"])
        elif step["below_file"]:
            edit(copy / step["below_file"], step["line"] + "\n", step["line"] + "\n" + step["code"])
        elif step["in_file"]:
            edit(copy / step["in_file"], step["old"] + "\n", step["code"])
        else:
            for command in step["commands"].splitlines():
                run(command, copy, copy / "src")


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert text.count(old) == 1, f"{file.name} has {text.count(old)} lines {old!r}; the recipe needs exactly one"
    file.write_text(text.replace(old, new))


def test_no_file_names_a_registry() -> None:
    pattern = re.compile(r"https?://[^\s\"']*(pypi|/simple|registry|debian)", re.IGNORECASE)
    found = [str(path.relative_to(ROOT)) for path in TRACKED if pattern.search(path.read_text(errors="ignore"))]
    assert not found


def test_constraints_contain_only_versions() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.\[\]-]+==[\w.]+( ;.*)?", line) for line in lines)
    assert any(line.startswith("torch==2.13.0") for line in lines)
