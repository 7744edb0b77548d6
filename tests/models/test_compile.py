"""torch.compile takes every mechanism whole: no graph break, same loss, same gradients."""

import subprocess
import sys

import torch

from attractor.attention import PRESETS
from attractor.models import TransformerConfig

SMALL = TransformerConfig(vocab_size=31, d_model=16, n_heads=4, n_layers=1, d_ff=16, max_seq_len=16, positions="rope")


def test_every_preset_compiles_without_a_graph_break() -> None:
    """In a process of its own: the shape checks that conftest puts into signatures cannot be traced."""
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == list(PRESETS)


def compile_whole(attention: str) -> None:
    """`fullgraph` refuses any break; the backend that only traces is enough to see one, and quick."""
    model = SMALL.replace(attention=attention).build(0)
    tokens = torch.randint(0, 31, (2, 8), generator=torch.Generator().manual_seed(0))
    expected, _ = model.loss(tokens, tokens)
    wanted = torch.autograd.grad(expected, list(model.parameters()))
    torch.compiler.reset()
    loss, _ = torch.compile(model.loss, fullgraph=True, backend="aot_eager")(tokens, tokens)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(torch.autograd.grad(loss, list(model.parameters())), wanted)


if __name__ == "__main__":
    for name in PRESETS:
        compile_whole(name)
        print(name)
