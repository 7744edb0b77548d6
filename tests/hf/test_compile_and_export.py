"""Models take padded batches as one graph: compiled, exported by torch.export, and run by ONNX Runtime."""

import io
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM
from wrapped_models import CONFIGS, N_TOKENS, WITH_NOISE, tokens, wrapped

from attractor.hf.export import export_model
from tiers import fast_alone


class Logits(nn.Module):
    """Compute the logits, and put 0 at padding, where they have no meaning."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        logits = self.model(input_ids=input_ids, attention_mask=attention_mask).logits
        return logits * attention_mask.unsqueeze(-1)


def padded(n_rows: int, length: int, on_the_left: int) -> tuple[Tensor, Tensor]:
    """Return tokens whose first row is padded on the left, and the second on the right by 2."""
    mask = torch.ones(n_rows, length, dtype=torch.int64)
    mask[0, :on_the_left], mask[1, -2:] = 0, 0
    return tokens(n_rows, length), mask


EXAMPLE, LONGER = padded(2, N_TOKENS, 3), padded(3, 26, 9)
LENGTH = torch.export.Dim("length", min=8, max=40)  # a slow path needs two blocks
SHAPES = {0: torch.export.Dim("batch", min=1, max=16), 1: LENGTH}


@pytest.mark.parametrize("name", fast_alone(CONFIGS | WITH_NOISE, "gated"))
def test_a_program_of_torch_export_takes_padded_batches_of_any_size(name: str) -> None:
    """Blanks start from the same noise each time that the program runs."""
    assert name not in WITH_NOISE or all((batch[0] == 40).any() for batch in (EXAMPLE, LONGER))
    model = Logits(wrapped(name))
    with torch.no_grad():
        how: dict[str, Any] = {"strict": False, "prefer_deferred_runtime_asserts_over_guards": True}
        program = torch.export.export(model, EXAMPLE, dynamic_shapes=(SHAPES, SHAPES), **how).module()
        for batch in (EXAMPLE, EXAMPLE, LONGER):
            tolerance = 5e-6 if name == "gated-deltanet" else 1e-6  # a program has one chunk, a model several
            torch.testing.assert_close(program(*batch), model(*batch), rtol=0, atol=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "backend"), [("fast-slow", "aot_eager"), ("coupled-hamiltonian", "inductor")])
def test_an_exported_folder_compiles_as_one_graph(name: str, backend: str, tmp_path: Path) -> None:
    """The folder is compiled in a separate process, whose signatures have no shape checks. One backend only traces, and
    the other also compiles what was traced."""
    model = wrapped(name)
    export_model(model.model, tmp_path / "model")
    torch.save(EXAMPLE, tmp_path / "example.pt")
    done = subprocess.run([sys.executable, "-c", COMPILER, backend], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    with torch.no_grad():
        logits = model(*EXAMPLE).logits
    real = EXAMPLE[1].bool()
    torch.testing.assert_close(torch.load(tmp_path / "logits.pt")[real], logits[real], rtol=0, atol=1e-5)


COMPILER = """
import sys
import torch
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("model", trust_remote_code=True).eval()
compiled = torch.compile(model, fullgraph=True, backend=sys.argv[1])
with torch.no_grad():
    torch.save(compiled(*torch.load("example.pt")).logits, "logits.pt")
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # warnings of the exporter
@pytest.mark.parametrize(
    "name", ["standard", "mla", "coupled-hamiltonian", "differential", "decay", "fast-slow", "itrsa"]
)
def test_onnx_runtime_gives_the_same_logits(name: str) -> None:
    import onnxruntime

    model = Logits(wrapped(name))
    axes = {0: "batch", 1: "length"}
    with torch.no_grad():
        program = torch.onnx.export(model, EXAMPLE, dynamo=True, dynamic_shapes=(axes, axes), verbose=False)
        file = io.BytesIO()
        cast(Any, program).save(file)
        session = onnxruntime.InferenceSession(file.getvalue())
        names = [given.name for given in session.get_inputs()]
        for batch in (EXAMPLE, LONGER):
            (logits,) = session.run(None, dict(zip(names, (x.numpy() for x in batch), strict=True)))
            torch.testing.assert_close(torch.from_numpy(logits), model(*batch), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["standard", "coupled-euler"])
def test_sdpa_and_eager_are_accepted_and_flash_attention_is_refused(name: str, tmp_path: Path) -> None:
    """Criterion: `sdpa` and `eager` change no bit; an implementation that these models do not have is refused."""
    model = wrapped(name)
    model.save_pretrained(tmp_path)
    for implementation in ("sdpa", "eager"):
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation=implementation).eval()
        assert torch.equal(loaded(tokens()).logits, model(tokens()).logits)
    with pytest.raises((ValueError, ImportError), match=r"[Ff]lash"):
        AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="flash_attention_2")
