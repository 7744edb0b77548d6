"""Turn a model of attractor into a model of another Hugging Face architecture, for tools that know only theirs.

The table of architectures (architectures.py) says what config.json and the weights are called, in both directions. A
model that the architecture does not describe in full is refused, and the message names the field in the way. The class
is that of transformers, so the exported folder holds no code.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from attractor.errors import unknown
from attractor.hf.architecture import Architecture
from attractor.hf.architectures import ARCHITECTURES
from attractor.hf.read_config import GLOBAL
from attractor.models.language_model import LanguageModel
from attractor.models.transformer import TransformerConfig

# None in place of the architecture's defaults, unless its class demands a number.
NO_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")


def chosen_architecture(option: str) -> Architecture:
    """Return the row of the table for a value of `attractor export --to`."""
    options = {known.option: known for known in ARCHITECTURES}
    if option not in options:
        raise unknown("format", option, ["hf", *options])
    return options[option]


def as_foreign(
    model: LanguageModel, known: Architecture, token_ids: Mapping[str, Any], dtype: torch.dtype | None = None
) -> PreTrainedModel:
    """Return the model as transformers' own class, with the same weights and without a copy where none is needed."""
    described = known.exported(model.config)
    fields = AutoConfig.for_model(known.model_type).to_dict().keys() | {"head_dim"}  # some read it and do not state it
    stated = {name: value for name, value in described.items() if name in fields}
    none = {name: known.defaults.get(name) for name in NO_TOKENS}
    withheld = {name for name in NO_TOKENS if known.defaults.get(name, 0) is None}
    given = {name: number for name, number in token_ids.items() if name not in withheld}
    config = AutoConfig.for_model(known.model_type, **stated | none | given)
    vars(config).update(older_rotation(known, stated.get("rope_parameters", {})))  # `setattr` would warn: deprecated
    assert isinstance(model.config, TransformerConfig)
    known.require_same(model.config, known.config(config.to_dict()))  # with the defaults of transformers, too
    weights = stored_weights(model, known)
    with torch.device("meta"):
        theirs: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    theirs.load_state_dict(weights, assign=True)
    theirs.tie_weights()
    return theirs.eval().to(dtype=dtype or model.embedding.weight.dtype)


def older_rotation(known: Architecture, rope: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields about RoPE that tools from before transformers 5 read."""
    if GLOBAL in rope:  # older files have no scaling for one kind of layer alone
        return {"rope_theta": rope[GLOBAL]["rope_theta"]}
    names = {llamas: its for its, llamas in known.aliases.items()}
    separate = {names.get(name, name): rope[name] for name in ("rope_theta", "partial_rotary_factor") if name in rope}
    scaling = {name: value for name, value in rope.items() if name not in ("rope_theta", "partial_rotary_factor")}
    is_scaled = scaling.get("rope_type", "default") != "default"
    return separate | ({"rope_scaling": scaling | {"type": scaling["rope_type"]}} if is_scaled else {})


def stored_weights(model: LanguageModel, known: Architecture) -> dict[str, Tensor]:
    """Return the weights under the names of the architecture. A tied readout is there under its name, too."""
    parameters, names = model.state_dict(), known.names
    weights: dict[str, Tensor] = {}
    for tie in known.ties(model):
        stored = tie.store([parameters[name] for name in tie.parameters])
        weights |= zip(tie.stored, stored, strict=True)
    if model.head is None:
        weights[f"{names.head}.weight"] = weights[f"{names.base}{names.embedding}.weight"]
    return weights
