"""`import attractor` loads few modules and keeps its public names. No command imports a file of a folder of data."""

import json
import shutil
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

import pytest

import attractor
from attractor import analysis, attention, models
from in_process import SHORT, TINY
from stress import kills

ROOT = Path(__file__).parents[1]
HEAVY = ("rich", "tyro", "scipy", "matplotlib", "jinja2", "transformers", "datasets", "pandas")
OF_THE_COMPILER = ("sympy", "triton")  # which torch's compiler loads, and some operations on the meta device


LOADED = "print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"


def modules_after_each(*statements: str) -> list[set[str]]:
    """Return the top-level names of all modules that a fresh interpreter has loaded after each of the statements."""
    code = "\n".join(["import json, sys", *(f"{statement}\n{LOADED}" for statement in statements)])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    return [set(json.loads(line)) for line in done.stdout.splitlines()]


def modules_after(statement: str) -> set[str]:
    return modules_after_each(statement)[0]


def test_the_package_alone_shows_exactly_its_public_names() -> None:
    assert set(dir(attractor)) == {*attractor.__all__, "__version__"}
    assert attractor.__version__[0].isdigit()


def test_each_use_of_the_package_loads_only_what_it_needs() -> None:
    """Criterion: `import attractor` loads no torch. A layer, a model that generates, and the training loop load neither
    torch's compiler, nor the console, nor reports, nor statistics, nor Hugging Face. The command line loads reports
    only when it reports, and the compiler only when it takes a step.

    One interpreter does all of it in this order, so that modules loaded earlier count against each later use."""
    size = "vocab_size=9, d_model=16, n_heads=2, n_layers=1, d_ff=16, max_seq_len=8"
    package, *uses, command = modules_after_each(
        "import attractor; dir(attractor)",
        "attractor.attention.build('gated', d_model=16, n_heads=2)",
        f"attractor.models.TransformerConfig({size}).build(0).generate([[1]], max_new_tokens=2)",
        f"attractor.models.FastSlowConfig({size.replace('n_layers=1, ', '')}).build(0)",
        "import attractor.train.loop",
        "import attractor.cli.runs, attractor.train.plan",
    )
    assert package.isdisjoint({"torch", "numpy", *HEAVY})
    for loaded in uses:
        assert {"torch", "attractor"} <= loaded
        assert loaded.isdisjoint(HEAVY + OF_THE_COMPILER), loaded & {*HEAVY, *OF_THE_COMPILER}
    assert {"tyro", "rich", "torch"} <= command
    assert command.isdisjoint({"scipy", "matplotlib", "jinja2", "transformers", "datasets", "pandas", *OF_THE_COMPILER})


def test_public_names_keep_their_objects_when_all_rooms_are_loaded() -> None:
    """Criterion: no module replaces a function of the same name."""
    for name in attractor.__all__:
        if name != "hf":
            getattr(attractor, name)
    assert callable(attractor.tap)
    assert callable(attractor.capture)
    assert callable(attractor.attention_maps)


def test_help_and_names_are_read_without_torch() -> None:
    """Criterion: help, version, lists, completion and the refusal of a wrong word or option import no torch."""
    lines = ["--help", "--version", "train --help", "train --task mqar --help-all", "data", "study run --help", "list"]
    lines += ["list mqar", "list recipes", "help --all", "completion", "trian", "train --n-stepz 3"]
    code = f"""
import sys
from attractor.cli import main
for line in {lines}:
    sys.argv = ["attractor", *line.split()]
    try:
        main()
    except SystemExit:
        pass
    loaded = {{"torch", "numpy", "scipy"}} & set(sys.modules)
    assert not loaded, (line, loaded)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "unknown command 'trian'" in done.stderr
    assert "unknown option --n-stepz; did you mean --n-steps?" in done.stderr


def test_runs_are_watched_without_torch_and_figures_are_drawn_only_on_request() -> None:
    """Criterion: the server needs only the modules that load within a second."""
    loaded = modules_after("import attractor.report.live_server")
    assert "jinja2" in loaded
    assert loaded.isdisjoint({"torch", "matplotlib", "scipy", "pandas", "transformers"})


def test_reports_and_claims_are_written_without_torch(tmp_path: Path) -> None:
    """Criterion: a report and the ledger need the stored numbers alone."""
    record = ROOT / "papers" / "coupled_qk" / "results" / "study-glue-desk.json"
    code = f"""
import sys
from attractor.cli import main
for line in (["report", "{record}", "--out={tmp_path}", "--formats=svg"], ["claims", "{record.parents[1]}"]):
    sys.argv = ["attractor", *line]
    main()
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "report.html").exists()
    assert "C10" in done.stdout


def test_verdicts_and_lists_work_where_torch_is_not_installed_and_what_needs_it_names_its_extra() -> None:
    """Criterion: without the packages of the extra `train`, a line of the command line that needs them ends in one
    line and exit code 2, and so does a name of the package in one error, which is an ImportError, too."""
    code = """
import sys

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "jaxtyping", "safetensors"):
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)

sys.meta_path.insert(0, NotInstalled())
import attractor
from attractor.cli import main

differences = attractor.verdict.seed_differences({0: 3.1, 1: 3.3, 2: 3.2}, {0: 3.4, 1: 3.5, 2: 3.6})
print(attractor.verdict.mean_interval(differences).excludes_zero)
print(attractor.verdict.paired_t_test(differences).p < 0.05)
for name in ("attention", "models", "study", "capture", "load"):
    try:
        getattr(attractor, name)
    except ImportError as error:
        print(error)
for line in ("--help", "list", "train --help", "train", "study list", "data verify x", "train --n-stepz 3"):
    sys.argv = ["attractor", *line.split()]
    try:
        main()
        code = 0
    except SystemExit as end:
        code = end.code
    print("END", line, code)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    rule = "package 'torch' must be installed for {}; run in a clone of attractor: pip install -e '.[{}]'"
    parts = {"attention": "torch", "models": "torch", "study": "train", "capture": "torch", "load": "train"}
    assert lines[:2] == ["True", "True"]
    assert lines[2:7] == [rule.format(f"attractor.{name}", extra) for name, extra in parts.items()]
    codes = {"--help": 0, "list": 0, "train --help": 0, "train": 2, "study list": 2, "data verify x": 2}
    ends = [f"END {line} {code}" for line, code in {**codes, "train --n-stepz 3": 2}.items()]
    assert [line for line in lines if line.startswith("END")] == ends
    refused = ["error: " + rule.format(f"'attractor {command}'", "train") for command in ("train", "study list")]
    assert done.stderr.splitlines()[:2] == refused
    corpus, option = done.stderr.splitlines()[2:]
    assert "prepared corpus must be a folder" in corpus
    assert "did you mean --n-steps?" in option


@pytest.mark.slow
def test_the_master_equation_loads_scipy_only_when_it_is_solved() -> None:
    """The names are public, and models that use fixed points need none of its imports."""
    before, after = modules_after_each(
        "import attractor; attractor.equilibrium.fixed_point.Solver()",
        "chain = attractor.equilibrium.master_equation; chain.stationary(chain.random_generator(3, seed=0))",
    )
    assert "scipy" not in before
    assert "scipy" in after
    with pytest.raises(AttributeError, match="has no attribute 'equation'"):
        _ = attractor.equilibrium.equation


@pytest.mark.parametrize("room", sorted({*attractor._ROOMS} - {"report", "train"}))
def test_a_room_shows_its_public_names_and_no_helper(room: str) -> None:
    """Criterion: `dir` gives every name of `__all__` and no import of the file, and every name is usable."""
    module = getattr(attractor, room)
    assert module.__name__ == f"attractor.{room}"
    shown = set(dir(module))
    assert shown >= set(module.__all__)
    assert not shown & {"Any", "ModuleType", "KINDS", "import_module", "annotations", "__getattr__"}
    assert room == "hf" or all(hasattr(module, name) for name in shown)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'attractor' has no attribute 'training'"):
        _ = attractor.training


def test_the_public_names_are_these() -> None:
    """These lists are promises, so a change of one belongs in CHANGELOG.md."""
    rooms = "analysis attention claims control equilibrium evaluate hf models report runs study tasks train verdict"
    functions = "attention_maps capture compare judge load parameter_groups tap train_model"
    results = {"PRESETS", "RunResult", "RunsResult", "StudyResult"}
    assert set(attractor.__all__) == {*rooms.split(), *functions.split(), *results}
    assert attention.__all__ == [
        *("PRESETS", "Attention", "AttentionConfig", "Cache", "Rope", "Rotation", "Whole"),
        *("build", "defined_by", "mechanism"),
    ]
    assert models.__all__ == [
        "FAMILIES",
        "SIZES",
        "AKOrN",
        "AKOrNConfig",
        "FastSlow",
        "FastSlowConfig",
        "ImportedConfig",
        "ImportedTransformer",
        "ItrSA",
        "ItrSAConfig",
        "PreNormItrSA",
        "PreNormItrSAConfig",
        "Recursive",
        "RecursiveConfig",
        "Transformer",
        "TransformerConfig",
    ]
    assert analysis.__all__ == [
        "Effort",
        "Eigenvalues",
        "FiniteTime",
        "Jacobian",
        "LyapunovEstimate",
        "NormEstimate",
        "SpectralProfile",
        "attention_entropy",
        "decay_length",
        "distance_holding",
        "effective_memory",
        "effective_rank",
        "eigenvalues",
        "error_between_orbits",
        "estimate_eigenvalues",
        "estimate_jacobian_norm",
        "finite_time",
        "finite_time_exponents",
        "jacobian",
        "jacobian_norm",
        "leading_eigenvalues",
        "lyapunov",
        "lyapunov_spectrum",
        "mean_distance",
        "normalised_entropy",
        "sink_mass",
        "spectral_profile",
        "spectral_radius",
        "sphere_tangent",
    ]
    for module in (attractor, attention, models, analysis):
        assert all(hasattr(module, name) for name in module.__all__)


RUN = (*TINY, *SHORT, "--corpus=squares.txt")
STUDY = ("study", "run", "killed.py", "--device=cpu", "--threads=1", "--workers=2")
BENCH = ("--d-model=16", "--n-heads=2", "--n-layers=1", "--vocab-size=40", "--tokens=32", "--rounds=1", "--decode=0")
SCRIPT = """
import os
from attractor.train.process import fresh_processes

if __name__ == "__main__":
    before = dict(os.environ)
    process = fresh_processes().Process(target=print)
    assert dict(os.environ) == before
    process.start()
    process.join()
    assert process.exitcode == 0
"""
COMMANDS = {
    "a script": (),
    "plan": ("plan", *RUN),
    "compare": ("compare", "standard", "gated", "--seeds=0", *RUN),
    "runs": (*STUDY, "--launcher=local"),
    "stacks": (*STUDY, "--launcher=stacked"),
    "ranks": (*STUDY, "--launcher=torchrun"),
    "ray": (*STUDY, "--launcher=ray"),
    "bench": ("bench", "standard", *BENCH, "--device=cpu", "--no-peers", "--out=bench.json"),
    "compiler": ("train", *RUN, "--compile", "--out=run"),
}
NAMES = ("random", "types", "profile", "queue", "statistics", "string", "signal", "struct", "numpy", "torch")
MISSING = {
    "ray": find_spec("ray") is None and "needs the extra 'ray': pip install -e '.[ray]'",
    "compiler": shutil.which("g++") is None and "needs a C++ compiler",
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if words else []) for name, words in COMMANDS.items()]
)
def test_no_file_of_the_current_folder_is_imported(name: str, tmp_path: Path) -> None:
    """Criterion: in a folder with files that are named like modules, which fail when imported, every command runs to
    its end and imports none of them, while `python -c` does. A study still imports a file beside its own."""
    if reason := MISSING.get(name):
        pytest.skip(reason)
    folder = tmp_path / "data"
    kills.prepare(folder, n_steps=2)
    (folder / "beside.py").touch()
    (folder / "killed.py").write_text("import beside\n" + (folder / "killed.py").read_text())
    for module in NAMES:
        (folder / f"{module}.py").write_text("open(__file__ + '.imported', 'w').close()\nraise SystemError")
    (tmp_path / "script.py").write_text(SCRIPT)
    attractor = str(Path(sysconfig.get_path("scripts")) / "attractor")
    command = [attractor, *COMMANDS[name]] if COMMANDS[name] else [sys.executable, str(tmp_path / "script.py")]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert list(folder.glob("*.imported")) == []
    subprocess.run([sys.executable, "-c", "import torch"], cwd=folder, capture_output=True)
    assert [path.name for path in folder.glob("*.imported")] == ["torch.py.imported"]
