"""Our tokenizers as Hugging Face's fast ones: the same ids for any text, and the same text for any ids.

Two habits of theirs are turned off, since they change ids: a text that spells a special token's name is split like any
other text (`split_special_tokens`), and nothing is put before or after a text. Between the two texts of a pair stands
the end of text, as our tasks join them. What ends a document also begins the next one, so it is `bos_token`, too.
Batches are padded on the left, as generation needs them.
"""

import tokenizers
from transformers import PreTrainedTokenizerFast

from attractor.corpus.tokenizer import N_BYTES, SPECIALS, ByteTokenizer, Tokenizer


def as_fast_tokenizer(tokenizer: Tokenizer, model_max_length: int | None = None) -> PreTrainedTokenizerFast:
    """`model_max_length` is the longest sequence that the model has positions for; None where it has no end."""
    is_bytes = isinstance(tokenizer, ByteTokenizer)
    spelled = _bytes() if is_bytes else tokenizers.Tokenizer.from_str(tokenizer.definition.decode())
    end, pad = (spelled.id_to_token(token) for token in (tokenizer.end_of_text, tokenizer.pad))
    spelled.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A", pair=f"$A {end} $B", special_tokens=[(end, tokenizer.end_of_text)]
    )
    longest = {} if model_max_length is None else {"model_max_length": model_max_length}
    return PreTrainedTokenizerFast(
        tokenizer_object=spelled,
        bos_token=end,
        eos_token=end,
        pad_token=pad,
        padding_side="left",
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
        **longest,
    )


def _bytes() -> tokenizers.Tokenizer:
    """Byte-pair encoding without pairs, whose ids are the bytes. Words are not looked for, as nothing is merged."""
    signs = {sign: byte for byte, sign in enumerate(_byte_signs())}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=signs, merges=[]))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens([SPECIALS[token] for token in sorted(SPECIALS)])  # they get the next free ids, in order
    return made


def _byte_signs() -> list[str]:
    """The library's sign for each byte: itself where it prints; those from U+0100 on stand for the rest, in order."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    others = iter([sign for sign in alphabet if ord(sign) >= N_BYTES])
    return [chr(byte) if chr(byte) in alphabet else next(others) for byte in range(N_BYTES)]
