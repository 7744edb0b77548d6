"""The model card has valid metadata, and its text states only what the run folder holds."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard
from hypothesis import given, settings
from hypothesis import strategies as st

from attractor.hf.card import Exported, escaped, model_card, plain
from attractor.runs.run_folder import RunFolder

TEXT = Exported("a-model", step=10, has_tokenizer=True)


def head(card: str) -> dict[str, Any]:
    _, block, _ = card.split("---\n", 2)
    return yaml.safe_load(block)


def section(card: str, title: str) -> str:
    return card.split(f"\n## {title}\n")[1].split("\n## ")[0]


def rows(text: str) -> dict[str, str]:
    return dict(re.findall(r"^\| (.+?) \| (.+) \|$", text, re.MULTILINE))


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    config = {"label": "standard", "seed": 0, "model": {"attention": "standard", "d_model": 64}, "lr": 2e-3}
    run = RunFolder.create(tmp_path / "run", config)
    for step in range(1, 11):
        run.append({"step": step, "tokens": 100_000 * step, "valid_loss": 1.5 + 1 / step})
    metric = {"name": "perplexity", "value": 4.95, "better": "lower"}
    run.write_summary({"metric": metric, "n_parameters": 1_234_567, "steps": 10, "tokens": 1_000_000})
    return run


def test_the_card_says_what_the_run_holds(run: RunFolder) -> None:
    card = model_card(run, TEXT)
    assert head(card)["pipeline_tag"] == "text-generation"
    assert "standard" in head(card)["tags"]
    assert "of 1.23M parameters with standard attention" in card
    known = rows(section(card, "Settings"))
    assert (known["parameters"], known["lr"], known["tokens"]) == ("1,234,567", "0.002", "1,000,000")
    assert known[r"versions.torch"] == run.environment["versions"]["torch"]
    assert rows(section(card, "Results"))[r"valid\_loss"] == "1.6"
    assert "One seed" in section(card, "Results")


def test_results_are_those_of_the_exported_weights(run: RunFolder) -> None:
    (line,) = [line for line in run.metrics() if line["step"] == 4 and "valid_loss" in line]
    card = model_card(run, Exported("a-model", step=4))
    assert rows(section(card, "Results"))[r"valid\_loss"] == f"{line['valid_loss']:.4g}"
    assert rows(section(card, "Settings"))["exported weights are of step"] == "4"


def test_unknown_values_are_left_out(tmp_path: Path) -> None:
    """Criterion: the card of a run that stopped at once has no empty field and no section without content."""
    run = RunFolder.create(tmp_path / "run", {"model": {"attention": {"couple": {}}, "n_kv_heads": None}})
    (run.path / "environment.json").unlink()
    card = model_card(run, Exported("bare", self_contained=False))
    assert "## Results\n" not in card
    assert head(card) == {"library_name": "transformers", "tags": ["attractor", "attention"]}
    assert not re.search(r"\b(None|null|nan|Unknown)\b", card)
    assert "n\\_kv\\_heads" not in card
    assert "not finished" in section(card, "Limits")
    assert "Nothing was measured" in section(card, "Limits")
    assert "trust_remote_code" not in card


def test_a_model_from_elsewhere_was_not_trained_here(tmp_path: Path) -> None:
    config = {"model": {"attention": "gqa"}, "task": {"corpus": "imported:some-llama"}, "lr": 1e-3, "seed": 0}
    run = RunFolder.create(tmp_path / "run", config | {"seq_len": 64})
    run.write_summary({"steps": 0, "tokens": 0, "n_parameters": 9, "imported": {"from": "some-llama"}})
    card = model_card(run, Exported("brought", step=0, has_tokenizer=True))
    assert rows(section(card, "Settings"))["from"] == "some-llama"
    assert "0.001" not in card
    assert "trained on" not in card


def test_the_card_contains_no_path_of_the_machine(tmp_path: Path) -> None:
    corpus = tmp_path / "private" / "letters"
    config = {"task": {"kind": "text", "corpus": str(corpus)}, "start": str(tmp_path / "base" / "run-7"), "seed": 0}
    run = RunFolder.create(tmp_path / "run", config)
    run.write_summary({"data": f"{corpus}: 3 documents", "steps": 5})
    card = model_card(run, TEXT)
    assert "letters: 3 documents" in card
    assert "run-7" in card
    assert str(tmp_path) not in card
    assert "private" not in card


HOSTILE = st.text(max_size=40) | st.sampled_from(
    [
        "</script><img src=x>",
        "a\n---\nlicense: mit",
        "x | y",
        "`code` **bold** [link](http://example)",
        '"quoted": {a: 1}',
        "# heading",
        "\x1b[31m\x7f\u2028é",
        "}}\n\\end",
    ]
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    run = RunFolder.create(tmp_path_factory.mktemp("runs") / "run", {"seed": 0})
    run.append({"step": 5, "tokens": 9, "valid_loss": 1.0, "perplexity": 2.7})
    return run


@settings(max_examples=60, deadline=None)
@given(name=HOSTILE, label=HOSTILE, corpus=HOSTILE)
def test_names_from_users_cannot_change_the_structure_of_the_card(
    name: str, label: str, corpus: str, finished: RunFolder
) -> None:
    """Criterion: for any names, the metadata stay YAML with the same keys, sections stay the same, and code stays one
    line."""
    config = {"label": label, "seed": 0, "model": {"attention": label}, "task": {"kind": "text", "corpus": corpus}}
    run = RunFolder(finished.path, config)
    summary = {"data": f"{corpus}: 3 documents", "steps": 5, "metric": {"name": "perplexity", "value": 2.7}}
    (run.path / "summary.json").write_text(json.dumps(summary))
    card = model_card(run, Exported(name, step=5, has_tokenizer=True))
    metadata = head(card)
    assert metadata.keys() <= {"library_name", "pipeline_tag", "tags", "model-index"}
    if "model-index" in metadata:
        (result,) = metadata["model-index"][0]["results"]
        assert metadata["model-index"][0]["name"] == plain(name)
        assert result["metrics"] == [{"type": "perplexity", "value": 2.7}]
    body = card.split("---\n", 2)[2]
    titles = re.findall(r"^## (.+)$", body, re.MULTILINE)
    assert titles == ["Results", "Settings", "Limits", "How to load"]
    assert len(re.findall(r"^# ", body, re.MULTILINE)) == 1
    prose = re.sub(r"^```.*?^```$", "", body, flags=re.MULTILINE | re.DOTALL)
    assert not re.search(r"(?<!\\)[<`]", prose)
    (snippet,) = re.findall(r"^folder = (.*)  # ", body, re.MULTILINE)
    assert json.loads(snippet) == plain(name)


@given(st.text())
def test_escaped_text_is_one_line_without_active_markup(text: str) -> None:
    shown = escaped(text)
    assert "\n" not in shown
    assert not re.search(r"(?<!\\)(?:\\\\)*[`*_<|\[]", shown)


def test_the_hub_accepts_the_metadata(run: RunFolder) -> None:
    assert ModelCard(model_card(run, TEXT)).data.library_name == "transformers"
