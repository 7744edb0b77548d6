"""Peers: models of the same shape from transformers, which are timed where the package is installed.

`like` names the model of ours that computes the same as the peer; the FLOPs of that model count for the peer. A peer's
number of parameters may differ from that of our model, and every table shows both. The differences are:

    hf-llama         none
    hf-qwen3         none; both normalise queries and keys
    hf-diffllama     d_model / n_heads fewer per layer, since its norm of the difference has no weight
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from attractor.bench.shape import BenchShape


@dataclass(frozen=True)
class Peer:
    like: str
    build: Callable[[BenchShape], nn.Module]
    logits: Callable[[nn.Module, Tensor], Tensor]
    generate: Callable[[nn.Module, Tensor, int], Tensor]  # greedy, with the cache of the package


def installed_peers() -> dict[str, Peer]:
    return PEERS if find_spec("transformers") else {}


def _hf(model: str, like: str, maps: int = 1) -> Peer:
    """Return the peer `{model}ForCausalLM` of transformers, with SDPA, tied embeddings, and `maps` narrow heads in the
    place of each head."""

    def build(shape: BenchShape) -> nn.Module:
        transformers: Any = import_module("transformers")
        config = getattr(transformers, f"{model}Config")(
            vocab_size=shape.vocab_size,
            hidden_size=shape.d_model,
            intermediate_size=shape.d_ff,
            num_hidden_layers=shape.n_layers,
            max_position_embeddings=shape.seq_len,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=None,
            attn_implementation="sdpa",
            num_attention_heads=maps * shape.n_heads,
            num_key_value_heads=maps * shape.n_heads,
            head_dim=shape.d_model // shape.n_heads // maps,
        )
        return getattr(transformers, f"{model}ForCausalLM")(config)

    return Peer(like, build, lambda model, tokens: model(tokens, use_cache=False).logits, _hf_generate)


def _hf_generate(model: Any, prompt: Tensor, n_tokens: int) -> Tensor:
    lengths = {"max_new_tokens": n_tokens, "min_new_tokens": n_tokens}
    return model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, **lengths)


PEERS: dict[str, Peer] = {
    "hf-llama": _hf("Llama", "standard"),
    "hf-qwen3": _hf("Qwen3", "standard:qk_norm=True"),
    "hf-diffllama": _hf("DiffLlama", "differential-original", maps=2),
}
