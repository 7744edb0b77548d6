"""Continue a prompt until a stop string, an ending token or a maximum of new tokens, and return the text.

A stop string may begin and end within tokens, and a model may spell it with any tokens, so the text is searched.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from attractor.corpus.tokenizer_settings import further_settings
from attractor.evaluate.causal import Causal
from attractor.models.generate import sample
from attractor.models.language_model import LanguageModel
from attractor.models.recurrent import RecurrentModel


@torch.no_grad()
def continuation(
    causal: Causal,
    prompt: Sequence[int],
    max_new_tokens: int,
    stops: Sequence[str] = (),
    sampling: Mapping[str, Any] | None = None,
) -> str:
    """Return the continuation up to the first stop string or ending token, without special tokens.

    `sampling` has temperature (0, the default, is greedy), top_k and top_p. If generation_config.json has
    further settings, such as a repetition penalty, transformers generates and applies them."""
    tokens = torch.tensor([list(prompt)], device=causal.device)
    settings = {"temperature": 0.0, **(sampling or {})}
    if isinstance(causal.model, LanguageModel) and not further_settings(causal.generation):
        new = _by_ours(causal, causal.model, tokens, max_new_tokens, stops, settings)
    else:
        new = _by_theirs(causal, tokens, max_new_tokens, stops, settings)
    length = next((i for i, token in enumerate(new) if token in causal.ends), len(new))
    return before_any(causal.decode([token for token in new[:length] if token not in causal.specials]), stops)


def before_any(text: str, stops: Sequence[str]) -> str:
    return text[: min((place for stop in stops if (place := text.find(stop)) >= 0), default=len(text))]


def _by_ours(
    causal: Causal,
    model: LanguageModel,
    tokens: Tensor,
    max_new_tokens: int,
    stops: Sequence[str],
    settings: Mapping[str, Any],
) -> list[int]:
    # Each iteration of a recurrent model would need a cache of its own.
    cache = None if isinstance(model, RecurrentModel) else model.new_cache()
    fresh, new = tokens, list[int]()
    with causal.computing():
        while len(new) < max_new_tokens and not _stopped(causal, new, stops):
            chosen = sample(model(fresh, cache=cache)[0][:, -1], **settings).unsqueeze(1)
            fresh = torch.cat([fresh, chosen], dim=1) if cache is None else chosen
            new.append(int(chosen))
    return new


def _by_theirs(
    causal: Causal, tokens: Tensor, max_new_tokens: int, stops: Sequence[str], settings: Mapping[str, Any]
) -> list[int]:
    n_prompt = tokens.shape[1]

    def stopped(ids: Tensor, _: Any) -> Tensor:
        return torch.tensor([_stopped(causal, ids[0, n_prompt:].tolist(), stops)], device=ids.device)

    with causal.computing():
        generated = causal.generator.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            max_new_tokens=max_new_tokens,
            eos_token_id=[*causal.ends] or None,
            pad_token_id=next(iter(causal.ends), None),
            stopping_criteria=[stopped],
            **({"do_sample": True, **settings} if settings["temperature"] else {"do_sample": False}),
        )
    return generated[0, n_prompt:].tolist()


def _stopped(causal: Causal, new: list[int], stops: Sequence[str]) -> bool:
    """Whether an ending token was generated, or a stop string is in the text of the latest tokens."""
    if not new or not stops:
        return bool(new) and new[-1] in causal.ends
    # A character takes at most four tokens, those of its bytes; eight more may be cut at either end.
    latest = new[-(4 * max(map(len, stops)) + 8) :]
    return new[-1] in causal.ends or any(stop in causal.decode(latest) for stop in stops)
