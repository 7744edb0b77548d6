"""`import attractor` loads few modules and keeps its public names."""

import json
import subprocess
import sys
from importlib import import_module, reload
from pathlib import Path
from types import ModuleType

import pytest

import attractor
from attractor import analysis, attention, models
from attractor.former_names import PRESENT_NAMES

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


def test_output_from_stored_tables_loads_no_torch() -> None:
    """Criterion: help, version, lists, completion and the refusal of a wrong word or option import no torch."""
    lines = ["--help", "--version", "train --help", "train --task mqar --help-all", "data", "study run --help", "list"]
    lines += ["list mqar", "list sizes", "completion", "trian", "train --n-stepz 3"]
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
    record = ROOT / "results" / "study-glue-desk.json"
    code = f"""
import sys
from attractor.cli import main
for line in (["report", "{record}", "--out={tmp_path}", "--formats=svg"], ["claims", "--results={record.parent}"]):
    sys.argv = ["attractor", *line]
    main()
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "report.html").exists()
    assert "C10" in done.stdout


@pytest.mark.slow
def test_the_master_equation_loads_scipy_only_when_it_is_named() -> None:
    """The name is public, and models that use fixed points need none of its imports."""
    before, after = modules_after_each(
        "import attractor; attractor.equilibrium.fixed_point.Solver()",
        "attractor.equilibrium.master_equation.random_generator(3, seed=0)",
    )
    assert "scipy" not in before
    assert "scipy" in after
    with pytest.raises(AttributeError, match="has no attribute 'equation'"):
        _ = attractor.equilibrium.equation


@pytest.mark.parametrize(
    "room", ["claims", "equilibrium", "report", "runs", "solving", "verdict", "study", "tasks", "train"]
)
def test_a_room_is_imported_when_it_is_first_named(room: str) -> None:
    found = getattr(attractor, room)
    assert isinstance(found, ModuleType)
    assert found.__name__ == f"attractor.{room}"


@pytest.mark.parametrize("room", sorted({*attractor._ROOMS} - {"report", "train"}))
def test_a_room_shows_its_public_names_and_no_helper(room: str) -> None:
    """Criterion: `dir` gives every name of `__all__` and no import of the file, and every name is usable."""
    module = getattr(attractor, room)
    shown = set(dir(module))
    assert shown >= set(module.__all__)
    assert not shown & {"Any", "ModuleType", "KINDS", "import_module", "annotations", "__getattr__"}
    assert room == "hf" or all(hasattr(module, name) for name in shown)


@pytest.mark.filterwarnings("ignore:attractor.evidence became:DeprecationWarning")
def test_names_of_the_former_room_of_evidence_still_import_and_warn() -> None:
    with pytest.warns(DeprecationWarning, match="attractor.evidence became attractor.runs"):
        reload(attractor.evidence)
    assert attractor.evidence.mean_interval is attractor.verdict.mean_interval
    assert attractor.evidence.RunFolder is attractor.runs.RunFolder


@pytest.mark.filterwarnings("ignore:attractor.evidence became:DeprecationWarning")
@pytest.mark.parametrize("name", sorted(PRESENT_NAMES))
def test_a_former_name_of_a_module_imports_the_present_one_and_warns(name: str) -> None:
    with pytest.warns(DeprecationWarning, match=rf"attractor\.{name} became attractor\.{PRESENT_NAMES[name]}; "):
        module = import_module(f"attractor.{name}")
    assert module is import_module(f"attractor.{PRESENT_NAMES[name]}")


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'attractor' has no attribute 'training'"):
        _ = attractor.training


def test_the_public_names_are_these() -> None:
    """These lists are promises, so a change of one belongs in CHANGELOG.md."""
    rooms = "analysis attention claims control equilibrium hf models report runs scoring solving study tasks train"
    functions = "attention_maps capture compare load parameter_groups tap"
    assert set(attractor.__all__) == {*rooms.split(), *functions.split(), "RunResult", "StudyResult"}
    assert attention.__all__ == ["PRESETS", "Attention", "AttentionConfig", "Cache", "Rope", "Rotation", "build"]
    assert models.__all__ == [
        "FAMILIES",
        "SIZES",
        "AKOrN",
        "AKOrNConfig",
        "FastSlow",
        "FastSlowConfig",
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
        "Lumpability",
        "LyapunovEstimate",
        "NormEstimate",
        "OscillatoryShare",
        "SpectralProfile",
        "antisymmetric_norm",
        "antisymmetric_part",
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
        "largest_imaginary_part",
        "leading_eigenvalues",
        "lumpability_defect",
        "lumpability_profile",
        "lyapunov",
        "lyapunov_spectrum",
        "mean_distance",
        "normalised_entropy",
        "oscillatory_share",
        "quadratic_form",
        "sink_mass",
        "spectral_profile",
        "spectral_radius",
        "sphere_tangent",
        "symmetric_extremes",
        "symmetric_part",
    ]
    for module in (attractor, attention, models, analysis):
        assert all(hasattr(module, name) for name in module.__all__)


def test_the_version_is_a_version() -> None:
    assert attractor.__version__[0].isdigit()
