"""Convert attractor's tokenizers to Hugging Face's fast ones: equal ids for any text, and equal text for any ids.

Two defaults that would change ids are turned off: a text that spells the name of a special token is split like any
other text (`split_special_tokens`), and no tokens are added around a text. The texts of a pair are separated by the end
of text, as attractor's tasks join them. The end of a document also begins the next, so it is `bos_token` as well.
Batches are padded on the left, as generation requires.

The tokenizer of an imported model is what its settings say instead, chat template included.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from attractor.corpus.tokenizer import N_BYTES, SPECIALS, ByteTokenizer, Tokenizer
from attractor.corpus.tokenizer_settings import TokenizerSettings
from attractor.errors import InputError
from attractor.files import write_json
from attractor.files.code import time_limit

TEMPLATE_SECONDS = 10.0
TEMPLATE_BYTES = 1 << 30


def as_fast_tokenizer(tokenizer: Tokenizer, model_max_length: int | None = None) -> PreTrainedTokenizerFast:
    """Return the fast tokenizer. `model_max_length` is the number of the model's positions; None means no limit."""
    is_bytes = isinstance(tokenizer, ByteTokenizer)
    fast = _bytes() if is_bytes else tokenizers.Tokenizer.from_str(tokenizer.definition.decode())
    end, pad = (fast.id_to_token(token) for token in (tokenizer.end_of_text, tokenizer.pad))
    fast.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A", pair=f"$A {end} $B", special_tokens=[(end, tokenizer.end_of_text)]
    )
    limit = {} if model_max_length is None else {"model_max_length": model_max_length}
    return PreTrainedTokenizerFast(
        tokenizer_object=fast,
        bos_token=end,
        eos_token=end,
        pad_token=pad,
        padding_side="left",
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
        **limit,
    )


def original_tokenizer(settings: TokenizerSettings) -> PreTrainedTokenizerFast:
    """Return the tokenizer of an imported model as its origin describes it."""
    with TemporaryDirectory() as folder:
        write_settings(settings, Path(folder))
        return PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)


def render_chat(tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, str]], **options: Any) -> str:
    """Return a chat as text, by the tokenizer's template. It comes from anybody, so its time and memory are limited."""
    try:
        with limited(TEMPLATE_SECONDS, TEMPLATE_BYTES):
            return str(tokenizer.apply_chat_template(messages, tokenize=False, **options))
    except Exception as error:  # a template raises what it likes
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise InputError(
            f"chat_template must render a message, and fails ({reason}); leave the chat out, or give another model"
        ) from error


@contextmanager
def limited(seconds: float, n_bytes: int) -> Iterator[None]:
    """Raise a TimeoutError or a MemoryError in this block if it takes longer or more memory, on Linux."""
    statistics = Path("/proc/self/statm")
    if not statistics.exists() or threading.current_thread() is not threading.main_thread():
        yield
        return
    import resource

    taken = int(statistics.read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    soft = min(limit for limit in (taken + n_bytes, *before) if limit != resource.RLIM_INFINITY)
    resource.setrlimit(resource.RLIMIT_AS, (soft, before[1]))
    try:
        with time_limit(seconds):
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def write_settings(settings: TokenizerSettings, folder: Path) -> None:
    for name, content in settings.files.items():
        write_json(folder / name, content)


def _bytes() -> tokenizers.Tokenizer:
    """Return a byte-pair encoding without merges, whose ids are the bytes. Without merges, words need no splitting."""
    characters = {character: byte for byte, character in enumerate(_byte_characters())}
    fast = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=characters, merges=[]))
    fast.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    fast.decoder = tokenizers.decoders.ByteLevel()
    fast.add_special_tokens([SPECIALS[token] for token in sorted(SPECIALS)])  # they get the next free ids, in order
    return fast


def _byte_characters() -> list[str]:
    """Return the library's character for every byte: the printable one, or the next from U+0100 on."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    others = iter([character for character in alphabet if ord(character) >= N_BYTES])
    return [chr(byte) if chr(byte) in alphabet else next(others) for byte in range(N_BYTES)]
