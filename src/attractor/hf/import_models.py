"""Import a whole model from a Hugging Face folder; only config.json and safetensors files are needed.

    config.json   -> TransformerConfig     by the table of architectures (architectures.py)
    *.safetensors -> its weights           one tensor at a time (safetensors.py), by the table's ties (weights.py)

Every stored weight must belong to a parameter and every parameter must have one. Exports of attractor, of any family,
store the model's own names behind `model.`.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attractor.errors import InputError
from attractor.hf.architecture import Architecture
from attractor.hf.architectures import architecture
from attractor.hf.safetensors import StoredWeights, read_object
from attractor.hf.weights import stored_shapes
from attractor.models.families import model_config
from attractor.models.language_model import LanguageModel
from attractor.models.shapes_only import shapes_only

ATTRACTOR_TYPE = "attractor"  # the model_type of attractor's exports, and their field with the configuration
EMBEDDING = "embedding.weight"


def import_model(folder: str | Path, dtype: torch.dtype | None = None) -> LanguageModel:
    """Return the model in evaluation mode.

    Without `dtype` it has the dtype of its stored embedding. It has fp32 where norms are stored as their difference
    from 1, since half precision would round the sum."""
    folder = Path(folder).expanduser()
    described = describe(folder)
    if described["model_type"] == ATTRACTOR_TYPE:
        if not isinstance(described.get(ATTRACTOR_TYPE), dict):
            raise InputError(
                f"{ATTRACTOR_TYPE} must be the model's configuration in '{folder / 'config.json'}', got "
                f"{described.get(ATTRACTOR_TYPE)!r}; export the model again"
            )
        config, foreign = model_config(described[ATTRACTOR_TYPE]), None
    else:
        foreign = architecture(described["model_type"])
        config = foreign.config(described)
    weights = StoredWeights.open(folder)
    with shapes_only():
        model = config.build_uninitialised()
    reader = WeightReader(weights, dtype or stored_dtype(weights, foreign))
    parameters = reader.all_of(model) if foreign is None else reader.translated(model, foreign)
    reader.refuse_leftovers()
    model.load_state_dict(parameters, assign=True)
    return model.eval()


def describe(folder: Path) -> dict[str, Any]:
    """Read the folder's config.json."""
    require_folder(folder)
    file = folder / "config.json"
    described = read_object(file) if file.is_file() else {}
    if "model_type" not in described:
        raise InputError(
            f"a Hugging Face folder must hold config.json with a model_type, and '{folder}' does not; give another, or "
            "pass a run directly to the command that needs it"
        )
    return described


def require_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise InputError(
            f"model must be a folder here, got '{folder}', and nothing is fetched; where there is network, "
            f"'hf download {shlex.quote(str(folder))} --local-dir FOLDER' fetches one from the Hub: give that FOLDER"
        )


def stored_dtype(weights: StoredWeights, foreign: Architecture | None) -> torch.dtype:
    names = [f"model.{EMBEDDING}"]
    if foreign is not None:
        names = foreign.spellings(f"{foreign.names.base}{foreign.names.embedding}.weight")
    stored = next((weights.tensors[name].torch_dtype for name in names if name in weights.tensors), torch.float32)
    return torch.float32 if foreign is not None and foreign.norm_offset and stored.itemsize < 4 else stored


@dataclass
class WeightReader:
    """Read weights of a folder, and keep track of those that were used."""

    weights: StoredWeights
    dtype: torch.dtype
    taken: set[str] = field(default_factory=set)

    def all_of(self, model: LanguageModel) -> dict[str, Tensor]:
        """Read the weights of an export of attractor."""
        return {name: self.read([f"model.{name}"], tuple(place.shape)) for name, place in model.state_dict().items()}

    def translated(self, model: LanguageModel, foreign: Architecture) -> dict[str, Tensor]:
        """Read the weights of another architecture, and name them as the model's parameters."""
        places, readout = model.state_dict(), foreign.names.head
        parameters: dict[str, Tensor] = {}
        self.taken.update(name for name in self.weights.tensors if name.endswith(foreign.names.not_weights))
        spellings = foreign.spellings(f"{readout}.weight")
        stored_readout = next((name for name in spellings if name in self.weights.tensors), None)
        if model.head is not None and stored_readout is None:
            raise InputError(
                f"{spellings[0]} must be in '{self.weights.folder}', whose config.json says that tie_word_embeddings "
                "is false, and is missing; set it to true if the embedding is the readout, or give the causal model"
            )
        for tie in foreign.ties(model):
            shapes = stored_shapes([tie], places)
            stored = [self.read(foreign.spellings(name), shape) for name, shape in shapes.items()]
            values = tie.load(stored, [places[name] for name in tie.parameters])
            parameters |= {name: value.to(self.dtype) for name, value in zip(tie.parameters, values, strict=True)}
        if model.head is None and stored_readout is not None:
            self.refuse_other_readout(stored_readout, parameters[EMBEDDING])
        return parameters

    def read(self, spellings: Sequence[str], shape: tuple[int, ...]) -> Tensor:
        """Read the tensor, which has one of these names."""
        name = next((name for name in spellings if name in self.weights.tensors), None)
        if name is None:
            raise InputError(
                f"'{spellings[0]}' must be in '{self.weights.folder}', which config.json describes, and is missing; "
                "give the folder of the whole causal language model"
            )
        stored = self.weights.tensors[name]
        if stored.shape != shape:
            raise InputError(
                f"'{name}' must have shape {shape}, as config.json says, got {stored.shape} in "
                f"'{self.weights.folder}'; put the config.json beside it that it was saved with"
            )
        self.taken.add(name)
        return stored.read(self.dtype)

    def refuse_other_readout(self, name: str, embedding: Tensor) -> None:
        if not torch.equal(self.read([name], tuple(embedding.shape)), embedding):
            raise InputError(
                f"{name} must be the embedding in '{self.weights.folder}', whose config.json says that "
                "tie_word_embeddings is true, and is another matrix; set it to false there"
            )

    def refuse_leftovers(self) -> None:
        left = sorted(self.weights.tensors.keys() - self.taken)
        if left:
            raise InputError(
                f"every weight must have a place, but {len(left)} of '{self.weights.folder}' have none, the first is "
                f"'{left[0]}'; give the folder of a causal language model that is as its config.json says"
            )
