"""Exports are complete or absent, and give equal bits where attractor is not installed."""

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from foreign import theirs
from rich.console import Console
from safetensors.torch import load_file
from torch import Tensor

from attractor.attention import PRESETS, mechanism
from attractor.cli.hugging_face import ExportArguments, export
from attractor.corpus.tokenizer import ByteTokenizer
from attractor.errors import InputError
from attractor.hf import export as exporting
from attractor.hf.export import as_hugging_face, export_model, export_replaced
from attractor.hf.model import AttractorForSequenceClassification
from attractor.hf.replace import replace_attention
from attractor.models import FastSlowConfig, ImportedConfig, ItrSAConfig, TransformerConfig
from attractor.models.config import ModelConfig
from attractor.models.language_model import LanguageModel
from attractor.runs.run_folder import RunFolder
from attractor.tasks.text import Text
from attractor.train.config import Runtime, TrainConfig
from attractor.train.finished import finished_run
from attractor.train.loop import train

TINY: dict[str, Any] = {"vocab_size": 320, "d_model": 16, "n_heads": 4, "d_ff": 24, "max_seq_len": 48}
OTHER: dict[str, Any] = {"stream_norm": "layernorm", "parallel_branches": True, "norms_per_block": 1}
OTHER |= {"out_bias": True, "mlp_bias": True, "mlp": "gelu-tanh", "rope_scaling": "yarn:4:16:4:0.02:1.1"}
OTHER |= {"branch_scale": 0.5, "logit_scale": 0.5, "attention_scale": 0.3, "no_rope_every": 2}
STEPS: dict[str, Any] = {"n_steps": 4, "warmup_steps": 1, "batch_size": 2, "seq_len": 16}
TOKENS = torch.arange(40, 64).view(2, 12)
MODELS: dict[str, ModelConfig[LanguageModel]] = {
    name: TransformerConfig(**TINY, n_layers=1, attention=name, positions="rope" if i % 2 else "learned")
    for i, name in enumerate(PRESETS)
} | {
    "of-other-families": ImportedConfig(**TINY, **OTHER, n_layers=2, positions="rope"),
    "fast-slow": FastSlowConfig(**TINY),
    "fast-slow-coupled": FastSlowConfig(**TINY, attention="coupled-gated"),
    "itrsa-causal": ItrSAConfig(**TINY, causal=True, positions="rope"),
    "window": ImportedConfig(
        **TINY, n_layers=2, positions="rope", window=4, global_layers="1", local_rope_theta=100.0, logit_softcap=5.0
    ),
    "fast-slow-window": FastSlowConfig(**TINY, window=4),
    "reparametrised": TransformerConfig(**TINY, n_layers=1, sigma_reparam=True, tied_embeddings=False),
}
LABELLED = TransformerConfig(**TINY, n_layers=1, n_classes=3, pool="mean")

# The script of a user without attractor.
STRANGER = """
import sys
from importlib.abc import MetaPathFinder


class Absent(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in ("attractor", "jaxtyping"):
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)


sys.meta_path.insert(0, Absent())

from pathlib import Path

import torch
import transformers

root, *names = sys.argv[1:]
answers = {"version": transformers.__version__}
kind = transformers.AutoModelForCausalLM
tokens = torch.arange(40, 64).view(2, 12)
tokenizer = transformers.AutoTokenizer.from_pretrained(Path(root) / names[0] / "model", trust_remote_code=True)
for name in names:
    folder = str(Path(root) / name / "model")
    if name == "labelled":
        model = transformers.AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code=True)
        answers[name] = {"logits": model(tokens).logits}
        continue
    model = kind.from_pretrained(folder, trust_remote_code=True)
    kind = type(model)  # all folders have the same code, and finding it again is slow
    prompts = tokenizer(["a prompt", "b"], return_tensors="pt", padding=True)
    said = model.generate(**prompts, max_new_tokens=4, do_sample=False)
    answers[name] = {"logits": model(tokens).logits, "said": said}
    if name == "standard":
        for argument in ("past_key_values", "cache"):
            past = model(tokens[:, :6], use_cache=True)[1]
            answers[argument] = {"logits": model(tokens[:, 6:], **{argument: past}).logits}
        model.save_pretrained(f"{root}/again/model")  # with its code
        again = transformers.AutoModelForCausalLM.from_pretrained(f"{root}/again/model", trust_remote_code=True)
        answers["again"] = {"logits": again(tokens).logits}
        labels = transformers.AutoModelForSequenceClassification
        classes = labels.from_pretrained(folder, trust_remote_code=True, num_labels=5)(tokens)
        answers["tuned for labels"] = {"shape": torch.tensor(classes.logits.shape)}
changed = transformers.AutoModelForCausalLM.from_pretrained(f"{root}/changed", trust_remote_code=True).eval()
answers["changed"] = {"logits": changed(tokens).logits}
assert not [name for name in sys.modules if name.split(".")[0] in ("attractor", "jaxtyping")]
torch.save(answers, Path(root) / "answers.pt")
"""


def stirred(config: ModelConfig[LanguageModel]) -> LanguageModel:
    """Build a model with all weights off their initial values, since a gate at 0 would hide the layers behind it."""
    model = config.build(0).eval()
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def replaced() -> Any:
    """Return a Llama with two other mechanisms."""
    model = theirs("llama")
    model.set_attn_implementation("sdpa")
    for number, attention in enumerate(("coupled-gated", "coupled-differential")):
        replace_attention(model, attention, layers=[number], gate=0.5)
    return model


@pytest.fixture(scope="module")
def built() -> dict[str, LanguageModel]:
    return {name: stirred(config) for name, config in MODELS.items()} | {"labelled": stirred(LABELLED)}


def answered(root: Path, built: dict[str, LanguageModel], packages: Path | None = None) -> dict[str, Any]:
    """Export the models, and return what a stranger computes with them, whose transformers may be in `packages`."""
    for name, model in built.items():
        # transformers loads the code of folders with the same name only once, which saves time
        export_model(model, root / name / "model", ByteTokenizer())
    export_replaced(replaced(), root / "changed")
    surroundings = os.environ | {"HF_MODULES_CACHE": str(root / "cache"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    surroundings |= {} if packages is None else {"PYTHONPATH": str(packages)}
    command = [sys.executable, "-c", STRANGER, str(root), *built]
    done = subprocess.run(command, env=surroundings, cwd=root, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return torch.load(root / "answers.pt", weights_only=True)


@pytest.fixture(scope="module")
def answers(built: dict[str, LanguageModel], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return answered(tmp_path_factory.mktemp("exports"), built)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*MODELS, "labelled"])
def test_without_attractor_logits_are_equal_bit_by_bit(
    name: str, built: dict[str, LanguageModel], answers: dict[str, Any]
) -> None:
    with torch.no_grad():
        assert torch.equal(answers[name]["logits"], built[name](TOKENS)[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_without_attractor_the_same_text_is_generated(
    name: str, built: dict[str, LanguageModel], answers: dict[str, Any]
) -> None:
    """The prompts are padded on the left, and the caches are those of the exported code."""
    ours = as_hugging_face(built[name], ByteTokenizer()).eval()
    tokenizer = exporting.as_fast_tokenizer(ByteTokenizer())
    prompts = tokenizer(["a prompt", "b"], return_tensors="pt", padding=True)
    assert torch.equal(answers[name]["said"], ours.generate(**prompts, max_new_tokens=4, do_sample=False))  # type: ignore[operator]


@pytest.mark.slow
@torch.no_grad()
def test_replaced_attention_needs_no_attractor(answers: dict[str, Any]) -> None:
    assert torch.equal(answers["changed"]["logits"], replaced()(TOKENS).logits)


@pytest.mark.slow
@torch.no_grad()
def test_exports_load_with_the_oldest_transformers(built: dict[str, LanguageModel], tmp_path: Path) -> None:
    """Criterion: with the oldest version that pyproject.toml allows, in a folder of its own, logits are right to
    1e-6, and text is generated from padded prompts."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    (requirement,) = (r for r in project["optional-dependencies"]["hf"] if r.startswith("transformers>="))
    version = f"{requirement.removeprefix('transformers>=')}.0"
    options = ["--quiet", "--no-compile", "--target", tmp_path / "packages"]  # most modules are never imported
    command = [sys.executable, "-m", "pip", "install", *options, f"transformers=={version}"]
    installed = subprocess.run(command, capture_output=True, text=True, timeout=600)
    for reason in ("from versions: none", "No module named pip"):  # an index out of reach lists no version
        if reason in installed.stderr:
            pytest.skip(f"transformers {version} cannot be installed here, since pip says '{reason}'")
    assert installed.returncode == 0, installed.stderr[-3000:]
    models = {name: built[name] for name in ("standard", "coupled-hamiltonian", "fast-slow")}
    answers = answered(tmp_path, models, tmp_path / "packages")
    assert answers["version"] == version
    torch.testing.assert_close(answers["changed"]["logits"], replaced()(TOKENS).logits, rtol=0, atol=1e-6)
    for name, model in models.items():
        torch.testing.assert_close(answers[name]["logits"], model(TOKENS)[0], rtol=0, atol=1e-6)
        assert answers[name]["said"].shape == (2, 12)


@pytest.mark.slow
def test_the_exported_code_takes_a_cache_under_both_names(answers: dict[str, Any]) -> None:
    for argument in ("past_key_values", "cache"):
        continued, expected = answers[argument]["logits"], answers["standard"]["logits"][:, 6:]
        torch.testing.assert_close(continued, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_an_export_can_be_saved_and_tuned_without_attractor(answers: dict[str, Any]) -> None:
    assert torch.equal(answers["again"]["logits"], answers["standard"]["logits"])
    assert answers["tuned for labels"]["shape"].tolist() == [2, 5]


SMALL = MODELS["coupled-euler"]


def test_weights_are_those_of_the_model_in_one_file_or_several(tmp_path: Path) -> None:
    model = stirred(SMALL)
    export_model(model, tmp_path / "one", self_contained=False)
    export_model(model, tmp_path / "several", self_contained=False, max_shard_size="8KB")
    several = sorted((tmp_path / "several").glob("*.safetensors"))
    assert len(several) > 2
    parts: dict[str, Tensor] = {}
    for file in several:
        parts |= load_file(file)
    index = json.loads((tmp_path / "several" / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == parts.keys()
    ours = {f"model.{name}": weight for name, weight in model.state_dict().items()}
    for stored in (parts, load_file(tmp_path / "one" / "model.safetensors")):
        torch.testing.assert_close(stored, ours, rtol=0, atol=0)
    assert not list((tmp_path / "one").glob("*.py"))


def test_half_precision_changes_the_file_and_not_the_model(tmp_path: Path) -> None:
    model = stirred(SMALL)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    export_model(model, tmp_path / "half", self_contained=False, dtype=torch.bfloat16)
    stored = load_file(tmp_path / "half" / "model.safetensors")
    assert json.loads((tmp_path / "half" / "config.json").read_text())["dtype"] == "bfloat16"
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, before[name])
        assert torch.equal(stored[f"model.{name}"], weight.bfloat16())


def test_the_configuration_has_the_ids_of_special_tokens(tmp_path: Path) -> None:
    export_model(stirred(SMALL), tmp_path / "out", ByteTokenizer(), card="# A card\n", self_contained=False)
    generation = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert (generation["eos_token_id"], generation["pad_token_id"]) == (256, 257)
    assert (tmp_path / "out" / "README.md").read_text() == "# A card\n"
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.model_max_length == (SMALL.max_seq_len if SMALL.positions == "learned" else int(1e30))


def test_classes_have_their_names(tmp_path: Path) -> None:
    named = ("entailment", "neutral", "contradiction")
    assert LABELLED.n_classes == len(named)
    export_model(stirred(LABELLED), tmp_path / "out", self_contained=False, labels=named)
    config = AttractorForSequenceClassification.from_pretrained(tmp_path / "out").config
    assert config.id2label == dict(enumerate(named))
    assert [config.label2id[name] for name in named] == [0, 1, 2]


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return stirred(SMALL)


def test_a_folder_with_files_is_refused_and_left_alone(model: LanguageModel, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match=r"out must be a new or empty folder, and '.*full' holds files"):
        export_model(model, tmp_path / "full")
    with pytest.raises(InputError, match=r"out must be a folder, and '.*mine.txt' is a file"):
        export_model(model, tmp_path / "full" / "mine.txt")
    assert [path.name for path in tmp_path.rglob("*")] == ["full", "mine.txt"]
    (tmp_path / "empty").mkdir()
    export_model(model, tmp_path / "empty", self_contained=False)
    assert (tmp_path / "empty" / "config.json").is_file()


def test_an_export_that_fails_leaves_nothing(
    model: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(exporting, "as_fast_tokenizer", full)
    with pytest.raises(OSError, match="No space"):
        export_model(model, tmp_path / "out", ByteTokenizer())
    assert not list(tmp_path.iterdir())


def test_impossible_exports_are_refused_in_one_line(model: LanguageModel, tmp_path: Path) -> None:
    from attractor.corpus import bpe

    large = bpe.train(iter(["ab abc abcd " * 9] + [chr(0x4E00 + i) * 2 for i in range(200)]), 400)
    with pytest.raises(InputError, match=r"tokenizer must have at most vocab_size=320 tokens.* got 'bpe:400' with 400"):
        export_model(model, tmp_path / "out", large)
    with pytest.raises(InputError, match="max_shard_size must be a size such as 5GB or 500MB, got 'big'"):
        export_model(model, tmp_path / "out", max_shard_size="big")
    with pytest.raises(InputError, match="causal must be True"):
        export_model(ItrSAConfig(**TINY, causal=False).build(0), tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    (folder / "squares.txt").write_text("".join(f"{i} squared is {i * i}\n" for i in range(400)))
    config = TrainConfig(SMALL, Text(str(folder / "squares.txt")), **STEPS, eval_every=2, eval_batches=2)
    train(config, folder / "run", Runtime(device="cpu"))
    return folder / "run"


@pytest.fixture
def exported(capsys: pytest.CaptureFixture[str]) -> Callable[..., Path]:
    def carry_out(*args: Any, **options: Any) -> Path:
        export(ExportArguments(*args, **options), Console(width=200))
        return Path(capsys.readouterr().out.splitlines()[-1])

    return carry_out


def test_a_run_is_exported_with_tokenizer_card_and_code(run: Path, exported: Callable[..., Path]) -> None:
    out = exported(run)
    assert out == run / "hf"
    there = {path.name for path in out.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "README.md", "modeling_attractor.py"} <= there
    card = (out / "README.md").read_text()
    assert "coupled-euler attention" in card
    assert "squares.txt" in card
    assert str(run.parent) not in card
    best = json.loads((run / "checkpoints" / "best.json").read_text())
    assert f"| exported weights are of step | {best['step']} |" in card
    weights = load_file(run / "checkpoints" / f"step-{best['step']:08d}" / "model.safetensors")
    exported_weights = load_file(out / "model.safetensors")
    for name, weight in weights.items():
        assert torch.equal(exported_weights[f"model.{name}"], weight)


def test_options_of_the_command(run: Path, exported: Callable[..., Path], tmp_path: Path) -> None:
    options = {"checkpoint": "last", "precision": "bf16", "max_shard_size": "4KB", "self_contained": False}
    out = exported(run, out=tmp_path / "out", **options)
    assert len(list(out.glob("*.safetensors"))) > 1
    assert not list(out.glob("*.py"))
    card = (out / "README.md").read_text()
    assert "| stored as | bfloat16 |" in card
    assert "| exported weights are of step | 4 |" in card
    for wrong, message in (
        ({"to": "onnx"}, "unknown format 'onnx'"),
        ({"precision": "fp64"}, "unknown precision 'fp64'"),
        ({"checkpoint": "first"}, "unknown checkpoint 'first'"),
        ({"out": run}, "out must be a new or empty folder"),
        ({"push": "name"}, "push must be OWNER/NAME, got 'name'"),
    ):
        with pytest.raises(InputError, match=message):
            exported(run, **{"out": tmp_path / "other", **wrong})
    assert not (tmp_path / "other").exists()


def test_an_export_is_pushed_with_what_the_card_must_say(
    run: Path, exported: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Criterion: the repository is private if it is new and gets the folder; if the Hub refuses, the folder stays."""
    import huggingface_hub

    calls: list[tuple[str, dict[str, Any]]] = []

    class Hub:
        def create_repo(self, repo_id: str, **options: Any) -> None:
            calls.append((repo_id, options))
            if repo_id.startswith("others/"):
                raise OSError("403 Forbidden")

        def upload_folder(self, repo_id: str, folder_path: Path, **options: Any) -> str:
            calls.append((repo_id, {path.name: path.read_bytes() for path in folder_path.iterdir()}))
            return f"hub/{repo_id}"

    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    said = {"license": "apache-2.0", "base_model": "them/base", "datasets": ("them/data", "them/more")}
    assert exported(run, out=tmp_path / "mine", push="me/mine", **said) == Path("hub/me/mine")
    (created, options), (uploaded, files) = calls
    assert created == uploaded == "me/mine"
    assert options == {"private": True, "exist_ok": True}
    card = huggingface_hub.ModelCard(files["README.md"].decode()).data.to_dict()
    assert {name: card[name] for name in said} == said | {"datasets": [*said["datasets"]]}
    assert "model.safetensors" in files
    with pytest.raises(InputError, match=r"you may write, got 'others/x': 403 Forbidden; log in .*'hf upload others/x"):
        exported(run, out=tmp_path / "kept", push="others/x")
    assert (tmp_path / "kept" / "model.safetensors").is_file()


MINE = """
from torch import nn

class Mine(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x):
        return self.out(x.cumsum(1))
"""


def test_an_own_mechanism_is_exported_without_its_code_and_the_card_loads_it(
    run: Path, exported: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(MINE)
    config = TrainConfig.from_dict(RunFolder.open(run).config)
    config = config.replace(model=TransformerConfig(**TINY, n_layers=1, attention=mechanism("mine.py:Mine")))
    train(config, tmp_path / "own", Runtime(device="cpu"))
    with pytest.raises(
        InputError, match=r"attention must be of attractor's own stages.*'mine.py:Mine'; export with --no"
    ):
        exported(tmp_path / "own", out=Path("folder"), code="mine.py")
    card = exported(tmp_path / "own", out=Path("folder"), code="mine.py", self_contained=False) / "README.md"
    loaded: dict[str, Any] = {}
    exec(card.read_text().partition("```python")[2].partition("```")[0], loaded)
    expected = finished_run(tmp_path / "own", torch.device("cpu")).model(TOKENS)[0]
    assert torch.equal(loaded["model"](TOKENS).logits, expected)


def test_a_run_on_puzzles_is_exported_without_tokenizer(tmp_path: Path) -> None:
    from attractor.tasks.sudoku import Sudoku
    from attractor.train.saved_tokenizer import tokenizer_to_export

    config = TrainConfig(task=Sudoku(board_size=4), model=SMALL.replace(vocab_size=5, causal=False), seq_len=16)
    folder = RunFolder.create(tmp_path / "run", config.to_dict())
    assert tokenizer_to_export(folder, config) is None
