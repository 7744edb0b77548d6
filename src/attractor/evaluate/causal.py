"""Load a causal language model from a run folder, an export of a run, or a Hugging Face folder, behind one interface.

    logits = causal.logits(tokens)          B T V: logits of the next token at every position

Nothing is downloaded, nothing is unpickled, and no code of a folder is run. transformers is imported only for its own
models.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attractor.corpus.tokenizer import special_tokens
from attractor.corpus.tokenizer_settings import PLAIN_CLASS, TokenizerSettings, first_id, stop_ids
from attractor.errors import InputError, require
from attractor.hf.import_models import ATTRACTOR_TYPE, import_model, require_folder
from attractor.hf.import_runs import TRAINED_LENGTH, trained_length
from attractor.hf.progress_bars import without_progress_bars
from attractor.hf.safetensors import files_of, read_object
from attractor.kernels.precision import autocast, cast_module
from attractor.kernels.wide_products import widened_products
from attractor.models.language_model import LanguageModel
from attractor.runs.run_folder import RunFolder
from attractor.tasks.task import TaskConfig
from attractor.tasks.text import Text
from attractor.train.finished import CHECKPOINTS, finished_run
from attractor.train.saved_tokenizer import ELSEWHERE, saved_settings, tokenizer_of_run

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")
NOISE = 1e-2  # share of the largest logit: far above half-precision rounding, far below the effect of a changed token


@dataclass(frozen=True)
class Causal:
    """A model in evaluation mode with its tokenizer."""

    name: str
    model: nn.Module  # a LanguageModel, or a model of transformers
    vocab_size: int
    start: int | None  # the token that a text may begin after
    end: int | None  # the token that ends a text
    max_length: int | None  # the longest sequence that the model takes; None: no limit
    trained_length: int | None  # the length of training sequences, where it is known
    spell: Callable[[str], Iterable[int]] = field(repr=False)  # encodes a text as tokens
    unspell: Callable[[Sequence[int]], str] = field(repr=False)  # decodes tokens to a text
    precision: str = "fp32"  # autocast precision of matrix products, as in training
    always_starts: bool = False  # whether the tokenizer puts `start` before every text, as in training
    beginning: int | None = None  # the token that the tokenizer itself names as the beginning of a text
    stops: tuple[int, ...] = ()  # the tokens that end generated text, besides `end`
    specials: frozenset[int] = frozenset()  # tokens that are left out of generated text
    generation: Mapping[str, Any] = field(default_factory=dict)  # the fields of generation_config.json
    spell_prompt: Callable[[str, bool], list[int]] | None = field(default=None, repr=False)  # for encode_prompt
    chat_tokenizer: Callable[[], Any] | None = field(default=None, repr=False)  # of transformers, for chat templates

    def __post_init__(self) -> None:
        self._checked([] if self.start is None else [self.start])

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, without special tokens before or after it."""
        return self._checked(self.spell(text))

    def _checked(self, ids: Iterable[int]) -> list[int]:
        tokens = [int(token) for token in ids]
        if tokens and max(tokens) >= self.vocab_size:
            raise InputError(
                f"vocabulary must hold every token of the tokenizer, but '{self.name}' has {self.vocab_size} and the "
                f"token {max(tokens)}; put the tokenizer that it was trained with beside it"
            )
        return tokens

    def encode_prompt(self, text: str, specials: bool) -> list[int]:
        """Return the tokens of a prompt from the model's own tokenizer, which may read names of special tokens.

        With `specials`, the tokenizer also adds its default special tokens before or after the text."""
        if self.spell_prompt is not None:
            return self._checked(self.spell_prompt(text, specials))
        tokens = self.encode(text)
        return [self.start, *tokens] if specials and self.always_starts and self.start is not None else tokens

    def decode(self, ids: Iterable[int]) -> str:
        return self.unspell([int(token) for token in ids])

    @cached_property
    def generator(self) -> Any:
        """Return the model with the method `generate` of transformers and the settings of generation_config.json."""
        if not isinstance(self.model, LanguageModel):
            return self.model
        from transformers import GenerationConfig

        from attractor.hf.model import AttractorForCausalLM

        wrapper = AttractorForCausalLM.of(self.model)
        wrapper.generation_config = GenerationConfig.from_dict({**self.generation})
        return wrapper

    def describe(self) -> str:
        """Say after which token texts are predicted, and which tokens end generated text."""
        start = "no token" if self.start is None else f"{self.decode([self.start])!r}"
        ends = " or ".join(repr(self.decode([token])) for token in self.ends) or "none"
        return f"{self.name}: texts are predicted after {start}; tokens that end a text: {ends}"

    @property
    def ends(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys([*self.stops, *([] if self.end is None else [self.end])]))

    def logits(self, tokens: Tensor, real: Tensor | None = None) -> Tensor:
        """Return the logits. `real` is False at padding; padding after a text needs no mask, as the model is causal."""
        with self.computing():
            if isinstance(self.model, LanguageModel):
                return self.model(tokens, real=real)[0]
            inputs = {"input_ids": tokens}
            if real is not None:
                inputs["attention_mask"] = real.long()
                if "position_ids" in inspect.signature(self.model.forward).parameters:
                    inputs["position_ids"] = (real.cumsum(1) - 1).clamp(min=0)
            return self.model(**inputs, use_cache=False).logits

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Compute in this model's precision. Where that is fp32, the type of the weights decides."""
        with self.quick_products(), autocast(self.device, self.precision):
            yield

    def quick_products(self) -> AbstractContextManager[None]:
        return widened_products(next(self.model.parameters()).dtype, self.device)

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device


def load_causal(
    path: Path | str, device: torch.device, dtype: torch.dtype | None = None, checkpoint: str = CHECKPOINTS[0]
) -> Causal:
    """Load the model in a folder. The default dtype is that of validation for a run, else that of the weights."""
    folder = Path(path).expanduser()
    config = described(folder)
    if "model_type" not in config:
        causal = _of_run(folder, device, dtype, checkpoint)
    elif checkpoint != CHECKPOINTS[0]:
        raise InputError(f"checkpoint must be left out with a Hugging Face folder, got '{checkpoint}'; leave it out")
    else:
        files_of(folder)  # refuses pickled weights, before transformers is asked
        with without_progress_bars():
            loader = _of_export if config["model_type"] == ATTRACTOR_TYPE else _of_hub
            causal = loader(folder, device, dtype)
    return causal


def _of_run(folder: Path, device: torch.device, dtype: torch.dtype | None, checkpoint: str) -> Causal:
    tokenizer = tokenizer_of_run(RunFolder.open(folder))
    settings = saved_settings(folder)
    run = finished_run(folder, device, checkpoint)
    _require_causal(run.model)
    causal = Causal(
        name=folder.resolve().name,
        model=(run.model if dtype is None else cast_module(run.model, dtype)).eval(),
        vocab_size=run.model.config.vocab_size,
        start=tokenizer.end_of_text,
        end=tokenizer.end_of_text,
        max_length=run.model.max_length,
        trained_length=run.config.seq_len,
        spell=tokenizer.encode,
        unspell=lambda ids: tokenizer.decode([token for token in ids if token < tokenizer.n_spelled]),
        precision=run.config.precision if dtype is None else "fp32",
        specials=frozenset(special_tokens(tokenizer)),
    )
    if settings is not None:
        return replace(
            causal,
            start=settings.start,
            end=settings.end,
            spell=settings.spell_as_text,
            always_starts=settings.always_starts,
            beginning=settings.beginning,
            stops=settings.stops,
            specials=settings.specials,
            generation=settings.generation_config,
            spell_prompt=settings.spell,
            chat_tokenizer=lambda: _original_tokenizer(settings),
        )
    return causal


def _original_tokenizer(settings: TokenizerSettings) -> Any:
    from attractor.hf.tokenizers import original_tokenizer

    return original_tokenizer(settings)


def is_imported(task: TaskConfig) -> bool:
    """Return whether the run holds an imported model that was not trained further."""
    return isinstance(task, Text) and task.corpus.startswith(ELSEWHERE)


def _of_export(folder: Path, device: torch.device, dtype: torch.dtype | None) -> Causal:
    """Load an exported model as a LanguageModel, so that it can be observed like a run's model."""
    # Exports use this class. AutoTokenizer would ask for the model's code.
    tokenizer = _tokenizer(folder, PLAIN_CLASS)
    model = import_model(folder, dtype)
    _require_causal(model)
    config, file = described(folder), folder / "generation_config.json"
    generation = read_object(file) if file.is_file() else {}
    return Causal(
        model=model.to(device).eval(),
        vocab_size=model.config.vocab_size,
        max_length=model.max_length,
        trained_length=trained_length(config, model.config.max_seq_len),
        stops=stop_ids(generation, config, tokenizer.eos_token_id),
        generation=generation,
        **_of_tokenizer(folder, tokenizer, config.get("bos_token_id")),
    )


def _of_tokenizer(folder: Path, tokenizer: Any, beginning: int | list[int] | None) -> dict[str, Any]:
    """Return the fields that a tokenizer of transformers decides. `beginning` is the token that config.json states."""

    def spell_prompt(text: str, specials: bool) -> list[int]:
        return list(tokenizer(text, add_special_tokens=specials, verbose=False)["input_ids"])

    start = first_id(tokenizer.bos_token_id, beginning, tokenizer.eos_token_id)
    added = tokenizer.added_tokens_decoder.items()
    return {
        "name": folder.resolve().name,
        "start": start,
        "end": tokenizer.eos_token_id,
        "spell": _speller(tokenizer),
        "unspell": tokenizer.decode,
        "always_starts": start is not None and tokenizer("")["input_ids"][:1] == [start],
        "beginning": tokenizer.bos_token_id,
        "specials": frozenset(token for token, properties in added if properties.special),
        "spell_prompt": spell_prompt,
        "chat_tokenizer": lambda: tokenizer,
    }


def _require_causal(model: LanguageModel) -> None:
    require(model.config.causal, "causal", "True to predict the next token", False, "give a language model")
    require(model.config.n_classes is None, "n_classes", "None to predict the next token", model.config.n_classes)


def _of_hub(folder: Path, device: torch.device, dtype: torch.dtype | None) -> Causal:
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL

    with _explained(folder):
        config: Any = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    known = CAUSAL.get(config.model_type)
    stored = config.architectures or []
    if known is None or (stored and not {known} & {*stored}):
        kind = ", ".join(stored) or config.model_type
        raise InputError(f"model must be a causal language model, got '{folder.name}' of {kind}; give one that is")
    tokenizer = _tokenizer(folder)
    model = _loaded(folder, dtype).to(device).eval()
    text = config.get_text_config(decoder=True)
    length = getattr(text, "max_position_embeddings", None)
    causal = Causal(
        model=model,
        vocab_size=model.get_input_embeddings().num_embeddings,
        max_length=length,
        trained_length=length and trained_length(described(folder), length),
        stops=stop_ids(model.generation_config.to_dict(), {}, tokenizer.eos_token_id),
        **_of_tokenizer(folder, tokenizer, text.bos_token_id),
    )
    _refuse_foresight(causal)
    return causal


def _loaded(folder: Path, dtype: torch.dtype | None) -> Any:
    from transformers import AutoModelForCausalLM

    from attractor.hf.replace import RECORD, ReplacedModel

    loader: Any = ReplacedModel if RECORD in described(folder) else AutoModelForCausalLM
    with _explained(folder):
        loaded: Any = loader.from_pretrained(
            folder,
            dtype="auto" if dtype is None else dtype,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    model, report = loaded
    if report["missing_keys"]:
        missing = sorted(report["missing_keys"])
        raise InputError(
            f"weights must be complete, but '{folder.name}' lacks {len(missing)}, the first is '{missing[0]}'; give "
            "the folder of the whole causal language model"
        )
    return model


def _tokenizer(folder: Path, kind: str = "AutoTokenizer") -> Any:
    import transformers

    if not any((folder / name).is_file() for name in TOKENIZERS):
        raise InputError(
            f"model must have its tokenizer beside it, but '{folder}' has none of {', '.join(TOKENIZERS)}; copy it "
            "there from where the model is from"
        )
    with _explained(folder):
        return getattr(transformers, kind).from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def _speller(tokenizer: Any) -> Callable[[str], Iterable[int]]:
    """Return an encoder that treats the name of a special token as plain text, as everywhere in this project."""

    def spell(text: str) -> Iterable[int]:
        return tokenizer(text, add_special_tokens=False, split_special_tokens=True, verbose=False)["input_ids"]

    return spell


@torch.no_grad()
def _refuse_foresight(causal: Causal) -> None:
    """Refuse a model whose prediction depends on the next token: some decoder classes, stored as encoders, see it."""
    first = causal.start or 0
    logits, changed = (causal.logits(torch.tensor([[first, token]], device=causal.device))[0, 0] for token in (1, 2))
    if (logits - changed).abs().max() > NOISE * logits.abs().max():
        raise InputError(
            f"model must be causal, but what '{causal.name}' predicts depends on the next token itself; give a decoder"
        )


def length_of_training(folder: Path) -> int | None:
    """Return the length of training sequences that the config.json of a folder states, or None."""
    config = described(folder)
    name = TRAINED_LENGTH if "model_type" in config else "seq_len"
    return trained_length({TRAINED_LENGTH: config[name]}, 0) if name in config else None


def described(folder: Path) -> dict[str, Any]:
    """Return the config.json of a run or of a Hugging Face folder; only the latter has a model_type."""
    require_folder(folder)
    if not (folder / "config.json").is_file():
        raise InputError(
            f"model must be a run folder or a Hugging Face folder, but '{folder}' has no config.json; give another"
        )
    config = read_object(folder / "config.json")
    return config if "model_type" in config else RunFolder.open(folder).config  # a changed file is refused


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """Turn an error of transformers about an unreadable folder into one line."""
    try:
        yield
    except (OSError, ValueError, RuntimeError, KeyError, ImportError) as error:
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"model must be one that transformers reads without code of its own, but '{folder}' is not ({said}); "
            "mend the folder or give another"
        ) from error
