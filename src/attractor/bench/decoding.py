"""Tokens a second of cached greedy generation, one sequence at a time: ours, ours through Hugging Face's `generate`,
and their Llama, all with the same weights, so that they speak the same tokens.

    python -m attractor.bench.decoding small 1b-2m --rounds 7
"""

import argparse
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any, cast

import torch

from attractor.bench.alternate import Timing, alternate
from attractor.hf.weights import import_attention
from attractor.models import SIZES, Transformer, TransformerConfig

N_PROMPT = 16
BASELINE = "llama"


def same_weights(config: TransformerConfig) -> tuple[Transformer, Any]:
    """A Llama as Hugging Face builds it, and ours with its weights."""
    transformers: Any = import_module("transformers")
    torch.manual_seed(0)
    theirs: Any = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.d_model,
            intermediate_size=config.d_ff,
            num_hidden_layers=config.n_layers,
            num_attention_heads=config.n_heads,
            max_position_embeddings=config.max_seq_len,
            rms_norm_eps=config.norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=None,
            attn_implementation="sdpa",
        )
    ).eval()
    ours = config.build(seed=0).eval()
    with torch.no_grad():
        theirs.model.embed_tokens.weight.mul_(20)  # sharp logits: greedy choices must not hang on rounding
        ours.embedding.weight.copy_(theirs.model.embed_tokens.weight)
        cast(Any, ours.norm).weight.copy_(theirs.model.norm.weight)
        for block, layer in zip(ours.layers, theirs.model.layers, strict=True):
            own = cast(Any, block)
            import_attention(own.attention, layer.self_attn.state_dict(), layout="llama")
            own.attention_norm.weight.copy_(layer.input_layernorm.weight)
            own.mlp_norm.weight.copy_(layer.post_attention_layernorm.weight)
            for name in ("gate", "up", "down"):
                getattr(own.mlp, name).weight.copy_(getattr(layer.mlp, f"{name}_proj").weight)
    return ours, theirs


def cases(config: TransformerConfig, n_tokens: int) -> dict[str, Callable[[], Any]]:
    ours, theirs = same_weights(config)
    behind: Any = import_module("attractor.hf.model").AttractorForCausalLM.of(ours)
    prompt = torch.arange(N_PROMPT).unsqueeze(0) % config.vocab_size
    alike = {"max_new_tokens": n_tokens, "min_new_tokens": n_tokens, "do_sample": False}
    return {
        BASELINE: lambda: theirs.generate(prompt, **alike),
        "ours through generate": lambda: behind.generate(prompt, **alike),
        "ours": lambda: ours.generate(prompt, max_new_tokens=n_tokens, temperature=0.0),
    }


def bench_decoding_peers(
    config: TransformerConfig, n_tokens: int, n_rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, Timing]:
    runs = cases(config, n_tokens)
    spoken = [run().tolist() for run in runs.values()]
    assert spoken[0] == spoken[1] == spoken[2], "the same weights must speak the same tokens"
    return alternate(runs, BASELINE, n_rounds, warm_up=1, clock=clock)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sizes", nargs="*", default=["small", "1b-2m"])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cpu-time", action="store_true", help="time of this process, on a machine that others use")
    given = parser.parse_args()
    for size in given.sizes:
        config = cast(TransformerConfig, SIZES[size].replace(positions="rope"))
        print(f"{size}: {given.tokens} tokens after {N_PROMPT}, {torch.get_num_threads()} threads")
        clock = time.process_time if given.cpu_time else time.perf_counter
        for name, timing in bench_decoding_peers(config, given.tokens, given.rounds, clock).items():
            low, high = timing.spread
            speed = given.tokens / timing.median_seconds
            print(f"  {name:22} {speed:7.1f} tok/s   {timing.ratio:.3f} ({low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
