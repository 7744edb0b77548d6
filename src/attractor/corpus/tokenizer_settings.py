"""Store what a Hugging Face folder says about its tokenizer and its generation, beyond the tokens themselves.

    reader              the version of transformers that read the tokenizer; null if the files were read as they are
    tokenizer           the fields in which its tokenizer.json differs from attractor's own file of the tokenizer
    tokenizer_config    tokenizer_config.json: names of special tokens, and the chat template
    generation_config   generation_config.json: sampling settings, and the ids that end a text; empty without the file
    config              the ids of the beginning, the end and the padding in config.json

An imported run stores these facts in `tokenizer_settings.json` beside its tokenizer. They come from strangers: they are
JSON, nothing in them is executed here, and fields that name code or files are left out.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from attractor.errors import InputError, require_package
from attractor.files import in_json

SETTINGS_FILE = "tokenizer_settings.json"
CHAT_TEMPLATE = "chat_template"
PARTS = ("tokenizer", "tokenizer_config", "generation_config", "config")
NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
FURTHER = ("additional_special_tokens", "extra_special_tokens")
IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
CODE_AND_FILES = ("auto_map", "tokenizer_class", "tokenizer_file", "vocab_file", "merges_file", "name_or_path")
SAMPLED = ("do_sample", "temperature", "top_k", "top_p", "max_length", "max_new_tokens", "use_cache")
SILENT = ("_from_model_config", "transformers_version", *IDS, *SAMPLED)
PLAIN_CLASS = "PreTrainedTokenizerFast"  # it does what tokenizer.json says, and nothing of its own


@dataclass(frozen=True)
class TokenizerSettings:
    """The facts, with the definition of the tokenizer that they belong to."""

    definition: bytes
    reader: str | None
    tokenizer: dict[str, Any]
    tokenizer_config: dict[str, Any]
    generation_config: dict[str, Any]
    config: dict[str, Any]

    @classmethod
    def of(cls, facts: Mapping[str, Any], definition: bytes, where: str) -> Self:
        """Check the facts of a file or folder, and leave out what names code or files."""

        def check(condition: bool, name: str, rule: str, value: object) -> None:
            if not condition:
                got = f"{value!r:.60}"
                raise InputError(f"{name} of '{where}' must be {rule}, got {got}; mend it where the model is from")

        for name in PARTS:
            check(isinstance(facts.get(name), dict), name, "a JSON object", facts.get(name))
        parts: dict[str, dict[str, Any]] = {name: facts[name] for name in PARTS}
        for part in (parts["config"], parts["generation_config"]):
            for name in IDS:
                value = part.get(name)
                ids = value if isinstance(value, list) else [value]
                is_valid = all(token is None or type(token) is int for token in ids)
                check(is_valid, name, "an id of a token or a list of ids", value)
            for name in ("temperature", "top_k", "top_p"):
                check(isinstance(part.get(name), int | float | None), name, "a number", part.get(name))
        named = {name: value for name, value in parts["tokenizer_config"].items() if name not in CODE_AND_FILES}
        for name in NAMED:
            if isinstance(named.get(name), dict):  # its other properties are in tokenizer.json
                named[name] = named[name].get("content")
            check(isinstance(named.get(name), str | None), name, "the text of a token", named.get(name))
        for name in FURTHER:
            check(isinstance(named.get(name), list | dict | None), name, "a list of tokens", named.get(name))
        template = named.get(CHAT_TEMPLATE)
        entries = template if isinstance(template, list) else [{"name": "default", "template": template or ""}]
        is_valid = all(isinstance(entry, dict) and isinstance(entry.get("template"), str) for entry in entries)
        check(is_valid, CHAT_TEMPLATE, "a text or a list of named templates", template)
        check(isinstance(facts.get("reader"), str | None), "reader", "a version or null", facts.get("reader"))
        check(isinstance(parts["tokenizer"].get("model", {}), dict), "model", "a JSON object", parts["tokenizer"])
        return cls(definition, facts.get("reader"), **parts | {"tokenizer_config": named})

    @classmethod
    def beside(cls, tokenizer_file: Path) -> Self | None:
        """Return the settings beside a run's file of its tokenizer; None for a run without them."""
        path = tokenizer_file.with_name(SETTINGS_FILE)
        if not (path.is_file() and tokenizer_file.is_file()):
            return None
        try:
            facts = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            facts = None
        if not isinstance(facts, dict):
            raise InputError(f"'{path}' is damaged: it must hold one JSON object; import the model anew")
        return cls.of(facts, tokenizer_file.read_bytes(), str(path))

    def stored(self) -> bytes:
        return in_json({name: getattr(self, name) for name in ("reader", *PARTS)}).encode()

    @property
    def files(self) -> dict[str, dict[str, Any]]:
        """Return the files of a Hugging Face folder by name, as JSON objects."""
        spelled = json.loads(self.definition)
        model = {"model": spelled["model"] | self.tokenizer.get("model", {})}
        files = {
            "tokenizer.json": spelled | self.tokenizer | model,
            "tokenizer_config.json": self.tokenizer_config | {"tokenizer_class": PLAIN_CLASS},
        }
        return files | ({"generation_config.json": self.generation_config} if self.generation_config else {})

    @property
    def has_chat_template(self) -> bool:
        return bool(self.tokenizer_config.get(CHAT_TEMPLATE))

    @cached_property
    def _rust(self) -> Any:
        library = require_package("tokenizers")
        try:
            rust = library.Tokenizer.from_str(json.dumps(self.files["tokenizer.json"]))
        except Exception as error:  # the library raises bare Exceptions
            raise InputError(
                f"post_processor and the other fields of tokenizer.json must be as the tokenizers library writes them, "
                f"but are not ({error}); fetch tokenizer.json again, and import the model anew"
            ) from error
        rust.no_padding()
        rust.no_truncation()
        texts = [self.tokenizer_config.get(name) for name in NAMED]
        for tokens in (self.tokenizer_config.get(name) or [] for name in FURTHER):
            texts += tokens.values() if isinstance(tokens, dict) else tokens
        rust.add_special_tokens([text for text in texts if isinstance(text, str)])
        rust.encode_special_tokens = bool(self.tokenizer_config.get("split_special_tokens"))
        return rust

    def spell(self, text: str, specials: bool = True) -> list[int]:
        """Return the tokens as the model's own tokenizer does: it reads the name of a special token as that token.

        With `specials`, it also puts the tokens before and after the text that its post-processor demands."""
        return list(self._rust.encode(text, add_special_tokens=specials).ids)

    def spell_as_text(self, text: str) -> list[int]:
        """Return the tokens of a text in which the name of a special token is text, as everywhere in this project."""
        return list(self._text_rust.encode(text, add_special_tokens=False).ids)

    @cached_property
    def _text_rust(self) -> Any:
        rust = require_package("tokenizers").Tokenizer.from_str(self._rust.to_str())
        rust.encode_special_tokens = True
        return rust

    def names(self, ids: Iterable[int]) -> str:
        """Return the tokens for a message, as in `'<|im_end|>' or '</s>'`."""
        return " or ".join(f"'{self._rust.id_to_token(token)}'" for token in ids)

    def _id(self, name: str) -> int | None:
        """Return the id of a special token that tokenizer_config.json names by its text."""
        text = self.tokenizer_config.get(name)
        return None if text is None else self._rust.token_to_id(text)

    @property
    def beginning(self) -> int | None:
        """The token that the tokenizer names as the beginning of a text; many tokenizers name none."""
        return self._id("bos_token")

    @property
    def end(self) -> int | None:
        return self._id("eos_token")

    @property
    def start(self) -> int | None:
        """The token after which a text is predicted."""
        return first_id(self.beginning, self.config.get("bos_token_id"), self.end)

    @property
    def always_starts(self) -> bool:
        """Whether the tokenizer puts `start` before every text."""
        return self.spell("")[:1] == [self.start]

    @property
    def stops(self) -> tuple[int, ...]:
        """The tokens that end generated text."""
        return stop_ids(self.generation_config, self.config, self.end)

    def stopping_at(self, end_of_text: int) -> Self:
        """Return the settings with one more end of generated text: that of the documents on which a run is trained."""
        if end_of_text in self.stops:
            return self
        ids = self.generation_config or self.config
        return replace(self, generation_config=ids | {"eos_token_id": [*self.stops, end_of_text]})

    @property
    def sampling(self) -> dict[str, Any]:
        """Return temperature, top_k and top_p of a generation that samples; nothing where it does not."""
        stated = self.generation_config
        if not stated.get("do_sample"):
            return {}
        settings = {
            "temperature": stated.get("temperature") or 1.0,
            "top_k": stated.get("top_k"),
            "top_p": stated.get("top_p"),
        }
        return {name: value for name, value in settings.items() if value}

    def describe(self) -> str:
        """Say what was read of the tokenizer."""
        begins = self.names(self.spell("")[:1]) if self.always_starts else "no token"
        chat = "a chat template" if self.has_chat_template else "no chat template"
        ends = self.names(self.stops) or "none"
        reader = f"as {self.reader} reads it" if self.reader else "as its files say, which transformers did not read"
        return f"tokenizer: puts {begins} first, ends of a text are {ends}, {chat}; {reader}"

    def describe_generation(self) -> str:
        """Say how the prompt begins, what ends the text, and which settings `attractor generate` does not apply."""
        begins = f"begins with {self.names(self.spell('')[:1])}" if self.always_starts else "begins as it is"
        ends = f"ends at {self.names(self.stops)}" if self.stops else "has no end but its length"
        unused = ", ".join(further_settings(self.generation_config))
        return f"the prompt {begins}; the text {ends}" + (f"; not applied: {unused}" if unused else "")

    @property
    def specials(self) -> frozenset[int]:
        tokens = self._rust.get_added_tokens_decoder().items()
        return frozenset(token for token, properties in tokens if properties.special)


def as_ids(value: Any) -> list[int]:
    """Return the ids of a field that may hold null, one id, or a list of ids. Some files have -1 for none."""
    values = value if isinstance(value, list) else [value]
    return [token for token in values if token is not None and token >= 0]


def first_id(*values: Any) -> int | None:
    return next((ids[0] for value in values if (ids := as_ids(value))), None)


def stop_ids(generation: Mapping[str, Any], config: Mapping[str, Any], end: int | None) -> tuple[int, ...]:
    """Return the ids that end generated text: those of generation_config.json, else of config.json, else the end."""
    stated = (as_ids(holder.get("eos_token_id")) for holder in (generation, config))
    return next((tuple(ids) for ids in stated if ids), () if end is None else (end,))


def further_settings(generation: Mapping[str, Any]) -> list[str]:
    """Return the settings of generation_config.json that change a text beyond sampling, such as repetition_penalty."""
    return [name for name, value in generation.items() if name not in SILENT and value not in (None, False, 0, 1)]
