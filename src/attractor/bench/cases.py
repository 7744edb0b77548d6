"""What is timed: one training step, or one generation, of our models and of their peers at one shape."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from attractor.models import TransformerConfig
from attractor.models.language_model import LanguageModel

PRECISIONS = {"fp32": None, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class BenchShape:
    vocab_size: int = 320
    d_model: int = 512
    n_heads: int = 8
    n_layers: int = 4
    d_ff: int = 2048
    batch_size: int = 2
    seq_len: int = 512

    def config(self, attention: str) -> TransformerConfig:
        return TransformerConfig(
            vocab_size=self.vocab_size,
            d_model=self.d_model,
            n_heads=self.n_heads,
            n_layers=self.n_layers,
            d_ff=self.d_ff,
            max_seq_len=self.seq_len,
            positions="rope",
            attention=attention,
        )

    def tokens(self) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        return torch.randint(0, self.vocab_size, (self.batch_size, self.seq_len + 1), generator=generator)


def training_step(
    model: nn.Module,
    loss: Callable[[Tensor], Tensor],
    tokens: Tensor,
    precision: str,
    optimizer: torch.optim.Optimizer | None = None,
) -> Callable[[], object]:
    """Forward, backward and a step of the optimizer, by default AdamW, as the training loop takes them."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    half = PRECISIONS[precision]

    def step() -> None:
        context: AbstractContextManager[Any] = torch.autocast(tokens.device.type, half) if half else nullcontext()
        with context:
            value = loss(tokens)
        value.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if tokens.device.type == "cuda":
            torch.cuda.synchronize()

    return step


def our_step(attention: str, shape: BenchShape, precision: str, device: torch.device) -> Callable[[], object]:
    model = shape.config(attention).build(seed=0).to(device)
    return training_step(
        model, lambda tokens: model.loss(tokens[:, :-1], tokens[:, 1:])[0], shape.tokens().to(device), precision
    )


def peer_step(name: str, shape: BenchShape, precision: str, device: torch.device) -> Callable[[], object]:
    """A Hugging Face model of the same shape, with its own loss and SDPA."""
    model = PEERS[name](shape).to(device)

    def loss(tokens: Tensor) -> Tensor:
        logits = model(tokens[:, :-1]).logits
        return nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())

    return training_step(model, loss, shape.tokens().to(device), precision)


def hf_llama(shape: BenchShape) -> nn.Module:
    transformers: Any = import_module("transformers")
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**_hf(shape), num_attention_heads=shape.n_heads))


def hf_diffllama(shape: BenchShape) -> nn.Module:
    transformers: Any = import_module("transformers")
    heads = {"num_attention_heads": 2 * shape.n_heads, "head_dim": shape.d_model // shape.n_heads // 2}
    return transformers.DiffLlamaForCausalLM(transformers.DiffLlamaConfig(**_hf(shape), **heads))


def _hf(shape: BenchShape) -> dict[str, Any]:
    return {
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.d_model,
        "intermediate_size": shape.d_ff,
        "num_hidden_layers": shape.n_layers,
        "max_position_embeddings": shape.seq_len,
        "tie_word_embeddings": True,
        "attn_implementation": "sdpa",
        "use_cache": False,
    }


PEERS: dict[str, Callable[[BenchShape], nn.Module]] = {"hf-llama": hf_llama, "hf-diffllama": hf_diffllama}


def decoding(model: LanguageModel, n_tokens: int, use_cache: bool = True, batch_size: int = 1) -> Callable[[], object]:
    """Greedy generation of `n_tokens` from prompts of 16."""
    prompt = torch.arange(16, device=model.device).expand(batch_size, -1) % model.config.vocab_size
    return lambda: model.generate(prompt, max_new_tokens=n_tokens, temperature=0.0, use_cache=use_cache)
