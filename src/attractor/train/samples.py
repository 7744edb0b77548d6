"""Sample text from a trained model: a continuation of a prompt, and the samples that a finished run keeps."""

from collections.abc import Sequence

import torch

from attractor.corpus.tokenizer import Tokenizer
from attractor.corpus.tokenizer_settings import TokenizerSettings
from attractor.errors import InputError, require_seed
from attractor.models.language_model import LanguageModel
from attractor.models.recurrent import RecurrentModel
from attractor.runs.run_folder import RunFolder
from attractor.tasks.text import Text
from attractor.train.finished import finished_run
from attractor.train.saved_tokenizer import saved_settings, tokenizer_of_run

TEMPERATURES = (0.0, 0.8)
LENGTH = 200


def continuation(
    model: LanguageModel,
    tokenizer: Tokenizer,
    prompt: str | Sequence[int],
    max_new_tokens: int,
    temperature: float,
    seed: int,
    top_k: int | None = None,
    top_p: float | None = None,
    settings: TokenizerSettings | None = None,
) -> str:
    """Return the text that the model samples after the prompt, a text or tokens. An empty prompt starts a document.

    `settings` are those of an imported model. They name the tokens that begin and end a text, and special tokens, which
    are left out."""
    require_seed(seed)
    end = tokenizer.end_of_text
    start = [token for token in (end if settings is None else settings.start,) if token is not None]
    stops = (end,) if settings is None else settings.stops
    silent = frozenset([tokenizer.pad]) if settings is None else settings.specials
    tokens = prompt
    if isinstance(prompt, str):
        tokens = tokenizer.encode(prompt).tolist() if settings is None else settings.spell(prompt)
    prompt_tokens = [int(token) for token in tokens] or start
    if not prompt_tokens:
        raise InputError("prompt must not be empty, since the tokenizer names no beginning of a text, got ''; give one")
    generated = model.generate(
        [prompt_tokens],
        max_new_tokens,
        temperature,
        top_k,
        top_p,
        stop_token=stops or None,
        pad_token=tokenizer.pad,
        generator=torch.Generator(model.device).manual_seed(seed),
        use_cache=not isinstance(model, RecurrentModel),  # every iteration would need a cache of its own
    )[0].tolist()
    # A model that has hardly been trained also samples ids that stand for no text.
    sampled = generated[len(prompt_tokens) :]
    return tokenizer.decode([token for token in sampled if token < tokenizer.n_spelled and token not in silent])


def keep_samples(folder: RunFolder, device: torch.device) -> None:
    """Store short samples of a finished run on text, from the weights of its last step.

    The run is saved before, and its weights are read from the checkpoint, so samples cannot change a result.
    """
    if folder.config["task"]["kind"] != Text.kind or folder.samples:
        return
    model = finished_run(folder.path, device, "last").model
    tokenizer = tokenizer_of_run(folder)
    length = LENGTH if model.max_length is None else min(LENGTH, model.max_length - 1)
    settings = saved_settings(folder.path)
    texts = {t: continuation(model, tokenizer, "", length, t, seed=0, settings=settings) for t in TEMPERATURES}
    folder.write_samples([{"temperature": t, "seed": 0, "text": text} for t, text in texts.items()])
