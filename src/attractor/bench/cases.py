"""The cases that are timed: a training step or a generation of one of our models or of a peer, at one shape."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from attractor.bench.peers import PEERS
from attractor.bench.shape import BenchShape, config_of
from attractor.kernels.precision import autocast, quick_products
from attractor.models import FastSlowConfig, TransformerConfig
from attractor.models.language_model import LanguageModel

N_PROMPT = 16

Loss = Callable[[Tensor], Tensor]


def our_config(name: str, shape: BenchShape) -> TransformerConfig | FastSlowConfig:
    """Return our config of that name; for a peer, the config of ours that computes the same as the peer."""
    return config_of(PEERS[name].like if name in PEERS else name, shape)


def model_and_loss(name: str, shape: BenchShape, device: torch.device) -> tuple[nn.Module, Loss]:
    """Return a model with its loss. Our loss is computed in chunks where logits are many, a peer's from all logits."""
    if name not in PEERS:
        ours = config_of(name, shape).build(seed=0).to(device)
        return ours, lambda tokens: ours.loss(tokens[:, :-1], tokens[:, 1:])[0]
    peer = PEERS[name]
    torch.manual_seed(0)
    model = peer.build(shape).to(device)

    def loss(tokens: Tensor) -> Tensor:
        logits = peer.logits(model, tokens[:, :-1])
        return nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())

    return model, loss


def tokens_of(shape: BenchShape, device: torch.device) -> Tensor:
    return random_tokens(shape.vocab_size, shape.batch_size, shape.seq_len).to(device)


def random_tokens(vocab_size: int, batch_size: int, seq_len: int) -> Tensor:
    """Draw sequences of one token more, which is the last target."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, vocab_size, (batch_size, seq_len + 1), generator=generator)


def training_step(
    model: nn.Module, loss: Loss, tokens: Tensor, precision: str, optimizer: torch.optim.Optimizer | None = None
) -> Callable[[], object]:
    """Return a function that takes one training step as the training loop does; the default optimizer is AdamW."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        with quick_products(tokens.device, precision):
            with autocast(tokens.device, precision):
                value = loss(tokens)
            value.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if tokens.device.type == "cuda":
            torch.cuda.synchronize()

    return step


def forward_pass(model: LanguageModel, tokens: Tensor, precision: str) -> Callable[[], None]:
    """Return a function that computes the loss once without gradients."""

    def run() -> None:
        with torch.no_grad(), autocast(tokens.device, precision):
            model.loss(tokens[:, :-1], tokens[:, 1:])
        if tokens.device.type == "cuda":
            torch.cuda.synchronize()

    return run


def decoding(model: LanguageModel, n_tokens: int, use_cache: bool = True, batch_size: int = 1) -> Callable[[], object]:
    """Return a function that generates `n_tokens` greedily from prompts of 16 tokens."""
    prompt = prompts(model.config.vocab_size, batch_size, model.device)
    return lambda: model.generate(prompt, max_new_tokens=n_tokens, temperature=0.0, use_cache=use_cache)


def prompts(vocab_size: int, batch_size: int, device: torch.device) -> Tensor:
    return torch.arange(N_PROMPT, device=device).expand(batch_size, -1) % vocab_size
