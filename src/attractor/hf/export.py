"""Export a model as a Hugging Face folder: weights, configuration, tokenizer, model card, and the code that runs it.

    config.json, generation_config.json     with `auto_map`, which names the files of the code
    model.safetensors, or shards and index
    tokenizer.json, tokenizer_config.json
    README.md                               the model card
    modeling_attractor.py and others        for machines where attractor is not installed: trust_remote_code=True

The folder is written under another name and then renamed, so it is complete or absent. The tokenizer and the settings
of generation are those of the origin if the run descends from an imported model.
"""

import json
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

from attractor.attention.config import AttentionConfig
from attractor.corpus.tokenizer import Tokenizer
from attractor.corpus.tokenizer_settings import TokenizerSettings
from attractor.errors import InputError, require
from attractor.files import follow_umask, refuse_inhabited, remove_leftovers, temporary_path, write_json
from attractor.files.code import name_in_code
from attractor.hf.architecture import Architecture
from attractor.hf.bundle import ENTRY, file_name, self_contained_code
from attractor.hf.config import AttractorConfig
from attractor.hf.foreign_export import as_foreign
from attractor.hf.import_runs import TRAINED_LENGTH
from attractor.hf.model import (
    AttractorForCausalLM,
    AttractorForSequenceClassification,
    AttractorModel,
    AttractorPreTrainedModel,
)
from attractor.hf.progress_bars import without_progress_bars
from attractor.hf.replace import RECORD, ReplacedModel
from attractor.hf.tokenizers import as_fast_tokenizer, write_settings
from attractor.models.language_model import LanguageModel

SIZE = re.compile(r"\d+(\.\d+)?\s*(KB|MB|GB|TB)", re.IGNORECASE)
LARGEST_FILE = "5GB"
AUTO_BASE: dict[str, type] = {"AutoConfig": AttractorConfig, "AutoModel": AttractorModel}
AUTO_TEXT: dict[str, type] = {"AutoModelForCausalLM": AttractorForCausalLM}
AUTO_LABELS: dict[str, type] = {"AutoModelForSequenceClassification": AttractorForSequenceClassification}


def export_model(
    model: LanguageModel,
    folder: str | Path,
    tokenizer: Tokenizer | None = None,
    card: str = "",
    self_contained: bool = True,
    max_shard_size: str = LARGEST_FILE,
    dtype: torch.dtype | None = None,
    labels: Sequence[str] = (),
    settings: TokenizerSettings | None = None,
    trained_length: int | None = None,
    to: Architecture | None = None,
    special: Mapping[str, Any] | None = None,
) -> Path:
    """Write the folder and return it.

    `dtype` None keeps the dtype of the weights. Without `self_contained` the folder has no code and needs attractor to
    be installed. `labels` are the names of a classifier's classes. `settings` are those of an imported model's
    tokenizer. `trained_length` is the length of training sequences, the default window of an evaluation. `to` is an
    architecture of transformers that describes the model; the folder then has its names and no code. `special` has the
    ids of special tokens where there is no tokenizer."""
    folder = Path(folder)
    refuse_inhabited(folder)
    if self_contained and to is None:
        step = "export with --no-self-contained (self_contained=False), and hand your file on beside the folder"
        _refuse_own_code(model.config.own_code, step)
    if SIZE.fullmatch(max_shard_size) is None:
        raise InputError(f"max_shard_size must be a size such as {LARGEST_FILE} or 500MB, got {max_shard_size!r}")
    if tokenizer is not None and tokenizer.n_spelled > model.config.vocab_size:
        raise InputError(
            f"tokenizer must have at most vocab_size={model.config.vocab_size} tokens, as the model has rows for, got "
            f"'{tokenizer.name}' with {tokenizer.n_spelled}; export with the tokenizer that it was trained with"
        )
    wrapped: PreTrainedModel
    if to is not None:
        fields = token_ids(tokenizer, settings, special) | length_field(trained_length)
        wrapped, self_contained = as_foreign(model, to, fields, dtype), False
    else:
        if dtype is not None and any(p.dtype != dtype for p in model.parameters()):
            model = deepcopy(model).to(dtype)
        wrapped = as_hugging_face(model, tokenizer, labels, settings, trained_length, special)
    with complete_or_absent(folder.resolve()) as unfinished:
        with without_progress_bars():
            wrapped.save_pretrained(unfinished, max_shard_size=max_shard_size)
        if settings is not None:
            write_settings(settings, unfinished)
        elif tokenizer is not None:
            as_fast_tokenizer(tokenizer, model.max_length).save_pretrained(unfinished)
        if to is not None and tokenizer is not None:
            refuse_rebuilt_tokenizer(unfinished, to.model_type)
        if self_contained:
            # A causal model can also be loaded as a classifier.
            of_task = {} if model.config.n_classes is not None else AUTO_TEXT
            write_code(unfinished, ENTRY, AUTO_BASE | AUTO_LABELS | of_task)
        follow_umask(*(path for path in unfinished.iterdir() if path.is_file()))
        if card:
            (unfinished / "README.md").write_text(card, encoding="utf-8")
    return folder


@contextmanager
def complete_or_absent(place: Path) -> Iterator[Path]:
    """Yield a folder under another name, which gets its own name where the block succeeds, and else is removed."""
    remove_leftovers(place.parent)
    unfinished = temporary_path(place)
    unfinished.mkdir(parents=True)
    try:
        yield unfinished
        if place.is_dir():  # it is empty, or would have been refused
            place.rmdir()
        unfinished.rename(place)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def as_hugging_face(
    model: LanguageModel,
    tokenizer: Tokenizer | None,
    labels: Sequence[str] = (),
    settings: TokenizerSettings | None = None,
    trained_length: int | None = None,
    special: Mapping[str, Any] | None = None,
) -> AttractorPreTrainedModel:
    """Wrap the model in the Hugging Face class for what it predicts: labels of sequences, or next tokens."""
    wrapper: type[AttractorPreTrainedModel] = AttractorForCausalLM
    if model.config.n_classes is not None:
        wrapper = AttractorForSequenceClassification
    rest: dict[str, Any] = {}
    if labels:
        rest |= {"id2label": dict(enumerate(labels)), "label2id": {label: i for i, label in enumerate(labels)}}
    return wrapper.of(model, **rest, **length_field(trained_length), **token_ids(tokenizer, settings, special))


def length_field(trained_length: int | None) -> dict[str, Any]:
    return {} if trained_length is None else {TRAINED_LENGTH: trained_length}


def refuse_rebuilt_tokenizer(folder: Path, model_type: str) -> None:
    """Refuse a tokenizer whose words transformers splits otherwise than its tokenizer.json says, as for Qwen2."""
    stored, read = (
        json.loads(kind.from_pretrained(folder, local_files_only=True).backend_tokenizer.to_str())
        for kind in (PreTrainedTokenizerFast, AutoTokenizer)
    )
    is_alike = all(stored[name] == read[name] for name in ("normalizer", "pre_tokenizer"))
    if not is_alike and stored["model"].get("merges"):
        raise InputError(
            f"tokenizer must split words as transformers does for every model of {model_type}, got another one, whose "
            "tokens would not be those of training; export with --to hf"
        )


def token_ids(
    tokenizer: Tokenizer | None, settings: TokenizerSettings | None, special: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the fields of config.json about special tokens."""
    if settings is not None:
        return settings.config
    if tokenizer is None:
        return dict(special or {})
    end = tokenizer.end_of_text
    return {"bos_token_id": end, "eos_token_id": end, "pad_token_id": tokenizer.pad}


def write_code(folder: Path, entry: str, classes: Mapping[str, type]) -> None:
    """Write the code, and its files' names into config.json."""
    for name, code in self_contained_code(entry).items():
        (folder / name).write_text(code, encoding="utf-8")
    # All classes are loaded through one file: through two, a loader would copy the modules that both import.
    auto_map = {auto: f"{file_name(entry)}.{target.__name__}" for auto, target in classes.items()}
    config = json.loads((folder / "config.json").read_bytes())
    write_json(folder / "config.json", config | {"auto_map": auto_map})


def export_replaced(model: PreTrainedModel, folder: str | Path, max_shard_size: str = LARGEST_FILE) -> Path:
    """Write a causal model of transformers whose attention has been replaced, with the code that loads it."""
    replaced = getattr(model.config, RECORD, None)
    require(bool(replaced), "model", "one whose attention has been replaced", type(model).__name__)
    mechanisms = [AttentionConfig.from_dict(record["attention"]) for record in replaced or ()]
    own_code = [code for mechanism in mechanisms for code in mechanism.own_code]
    _refuse_own_code(own_code, "save it with save_pretrained, and hand your file on beside it")
    folder = Path(folder)
    refuse_inhabited(folder)
    with complete_or_absent(folder.resolve()) as unfinished:
        with without_progress_bars():
            model.save_pretrained(unfinished, max_shard_size=max_shard_size)
        write_code(unfinished, ReplacedModel.__module__, {"AutoModelForCausalLM": ReplacedModel})
        follow_umask(*(path for path in unfinished.iterdir() if path.is_file()))
    return folder


def _refuse_own_code(own_code: Iterable[Any], step: str) -> None:
    names = ", ".join(map(name_in_code, own_code))
    require(not names, "attention", "of attractor's own stages, whose code is written beside the model", names, step)


def push_folder(folder: Path, repository: str) -> str:
    """Upload an exported folder to a repository of the Hugging Face Hub, which is made if it is new: private."""
    import huggingface_hub

    hub = huggingface_hub.HfApi()
    try:
        hub.create_repo(repository, private=True, exist_ok=True)
        return str(hub.upload_folder(repo_id=repository, folder_path=folder, commit_message="Export of attractor"))
    except Exception as error:  # of the network, of the server, or of its client, each with classes of its own
        reason = str(error).strip().partition("\n")[0]
        raise InputError(
            f"push must be a repository that you may write, got '{repository}': {reason}; log in by 'hf auth login', "
            f"then 'hf upload {repository} {folder}' uploads what was exported"
        ) from error
