"""Small models of every mechanism and family in Hugging Face's interface, moved off their initial values."""

from typing import Any

import torch
from torch import Tensor

from attractor.attention import PRESETS
from attractor.hf.auto_classes import AttractorForCausalLM
from attractor.models import (
    AKOrNConfig,
    FastSlowConfig,
    ImportedConfig,
    ItrSAConfig,
    RecursiveConfig,
    TransformerConfig,
)
from attractor.models.config import ModelConfig
from attractor.models.language_model import LanguageModel

SMALL: dict[str, Any] = {"vocab_size": 61, "d_model": 32, "n_heads": 4, "d_ff": 48, "max_seq_len": 40}
N_TOKENS = 17  # several blocks of the slow path

CONFIGS: dict[str, ModelConfig[LanguageModel]] = {
    **{name: TransformerConfig(**SMALL, n_layers=2, positions="rope", attention=name) for name in PRESETS},
    "untied": TransformerConfig(**SMALL, n_layers=2, tied_embeddings=False),
    "logit-scale": ImportedConfig(**SMALL, n_layers=2, logit_scale=0.25),
    "sigma-reparam": TransformerConfig(**SMALL, n_layers=2, attention="mla", sigma_reparam=True),
    "window": TransformerConfig(**SMALL, n_layers=2, positions="rope", window=4, global_layers="0"),
    "fast-slow": FastSlowConfig(**SMALL, n_slow=1, n_rounds=1),
    "fast-slow-window": FastSlowConfig(**SMALL, n_slow=1, window=4),
    "fast-slow-streams": FastSlowConfig(**SMALL, n_slow=1, streams=2, attention="coupled-euler", projector_width=16),
    "itrsa": ItrSAConfig(**SMALL, causal=True, n_iterations=3, blank=None),
}

# Recurrent models in which the cells of token 40 start from noise.
WITH_NOISE: dict[str, ModelConfig[LanguageModel]] = {
    "akorn": AKOrNConfig(**SMALL, causal=True, n_iterations=2, blank=40),
    "recursive": RecursiveConfig(**SMALL, causal=True, n_iterations=2, n_segments=2, n_layers=1, n_inner=2, blank=40),
}


def drawn(parameters: Any, seed: int, by: float = 0.1) -> None:
    """Move parameters at random, so that no gate is closed and no adapter starts at 0."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in parameters:
            parameter += by * torch.randn(parameter.shape, generator=generator)


def wrapped(name: str, by: float = 0.1) -> AttractorForCausalLM:
    model = (CONFIGS | WITH_NOISE)[name].build(0).eval()
    drawn(model.parameters(), 1, by)
    return AttractorForCausalLM.of(model, eos_token_id=0, pad_token_id=0)


def tokens(n_rows: int = 2, length: int = N_TOKENS) -> Tensor:
    return torch.randint(1, 61, (n_rows, length), generator=torch.Generator().manual_seed(0))
