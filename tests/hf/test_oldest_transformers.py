"""Exports load with the oldest transformers that pyproject.toml allows, installed in a separate folder."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

from attractor.corpus.tokenizer import ByteTokenizer
from attractor.hf.export import export_model
from attractor.models import FastSlowConfig, TransformerConfig

SMALL = {"vocab_size": 320, "d_model": 32, "n_heads": 4, "d_ff": 48, "max_seq_len": 40}
CONFIGS = {
    "coupled": TransformerConfig(**SMALL, n_layers=2, attention="coupled-hamiltonian"),
    "fast-slow": FastSlowConfig(**SMALL),
}
READER = """
import sys
import torch
import transformers

assert transformers.__version__ == sys.argv[1], transformers.__version__
answers = {}
for folder in sys.argv[2:]:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    prompts = tokenizer(["a prompt", "b"], return_tensors="pt", padding=True)
    text = model.generate(**prompts, max_new_tokens=4, do_sample=False)
    answers[folder] = {"logits": model(torch.arange(40, 64).view(2, 12)).logits, "text": text}
torch.save(answers, "answers.pt")
"""


def oldest_version() -> str:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    (requirement,) = (r for r in project["optional-dependencies"]["hf"] if r.startswith("transformers>="))
    return f"{requirement.removeprefix('transformers>=')}.0"


@pytest.mark.slow
def test_exports_load_with_the_oldest_transformers(tmp_path: Path) -> None:
    """Criterion: exports give the model's logits to 1e-6, and generate text from padded prompts."""
    packages, version = tmp_path / "packages", oldest_version()
    options = ["--quiet", "--no-compile", "--target", packages]  # most of its modules are never imported
    command = [sys.executable, "-m", "pip", "install", *options, f"transformers=={version}"]
    installed = subprocess.run(command, capture_output=True, text=True, timeout=600)
    for reason in ("from versions: none", "No module named pip"):  # an index out of reach lists no version
        if reason in installed.stderr:
            pytest.skip(f"transformers {version} cannot be installed here, since pip says '{reason}'")
    assert installed.returncode == 0, installed.stderr[-3000:]
    models = {str(tmp_path / name / "model"): config.build(0).eval() for name, config in CONFIGS.items()}
    for folder, model in models.items():
        export_model(model, folder, ByteTokenizer())
    surroundings = os.environ | {
        "PYTHONPATH": str(packages),
        "HF_MODULES_CACHE": str(tmp_path / "cache"),
        "HF_HUB_OFFLINE": "1",
    }
    command = [sys.executable, "-c", READER, version, *models]
    done = subprocess.run(command, env=surroundings, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    answers = torch.load(tmp_path / "answers.pt", weights_only=True)
    for folder, model in models.items():
        with torch.no_grad():
            logits, _ = model(torch.arange(40, 64).view(2, 12))
        torch.testing.assert_close(answers[folder]["logits"], logits, rtol=0, atol=1e-6)
        assert answers[folder]["text"].shape == (2, 12)
