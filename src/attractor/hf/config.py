"""Store an attractor model's configuration in Hugging Face's format.

    {"model_type": "attractor", "attractor": {...}, "vocab_size": ..., "hidden_size": ..., ...}

`attractor` is `ModelConfig.to_dict()`, including the mechanism, and determines the model. The other fields repeat
values for Hugging Face's tools under their names, and must agree with it.
"""

from typing import Any, ClassVar, Self

from transformers import PreTrainedConfig

from attractor.errors import InputError
from attractor.models.config import ModelConfig
from attractor.models.families import model_config
from attractor.models.fast_slow import FastSlowConfig
from attractor.models.language_model import LanguageModel
from attractor.models.transformer import TransformerConfig


class AttractorConfig(PreTrainedConfig):
    model_type: ClassVar[str] = "attractor"
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["cache", "past_key_values"]  # one field, which 5.24 renamed
    auto_map: ClassVar[dict[str, str]] = {}  # tools read this of every class that transformers does not ship

    def __init__(
        self,
        attractor: dict[str, Any] | None = None,  # None only where Hugging Face builds a config for its defaults
        vocab_size: int | None = None,
        hidden_size: int | None = None,
        num_hidden_layers: int | None = None,
        num_attention_heads: int | None = None,
        max_position_embeddings: int | None = None,
        tie_word_embeddings: bool | None = None,
        **rest: Any,
    ) -> None:
        if not type(self).__module__.startswith("transformers_modules"):
            rest.pop("auto_map", None)  # it names code in a model folder, and this class is the installed one
        super().__init__(**rest)
        self.attractor = attractor
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.max_position_embeddings = max_position_embeddings
        self.tie_word_embeddings = tie_word_embeddings
        if self.attractor is not None:
            self.adopt(self.model_config())

    @classmethod
    def of(cls, config: ModelConfig[LanguageModel], **rest: Any) -> Self:
        """Return the configuration of an attractor model; `rest` are further fields such as eos_token_id."""
        return cls(attractor=config.to_dict(), **of_classes(config), **rest)

    def model_config(self) -> ModelConfig[LanguageModel]:
        if self.attractor is None:
            raise InputError(
                "attractor must be a configuration as ModelConfig.to_dict() gives it, got None; make one by "
                "AttractorConfig.of(TransformerConfig(...))"
            )
        config = model_config(self.attractor)
        for name, value in repeated(config).items():
            given = getattr(self, name)
            if given is not None and given != value:
                raise InputError(
                    f"{name} must be {value!r}, as field 'attractor' has it, got {given!r}; change it there, or leave "
                    f"{name} out"
                )
        return config

    def adopt(self, config: ModelConfig[LanguageModel]) -> None:
        """Take over the configuration of an attractor model."""
        self.attractor = config.to_dict()
        for name, value in repeated(config).items():
            setattr(self, name, value)


def repeated(config: ModelConfig[LanguageModel]) -> dict[str, Any]:
    """Return the values that Hugging Face's tools look for, by their names."""
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "num_hidden_layers": n_blocks(config),
        "num_attention_heads": config.n_heads,
        "max_position_embeddings": config.max_seq_len,
        "tie_word_embeddings": config.tied_embeddings and config.n_classes is None,
    }


def n_blocks(config: ModelConfig[LanguageModel]) -> int:
    """Return the number of blocks with separate weights."""
    if isinstance(config, TransformerConfig):
        return config.n_layers
    if isinstance(config, FastSlowConfig):
        return config.n_pre + config.n_slow + config.n_post
    return 1


def of_classes(config: ModelConfig[LanguageModel]) -> dict[str, Any]:
    """Return the fields of a classifier. With one class it is a regression."""
    if config.n_classes is None:
        return {}
    return {"num_labels": config.n_classes} | ({"problem_type": "regression"} if config.n_classes == 1 else {})
