"""Tokens a second of cached greedy generation, one sequence at a time: ours, ours through Hugging Face's `generate`,
and their Llama, all with the same weights, so that they speak the same tokens.

    python -m attractor.bench.decoding small 1b-2m --rounds 7
"""

import argparse
import time
from collections.abc import Callable
from importlib import import_module
from tempfile import TemporaryDirectory
from typing import Any, cast

import torch

from attractor.bench.alternate import Timing, alternate
from attractor.hf.imported import import_model
from attractor.hf.quiet import quiet
from attractor.models import SIZES, TransformerConfig
from attractor.models.language_model import LanguageModel

N_PROMPT = 16
BASELINE = "llama"


def same_weights(config: TransformerConfig) -> tuple[LanguageModel, Any]:
    """Ours with the weights of a Llama as Hugging Face builds it, and that."""
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
    with torch.no_grad():
        theirs.model.embed_tokens.weight.mul_(20)  # sharp logits: greedy choices must not hang on rounding
    with TemporaryDirectory() as folder, quiet():
        theirs.save_pretrained(folder)
        ours = import_model(folder)
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
