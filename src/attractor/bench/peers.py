"""Peers: models of the same shape from other packages, which are timed where the package is installed.

`like` names the model of ours that computes the same as the peer; the FLOPs of that model count for the peer. A peer's
number of parameters may differ from that of our model, and every table shows both. The differences are:

    hf-llama         none
    hf-qwen3         none; both normalise queries and keys
    hf-diffllama     d_model / n_heads fewer per layer, since its norm of the difference has no weight
    x-transformers   2 d_ff more per layer, since the gated half of its MLP has a bias
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from attractor.bench.shape import BenchShape


@dataclass(frozen=True)
class Peer:
    package: str
    like: str
    build: Callable[[BenchShape], nn.Module]
    logits: Callable[[nn.Module, Tensor], Tensor]
    generate: Callable[[nn.Module, Tensor, int], Tensor]  # greedy, with the cache of the package

    @property
    def installed(self) -> bool:
        return find_spec(self.package) is not None


def installed_peers() -> dict[str, Peer]:
    return {name: peer for name, peer in PEERS.items() if peer.installed}


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
            head_dim=_width(shape) // maps,
        )
        return getattr(transformers, f"{model}ForCausalLM")(config)

    return Peer("transformers", like, build, lambda model, tokens: model(tokens, use_cache=False).logits, _hf_generate)


def _hf_generate(model: Any, prompt: Tensor, n_tokens: int) -> Tensor:
    lengths = {"max_new_tokens": n_tokens, "min_new_tokens": n_tokens}
    return model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, **lengths)


def _width(shape: BenchShape) -> int:
    return shape.d_model // shape.n_heads


@contextmanager
def _imported_quietly() -> Iterator[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of the dependencies of x-transformers
        package = import_module("x_transformers")
        import_module("loguru").logger.disable("x_transformers")  # messages that advise on widths of heads
        yield package


def _x_transformers(shape: BenchShape) -> nn.Module:
    width = _width(shape)
    with _imported_quietly() as package:
        layers = package.Decoder(
            dim=shape.d_model,
            depth=shape.n_layers,
            heads=shape.n_heads,
            attn_dim_head=width,
            attn_flash=True,
            rotary_pos_emb=True,
            rotary_emb_dim=width,
            use_rmsnorm=True,
            ff_mult=shape.d_ff / shape.d_model,
            ff_glu=True,
            ff_swish=True,
            ff_no_bias=True,
        )
        return package.TransformerWrapper(
            num_tokens=shape.vocab_size,
            max_seq_len=shape.seq_len,
            use_abs_pos_emb=False,
            tie_embedding=True,
            attn_layers=layers,
        )


def _x_generate(model: nn.Module, prompt: Tensor, n_tokens: int) -> Tensor:
    with _imported_quietly() as package:
        return package.AutoregressiveWrapper(model).generate(prompt, n_tokens, temperature=0.0, cache_kv=True)


PEERS: dict[str, Peer] = {
    "hf-llama": _hf("Llama", "standard"),
    "hf-qwen3": _hf("Qwen3", "standard:qk_norm=True"),
    "hf-diffllama": _hf("DiffLlama", "differential-original", maps=2),
    "x-transformers": Peer("x_transformers", "standard", _x_transformers, nn.Module.__call__, _x_generate),
}
