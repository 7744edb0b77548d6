"""Import a Hugging Face folder as a run of no steps, so that every command can use the model.

The run's config.json names the model and, in place of a corpus, its origin. tokenizer.json is the model's tokenizer.
tokenizer_settings.json holds what else its folder says about texts and chats (corpus/tokenizer_settings.py). The only
checkpoint holds the imported weights, and summary.json describes them. No file of the run holds an absolute path.
"""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from attractor.corpus import bpe
from attractor.corpus.tokenizer import ByteTokenizer
from attractor.corpus.tokenizer_settings import CHAT_TEMPLATE, IDS, SETTINGS_FILE, TokenizerSettings
from attractor.errors import InputError, require
from attractor.files import refuse_inhabited
from attractor.hf.import_models import describe, import_model
from attractor.hf.safetensors import StoredWeights, read_object
from attractor.models.config import ModelConfig
from attractor.models.language_model import LanguageModel
from attractor.runs.run_folder import RunFolder
from attractor.tasks.text import Text
from attractor.train import checkpoint
from attractor.train.checkpoint import TrainState
from attractor.train.config import TrainConfig
from attractor.train.saved_tokenizer import ELSEWHERE
from attractor.train.saved_tokenizer import TOKENIZER_FILE as TOKENIZER

RAW = ("tokenizer.model", "vocab.json", "spiece.model", "tekken.json")
TRAINED_LENGTH = "trained_length"  # of an export's config.json: the length of training sequences
FIELDS = ("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder")  # of tokenizer.json
TOKENS = ("type", "vocab", "merges")  # the fields of its model that hold the tokens
PRINTABLE = bytes(range(32, 127)).decode()
CONVERSION = "from transformers import AutoTokenizer as T; T.from_pretrained({0!r}).save_pretrained({0!r})"


def import_run(folder: str | Path, out: str | Path) -> RunFolder:
    """Write the model of a Hugging Face folder as a run."""
    folder, out = Path(folder).expanduser(), Path(out)
    refuse_inhabited(out)
    described = describe(folder)
    model = import_model(folder)
    files = tokenizer_files(folder, model.config, described)
    name = folder.resolve().name
    origin = {
        "from": name,
        "model_type": described["model_type"],
        "weights_sha256": StoredWeights.open(folder).fingerprint,
        **({} if files else {"token_ids": ids_in(described)}),
    }
    return write_run(out, model, imported_config(model.config, name, described), files, "imported", origin)


def imported_config(model: ModelConfig[LanguageModel], name: str, described: Mapping[str, Any]) -> TrainConfig:
    seq_len = trained_length(described, model.max_seq_len)
    return TrainConfig(model=model, task=Text(f"{ELSEWHERE}{name}"), n_steps=1, warmup_steps=0, seq_len=seq_len)


def trained_length(described: Mapping[str, Any], longest: int) -> int:
    """Return the length of training sequences, which attractor's exports state, or else the longest sequence."""
    if TRAINED_LENGTH not in described:
        return longest
    length = described[TRAINED_LENGTH]
    require(type(length) is int and length >= 1, TRAINED_LENGTH, "a whole number above 0", length, "mend config.json")
    return int(length)


def write_run(
    out: Path,
    model: LanguageModel,
    config: TrainConfig,
    files: Mapping[str, bytes],
    what: str,
    origin: Mapping[str, Any],
) -> RunFolder:
    """Write the run folder, with `files` by name. The summary comes last: a folder without one counts as unfinished."""
    refuse_inhabited(out)
    stored = config.to_dict() | {"start_weights": origin["weights_sha256"]}
    run = RunFolder.create(out, stored)
    with run.hold():
        for file, content in files.items():
            run.write(file, content)
        checkpoint.save_checkpoint(run, model.state_dict(), {}, TrainState())
        n_parameters = sum(p.numel() for p in model.parameters())
        facts = {"label": config.label, "n_parameters": n_parameters, "steps": 0, "tokens": 0, what: dict(origin)}
        run.write_summary(facts)
    return run


def tokenizer_files(folder: Path, model: ModelConfig[LanguageModel], described: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the files that a run keeps of the folder's tokenizer, by name; none without a tokenizer.json."""
    definition = tokenizer_definition(folder, model)
    if definition is None:
        return {}
    if definition == ByteTokenizer.definition:
        return {TOKENIZER: definition}
    settings = TokenizerSettings.of(tokenizer_facts(folder, definition, described), definition, str(folder))
    start = settings.start
    rule = f"a token that the model has a vector for, of {model.vocab_size}"
    require(start is None or start < model.vocab_size, "bos_token", rule, start, "mend it in tokenizer_config.json")
    return {TOKENIZER: definition, SETTINGS_FILE: settings.stored()}


def tokenizer_facts(folder: Path, definition: bytes, described: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the folder says beyond the tokens, as TokenizerSettings stores it.

    Some classes of transformers build their tokenizer otherwise than tokenizer.json says. Where transformers is
    installed, its tokenizer counts."""
    spelled = json.loads(definition)
    with TemporaryDirectory() as place:
        reader = save_as_transformers_reads(folder, Path(place))
        source = folder if reader is None else Path(place)
        model = read_object(source / TOKENIZER)["model"]
        if any(model.get(name) != spelled["model"].get(name) for name in TOKENS):
            reader, source = None, folder
        stored, named, older = (
            read_object(source / file) if (source / file).is_file() else {}
            for file in (TOKENIZER, "tokenizer_config.json", "special_tokens_map.json")
        )
        templates = {path.stem: path for path in sorted(source.glob("additional_chat_templates/*.jinja"))}
        if (source / "chat_template.jinja").is_file():
            templates["default"] = source / "chat_template.jinja"
        texts = [{"name": name, "template": template_in(path)} for name, path in templates.items()]
    if "added_tokens_decoder" not in named:  # otherwise the older file does not count
        named |= older
    if texts:  # they count before a template in tokenizer_config.json
        named[CHAT_TEMPLATE] = texts[0]["template"] if templates.keys() == {"default"} else texts
    generation = folder / "generation_config.json"
    return {
        "reader": reader,
        "tokenizer": {name: value for name, value in stored.items() if name in FIELDS and spelled[name] != value}
        | {"model": {name: value for name, value in stored["model"].items() if name not in TOKENS}},
        "tokenizer_config": named,
        "generation_config": read_object(generation) if generation.is_file() else {},
        "config": ids_in(described),
    }


def ids_in(described: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ids of special tokens that config.json states."""
    return {name: described[name] for name in IDS if described.get(name) is not None}


def template_in(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"'{path.name}' must be text in UTF-8, and byte {error.start} is not; fetch it again"
        ) from error


def save_as_transformers_reads(folder: Path, place: Path) -> str | None:
    """Save the folder's tokenizer as transformers reads it, and return the version; None if it does not read it."""
    try:
        import transformers

        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        tokenizer.save_pretrained(place)
    except Exception:  # transformers is absent, or fails on a stranger's file in one of many ways; the import says so
        return None
    return f"transformers {transformers.__version__}" if (place / TOKENIZER).is_file() else None


def tokenizer_definition(folder: Path, model: ModelConfig[LanguageModel]) -> bytes | None:
    """Return the definition of the folder's tokenizer, or None without a tokenizer.json."""
    if not (folder / TOKENIZER).is_file():
        return None
    content = read_object(folder / TOKENIZER)
    # Corpora hold no tokens before or after a text. Without this field an exported model is imported as it was.
    content["post_processor"] = None
    tokenizer = bpe.BytePairs(json.dumps(content).encode(), folder.name)
    if is_bytes(tokenizer, content):
        return ByteTokenizer.definition
    if tokenizer.vocab_size > model.vocab_size:
        rule = f"at most the {model.vocab_size} tokens that the model has vectors for"
        raise InputError(
            f"{TOKENIZER} of '{folder}' must have {rule}, got {tokenizer.vocab_size}, its end of text "
            f"({tokenizer.end_of_text}) included; put the one beside the model that it was trained with"
        )
    return tokenizer.definition


def is_bytes(tokenizer: bpe.BytePairs, definition: Mapping[str, Any]) -> bool:
    """Whether this is attractor's exported byte tokenizer: without merges, with the same special tokens."""
    expected = ByteTokenizer()
    has_same_ends = (tokenizer.end_of_text, tokenizer.pad) == (expected.end_of_text, expected.pad)
    is_alike = has_same_ends and not definition["model"].get("merges", True)
    return is_alike and tokenizer.encode(PRINTABLE).tolist() == expected.encode(PRINTABLE).tolist()


def missing_tokenizer_message(folder: Path) -> str:
    """Explain what is not possible without the model's tokenizer, and how to get one."""
    raw = next((name for name in RAW if (folder / name).is_file()), None)
    lacking = (
        f"'{folder}' has no {TOKENIZER}, so this run can neither generate text nor read texts, and train only on "
        "prepared corpora of its vocabulary; "
    )
    if raw is None:
        return lacking + "copy the model's there and import it anew"
    code = CONVERSION.format(str(folder))
    return lacking + f"make one of its {raw} with: python -c {shlex.quote(code)}, and import it anew"
