"""Text generation with a cache: greedy, temperature, top-k and top-p, for batches of unequal prompts."""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attractor.attention.evaluating import HasModes, evaluating
from attractor.errors import InputError, require, require_count


class DecodingModel(HasModes, Protocol):
    """The methods of a model that generation uses."""

    @property
    def device(self) -> torch.device: ...

    @property
    def readout(self) -> Tensor: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_length(self) -> int | None:
        """The longest sequence that the model takes; None if there is no limit."""

    def new_cache(self) -> Any: ...

    def next_logits(self, tokens: Tensor, cache: Any = None, real: Tensor | None = None) -> Tensor:
        """Return the logits B C of the token after the last one."""


def generate(
    model: DecodingModel,
    tokens: Int[Tensor, "B T"] | Sequence[Sequence[int] | Tensor],
    max_new_tokens: int = 32,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    stop_token: int | Sequence[int] | None = None,
    pad_token: int = 0,
    generator: torch.Generator | None = None,
    use_cache: bool = True,
) -> Int[Tensor, "B N"]:
    """Continue each prompt by `max_new_tokens` tokens; return the prompts with their continuations.

    Prompts of unequal length are given as a list. They are padded on the left with `pad_token`, to which nothing
    attends. temperature 0 is greedy. After `stop_token`, or any of several, a sequence continues with `pad_token`;
    generation ends when all sequences have stopped.
    """
    require_count("max_new_tokens", max_new_tokens, least=0)
    require(0 <= temperature < math.inf, "temperature", "at least 0 (0 is greedy) and finite", temperature)
    if top_k is not None:
        require_count("top_k", top_k)
    require(top_p is None or 0 < top_p <= 1, "top_p", "above 0 and at most 1", top_p)
    tokens, real = pad_left(tokens, pad_token, model.device)
    size = model.vocab_size
    if real is not None or stop_token is not None:
        require(0 <= pad_token < size, "pad_token", f"a token below the vocabulary's size {size}", pad_token)
    least, largest = (int(end) for end in tokens.aminmax())
    outside = least if least < 0 else largest
    require(0 <= outside < size, "tokens", f"below the vocabulary's size {size} and at least 0", outside)
    if model.max_length is not None and tokens.shape[1] + max_new_tokens > model.max_length:
        raise InputError(
            f"max_new_tokens must be at most {max(model.max_length - tokens.shape[1], 0)} after a prompt of "
            f"{tokens.shape[1]} tokens (max_seq_len={model.max_length}), got {max_new_tokens}; "
            "shorten the prompt or ask for fewer"
        )
    stops = None if stop_token is None else torch.as_tensor(stop_token, dtype=torch.long, device=tokens.device)
    with evaluating(model), _without_gradients(model):
        cache = model.new_cache() if use_cache else None
        running = torch.ones(tokens.shape[0], dtype=torch.bool, device=tokens.device)
        newest = tokens
        generated = [tokens]  # joined at the end, since with a cache only the newest tokens are needed
        for _ in range(max_new_tokens):
            if cache is None:
                logits = model.next_logits(torch.cat(generated, dim=1), real=real)
            else:  # the prompt once, then one token at a time; the cache stores the padding
                logits = model.next_logits(newest, cache, real if cache.length == 0 else None)
            chosen = sample(logits, temperature, top_k, top_p, generator)
            if stops is not None:
                chosen = torch.where(running, chosen, pad_token)
            newest = chosen.unsqueeze(1)
            generated.append(newest)
            if real is not None and cache is None:
                real = torch.cat([real, torch.ones_like(newest, dtype=torch.bool)], dim=1)
            if stops is not None:
                running = running & ~torch.isin(chosen, stops)
                if not running.any():
                    break
    return torch.cat(generated, dim=1)  # outside inference mode, so that the result is an ordinary tensor


def _without_gradients(model: DecodingModel) -> AbstractContextManager[Any]:
    """Return inference mode, which makes small models an eighth faster, or no_grad for sharded weights.

    Sharded weights are gathered into buffers that training uses again, which must not be inference tensors.
    """
    return torch.no_grad() if hasattr(model.readout, "full_tensor") else torch.inference_mode()


def pad_left(
    tokens: Tensor | Sequence[Sequence[int] | Tensor], pad_token: int, device: torch.device
) -> tuple[Tensor, Tensor | None]:
    """Return the prompts as one tensor, and a mask that is False at padding (None if there is no padding)."""
    given = [torch.as_tensor(row) for row in tokens]
    if any(row.is_floating_point() and row.numel() for row in given):
        raise InputError("tokens must be integers, the ids of a vocabulary, got floating-point numbers; give ids")
    rows = [row.long() for row in given]
    if any(row.dim() != 1 for row in rows):
        raise InputError("tokens must be one prompt a row, B T or a list of prompts, got one prompt; give [tokens]")
    if not rows or any(len(row) == 0 for row in rows):
        raise InputError("every prompt must have at least one token; start an empty one with the end-of-text token")
    if isinstance(tokens, Tensor):
        return tokens.long().to(device), None
    longest = max(len(row) for row in rows)
    padded = torch.full((len(rows), longest), pad_token, dtype=torch.long)
    real = torch.zeros(len(rows), longest, dtype=torch.bool)
    for i, row in enumerate(rows):
        padded[i, longest - len(row) :] = row
        real[i, longest - len(row) :] = True
    return padded.to(device), None if real.all() else real.to(device)


def sample(
    logits: Float[Tensor, "B C"],
    temperature: float,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
) -> Int[Tensor, "B"]:
    """Draw a token for each row. top_k keeps the k likeliest tokens; top_p the fewest that reach probability p."""
    if temperature == 0:
        return logits.argmax(-1)
    logits = logits.float() / temperature
    if top_k is not None and top_k < logits.shape[-1]:
        kth = logits.topk(top_k).values[:, -1:]
        logits = logits.masked_fill(logits < kth, float("-inf"))
    if top_p is not None:
        ordered, order = logits.sort(descending=True, dim=-1)
        probabilities = ordered.softmax(-1)
        before = probabilities.cumsum(-1) - probabilities  # the total probability of likelier tokens
        dropped = (before >= top_p).scatter(-1, order, before >= top_p)
        logits = logits.masked_fill(dropped, float("-inf"))
    return torch.multinomial(logits.softmax(-1), 1, generator=generator).squeeze(-1)
