"""A model of ours as a folder of Hugging Face's: weights, configuration, tokenizer, card, and the code that runs it.

    config.json, generation_config.json     with `auto_map`, which says where the code is
    model.safetensors, or shards and index
    tokenizer.json, tokenizer_config.json
    README.md                               the card
    modeling_attractor.py and others        for machines where attractor is not installed: trust_remote_code=True

The folder appears whole or not at all: it is written under another name and renamed.
"""

import json
import os
import re
import shutil
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch

from attractor.corpus.tokenizer import Tokenizer
from attractor.errors import InputError
from attractor.files import refuse_inhabited, write_json
from attractor.hf.bundle import ENTRY, file_name, self_contained_code
from attractor.hf.config import AttractorConfig
from attractor.hf.model import AttractorForCausalLM, AttractorForSequenceClassification, AttractorPreTrainedModel
from attractor.hf.quiet import quiet
from attractor.hf.tokenizers import as_fast_tokenizer
from attractor.models.language_model import LanguageModel

SIZE = re.compile(r"\d+(\.\d+)?\s*(KB|MB|GB|TB)", re.IGNORECASE)
LARGEST_FILE = "5GB"
AUTO_CONFIG: dict[str, type] = {"AutoConfig": AttractorConfig}
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
) -> Path:
    """Write the folder and return it. `dtype` None leaves the weights as they are; without `self_contained` the folder
    has no code, and is loaded where attractor is installed. `labels` are what its classes are called."""
    folder = Path(folder)
    refuse_inhabited(folder)
    if SIZE.fullmatch(max_shard_size) is None:
        raise InputError(f"max_shard_size must be a size such as {LARGEST_FILE} or 500MB, got {max_shard_size!r}")
    if tokenizer is not None and tokenizer.n_spelled > model.config.vocab_size:
        raise InputError(
            f"tokenizer must have at most vocab_size={model.config.vocab_size} tokens, as the model has rows for, got "
            f"'{tokenizer.name}' with {tokenizer.n_spelled}; export with the tokenizer that it was trained with"
        )
    if dtype is not None and any(p.dtype != dtype for p in model.parameters()):
        model = deepcopy(model).to(dtype)
    theirs = as_theirs(model, tokenizer, labels)
    place = folder.resolve()
    unfinished = place.with_name(f".{place.name}.{os.getpid()}.tmp")
    unfinished.mkdir(parents=True)
    try:
        with quiet():
            theirs.save_pretrained(unfinished, max_shard_size=max_shard_size)
        if tokenizer is not None:
            as_fast_tokenizer(tokenizer, model.max_length).save_pretrained(unfinished)
        if self_contained:
            write_code(unfinished, labels=model.config.n_classes is not None)
        if card:
            (unfinished / "README.md").write_text(card, encoding="utf-8")
        if place.is_dir():  # an empty one
            place.rmdir()
        unfinished.rename(place)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def as_theirs(
    model: LanguageModel, tokenizer: Tokenizer | None, labels: Sequence[str] = ()
) -> AttractorPreTrainedModel:
    """The class is that of what the model gives: a label of each sequence, or the next token."""
    made: type[AttractorPreTrainedModel] = AttractorForCausalLM
    if model.config.n_classes is not None:
        made = AttractorForSequenceClassification
    rest: dict[str, Any] = {}
    if labels:
        rest |= {"id2label": dict(enumerate(labels)), "label2id": {label: i for i, label in enumerate(labels)}}
    if tokenizer is not None:
        end = tokenizer.end_of_text
        rest |= {"bos_token_id": end, "eos_token_id": end, "pad_token_id": tokenizer.pad}
    return made.of(model, **rest)


def write_code(folder: Path, labels: bool) -> None:
    """The code, and where it is. A model that continues text can be loaded to be tuned for labels, too."""
    for name, code in self_contained_code().items():
        (folder / name).write_text(code, encoding="utf-8")
    # All classes by one file: loaded by two, a loader would make two copies of the modules that both import.
    file = file_name(ENTRY)
    classes = AUTO_CONFIG | AUTO_LABELS | ({} if labels else AUTO_TEXT)
    where = {"auto_map": {auto: f"{file}.{each.__name__}" for auto, each in classes.items()}}
    config = json.loads((folder / "config.json").read_bytes())
    write_json(folder / "config.json", config | where)
