"""A study varies only the fields that its axes name, and a faulty study is refused before anything runs."""

import pytest

import five_papers
from attractor.attention.presets import preset
from attractor.errors import InputError
from attractor.runs.configuration import config_differences
from attractor.runs.quantity import PERPLEXITY
from attractor.runs.study_record import Published
from attractor.study import Axis, Scale, Study, axis, load_study, mechanisms
from attractor.study.plan import Conduct, plan_study
from attractor.train.config import Runtime
from papers.language import LAPTOP_RATES, language

STUDIES = list(five_papers.STUDIES.values())


def study(**changes) -> Study:
    given = {"title": "A", "question": "B?", "source": "no table", "rows": axis("attention", "standard", "gated")}
    scales = {"smoke": Scale(language("smoke"), seeds=(0, 1))}
    return Study(**(given | {"baseline": "standard", "scales": scales} | changes))


def test_there_is_a_study_for_every_table_of_coupled_qk():
    sources = " ".join(load_study(file).source for file in STUDIES)
    tables = {int(word) for word in sources.replace(",", " ").replace("table", " ").split() if word.isdigit()}
    assert set(range(1, 14)) <= tables


@pytest.mark.slow
@pytest.mark.parametrize("file", STUDIES, ids=lambda file: file.stem)
def test_a_smoke_run_of_every_study_needs_nothing_but_python(file, monkeypatch, tmp_path):
    monkeypatch.delenv("ATTRACTOR_DATA", raising=False)
    found = load_study(file)
    assert found.name == file.stem
    assert {"smoke", "bench"} <= set(found.scales)
    if found.pretrained is None:  # otherwise the runs that it starts from must exist
        planned = plan_study(found, Conduct(root=tmp_path), Runtime(device="cpu"))
        assert len(planned.jobs) == len({job.path for job in planned.jobs}) > 1


@pytest.mark.slow
@pytest.mark.parametrize("file", STUDIES, ids=lambda file: file.stem)
def test_rows_differ_only_in_the_fields_that_the_axes_name(file, monkeypatch, tmp_path):
    """Criterion: two cells of a seed differ only in fields of the axes, or in fields of the model that the data
    require."""
    monkeypatch.setenv("ATTRACTOR_DATA", str(tmp_path))
    sst2 = tmp_path / "glue" / "sst2"  # the only smoke scale that needs data
    sst2.mkdir(parents=True)
    for part in ("train", "dev"):
        (sst2 / f"{part}.tsv").write_text("sentence\tlabel\na fine film\t1\na dull film\t0\n")
    found = load_study(file)
    rows, columns = found.axes("smoke")
    named = rows.changed | columns.changed | {"label"}
    demanded = {"vocab_size", "causal", "n_classes", "seq_len"}
    configs = {" ".join(cell): config.to_dict() for cell, config in found.configs("smoke", 0)}
    for name in config_differences(configs):
        leaf = name.split(".")
        assert named & set(leaf) or leaf[-1] in demanded or ("model" in named and leaf[0] == "model"), name


def test_the_control_is_added_unless_it_is_present_or_excluded():
    assert study().axes("smoke")[0].labels == ("standard", "gated", "uniform")
    assert study(control=False).axes("smoke")[0].labels == ("standard", "gated")
    named = study(rows=axis("attention", "uniform", "standard"))
    assert named.axes("smoke")[0].labels == ("uniform", "standard")


def test_a_row_has_the_learning_rate_of_its_pilot_and_an_axis_overrides_it():
    scale = Scale(language("smoke"), (0,), rates=LAPTOP_RATES)
    rates = {row: config.lr for (row, _), config in study(scales={"smoke": scale}).configs("smoke", 0)}
    assert rates == {"standard": language("smoke").lr, "gated": 4e-3, "uniform": 4e-3}
    gridded = study(scales={"smoke": scale}, columns=axis("lr", 1e-3, 2e-3))
    assert {config.lr for _, config in gridded.configs("smoke", 0)} == {1e-3, 2e-3}


def test_the_learning_rate_of_a_cell_applies_to_that_cell_alone() -> None:
    columns = Axis("rate", {"low": {"lr": 1e-4}, "high": {"lr": 1e-2}})
    scale = Scale(language("smoke"), (0,), columns=columns, tuned={("gated", "high"): {"clip": 0.5, "lr": 2e-2}})
    found = {cell: (config.lr, config.clip) for cell, config in study(scales={"smoke": scale}).configs("smoke", 0)}
    assert found.pop(("gated", "high")) == (2e-2, 0.5)
    assert set(found.values()) == {(1e-4, scale.base.clip), (1e-2, scale.base.clip)}


def test_an_axis_may_hold_mechanisms_that_have_no_name():
    changed = preset("coupled-hamiltonian").replace(n_steps=5)
    rows = Axis("attention", mechanisms("standard") | {"five steps": {"attention": changed}})
    configs = dict(study(rows=rows).configs("smoke", 0))
    assert configs["five steps", ""].model.attention_config.couple.n_steps == 5


def tuned(row: str, column: str) -> dict[str, Scale]:
    return {"smoke": Scale(language("smoke"), (0,), tuned={(row, column): {"lr": 4e-3}})}


def test_seeds_may_be_a_range_and_a_file_may_define_a_dataclass(tmp_path):
    assert Scale(language("smoke"), range(2)).seeds == (0, 1)
    text = "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass A:\n    x: int\n"
    (tmp_path / "own.py").write_text(text)
    with pytest.raises(InputError, match="must define STUDY"):  # and no error from the dataclass
        load_study(tmp_path / "own.py")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rows": lambda: axis("atention", "standard")}, "unknown field of axis 'atention' at 'standard' 'atention'"),
        ({"rows": lambda: axis("attention", "standrad")}, "unknown attention 'standrad'; did you mean 'standard'"),
        ({"columns": lambda: axis("attention", "gated")}, "axes must name different fields, but 'attention' and"),
        ({"baseline": lambda: "gate"}, "unknown baseline 'gate'; did you mean 'gated'"),
        ({"budget": lambda: "token"}, "unknown budget 'token'; did you mean 'tokens'"),
        ({"kind": lambda: "count"}, "unknown kind of study 'count'; did you mean 'counts'"),
        ({"sized_by": lambda: "psi"}, "unknown sized_by 'psi'"),
        ({"scales": lambda: {}}, "scales must name at least one scale"),
        ({"scales": lambda: {"lap": Scale(language("smoke"), (0,))}}, "unknown scale 'lap'; did you mean 'laptop'"),
        ({"scales": lambda: {"smoke": Scale(language("smoke"), ())}}, "seeds must be at least one"),
        ({"scales": lambda: {"smoke": Scale(language("smoke"), (1, 1))}}, "seeds must be without repetition"),
        ({"scales": lambda: {"smoke": Scale(language("smoke"), (0.5, 1))}}, "seeds must be whole numbers from 0 up"),
        ({"scales": lambda: tuned("gatd", "")}, "unknown cell in tuned"),
        ({"scales": lambda: tuned("gated", "low")}, "unknown cell in tuned"),
        ({"claims": lambda: "C12"}, "claims must be a tuple, which needs a comma"),
        ({"quantities": lambda: PERPLEXITY}, "quantities must be a tuple, which needs a comma"),
        ({"published": lambda: (Published("gatd", "", 1.0),)}, "unknown row of a published figure 'gatd'; did you"),
        ({"resize": lambda: "d_fff"}, "unknown resize 'd_fff'; did you mean 'd_ff'"),
        ({"rows": lambda: Axis("depth", {1: {}})}, "label of axis 'depth' must be a text without outer and double"),
        ({"rows": lambda: Axis("depth", {"two  layers": {}})}, "label of axis 'depth' must be a text without outer"),
        ({"rows": lambda: {"attention": ("standard",)}}, "rows must be of class Axis, got dict: {'attention'"),
        ({"columns": lambda: ("low", "high")}, "columns must be of class Axis or NoneType, got tuple"),
        ({"scales": lambda: (Scale(language("smoke"), (0,)),)}, "scales must be of class Mapping, got tuple"),
        ({"scales": lambda: {"smoke": language("smoke")}}, "every one of scales must be of class Scale, got TrainCon"),
        ({"scales": lambda: {"smoke": Scale("smoke", (0,))}}, "base of a scale must be of class TrainConfig, got str"),
        ({"quantities": lambda: ("perplexity",)}, "every one of quantities must be of class Quantity, got str: 'perpl"),
        ({"published": lambda: (("gated", 1.0),)}, "every one of published must be of class Published, got tuple"),
        ({"pretrained": lambda: "before"}, "pretrained must be of class Study or NoneType, got str"),
        ({"rows": lambda: axis("attention")}, "axis 'attention' must be of at least one value"),
        ({"rows": lambda: axis("attention", "gated", "gated")}, "axis 'attention' must be without repetition"),
    ],
)
def test_a_faulty_study_is_refused_before_anything_runs(change, said):
    with pytest.raises(InputError, match=f"^{said}"):
        study(**{name: make() for name, make in change.items()})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("STUDY = 3", "must define STUDY, a Study, and has int"),
        ("", "must define STUDY, a Study, and has NoneType"),
        ("a = = 3", "study file '.*wrong.py' line 1 cannot be executed: SyntaxError: invalid syntax"),
        ("import os\nimport nosuchmodule", "wrong.py' line 2 cannot be .*: ModuleNotFoundError: .* 'nosuchmodule'"),
        ("def f():\n    raise OSError('two\\nlines')\nf()", "wrong.py' line 2 cannot be executed: OSError: two lines"),
        ("import sys\nsys.exit(3)", "wrong.py' line 2 cannot be executed: SystemExit: 3"),
        ("x = 1\0", "wrong.py' cannot be executed: (Syntax|Value)Error: source code string cannot contain null bytes"),
        ("from attractor.study import axis\naxis('lrr', 1)", "unknown field of axis 'lrr'"),
    ],
)
def test_a_file_without_a_study_is_refused_in_one_line(text, said, tmp_path):
    (tmp_path / "wrong.py").write_text(text)
    with pytest.raises(InputError, match=said):
        load_study(tmp_path / "wrong.py")
    with pytest.raises(InputError, match="study must be a file that exists"):
        load_study(tmp_path / "absent.py")
