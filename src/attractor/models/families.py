"""The model families, and SIZES, the table of named model configurations."""

from typing import Any

from attractor.errors import require_known
from attractor.models.akorn import AKOrNConfig
from attractor.models.config import ModelConfig
from attractor.models.fast_slow import FastSlowConfig
from attractor.models.imported import transformer_config
from attractor.models.itrsa import ItrSAConfig
from attractor.models.itrsa_prenorm import PreNormItrSAConfig
from attractor.models.language_model import LanguageModel
from attractor.models.recursive import RecursiveConfig
from attractor.models.transformer import TransformerConfig

KINDS: tuple[type[ModelConfig[LanguageModel]], ...] = (
    TransformerConfig,
    FastSlowConfig,
    ItrSAConfig,
    PreNormItrSAConfig,
    AKOrNConfig,
    RecursiveConfig,
)
FAMILIES = {kind.family: kind for kind in KINDS}
FAMILY = "family"  # key of a stored config; a config without it is a Transformer's


def model_config(stored: dict[str, Any]) -> ModelConfig[LanguageModel]:
    """Return the config of any family from its `to_dict`."""
    values = dict(stored)
    family = values.pop(FAMILY, TransformerConfig.family)
    require_known("model family", family, FAMILIES)
    return transformer_config(values) if family == TransformerConfig.family else FAMILIES[family].from_dict(values)


def _qwen(**shape: int) -> TransformerConfig:
    return TransformerConfig(**shape, d_ff=4 * shape["d_model"], positions="rope", rope_theta=1e6)  # type: ignore[arg-type]


def _dense(d_model: int, **kind: Any) -> TransformerConfig:
    """Return a dense model with the heads, positions and vocabulary of FastSlow, and four layers."""
    shape: dict[str, Any] = {"vocab_size": 320, "n_heads": 4, "n_kv_heads": 2, "n_layers": 4, "max_seq_len": 1024}
    return TransformerConfig(d_model=d_model, d_ff=4 * d_model, positions="rope", qk_norm=True, **shape, **kind)


def _fast_slow(d_model: int, **shape: Any) -> FastSlowConfig:
    return FastSlowConfig(d_model=d_model, d_ff=4 * d_model, max_seq_len=16_384, window=256, **shape)


# CoupledQK (arXiv 2604.01683), table 8. `large` is as specified there; the stated ~350M need the MLP of `large-354m`.
SIZES: dict[str, ModelConfig[LanguageModel]] = {
    "tiny": TransformerConfig(vocab_size=64, d_model=256, n_heads=4, n_layers=6, d_ff=1024, max_seq_len=512),
    "small": TransformerConfig(d_model=512, n_heads=8, n_layers=8, d_ff=2048, max_seq_len=2048),
    "medium": TransformerConfig(d_model=768, n_heads=12, n_layers=12, d_ff=3072, max_seq_len=512),
    "large": TransformerConfig(d_model=1024, n_heads=16, n_layers=24, d_ff=4096, max_seq_len=512),
    "large-354m": TransformerConfig(d_model=1024, n_heads=16, n_layers=24, d_ff=2730, max_seq_len=512),
    # QuacK (Anson and Aitchison, 2025), section 4: the shape of Qwen3 with d_ff = 4 d_model, heads of 64 and tied
    # embeddings, 1,040.2M parameters. The smaller models have its proportions; the smallest has narrower heads.
    "1b": _qwen(vocab_size=49_152, d_model=2048, n_heads=32, n_layers=14, max_seq_len=2048),
    "1b-100m": _qwen(vocab_size=32_768, d_model=768, n_heads=12, n_layers=8, max_seq_len=1024),
    "1b-20m": _qwen(vocab_size=8_192, d_model=384, n_heads=6, n_layers=7, max_seq_len=512),
    "1b-2m": _qwen(vocab_size=4_096, d_model=128, n_heads=4, n_layers=6, max_seq_len=256),
    # FastSlow (arXiv 2606.16730), table 2: 779,777 parameters, and its dense baselines of 1,025,408 and 585,504.
    "fast-slow": FastSlowConfig(),
    # Ours: the widths of `small` and `medium` for tokens of BPE, and a model of bytes. The fast path has a window, and
    # the slow path reaches further back, so sequences may be long.
    "fast-slow-small": _fast_slow(d_model=512, n_heads=8, n_pre=2, n_slow=4, n_post=2, vocab_size=50_257),
    "fast-slow-medium": _fast_slow(d_model=768, n_heads=12, n_pre=3, n_slow=6, n_post=3, vocab_size=50_257),
    "fast-slow-long": _fast_slow(d_model=256, n_heads=4, n_pre=2, n_slow=2, n_post=1, vocab_size=320, pool_factor=8),
    "dense-minimind": _dense(d_model=128, mlp="swiglu"),
    "dense-gemma": _dense(d_model=96, mlp="geglu", norms_per_block=4),
    # Jacobians (arXiv 2505.19458), section 6: Sudoku, 16 iterations, 512 channels, 8 heads; oscillators of 4 channels.
    # AKOrN is as its authors publish it (arXiv 2410.13821), of 2,982,412 parameters.
    "itrsa": ItrSAConfig(),
    "itrsa-prenorm": PreNormItrSAConfig(),
    "akorn": AKOrNConfig(positions="grid-rope", d_ff=512, qkv_bias=True, out_bias=True, as_published=True),
    # TRM (arXiv 2510.04871): its model with attention. Its best model of Sudoku, of 5M parameters, has mixer='mlp'.
    "recursive": RecursiveConfig(),
}

# What `attractor list` says of each of these.
ABOUT_SIZES = {
    "tiny": "Transformer for associative recall (CoupledQK)",
    "small": "Transformer of 60M parameters (CoupledQK)",
    "medium": "Transformer of 152M parameters (CoupledQK)",
    "large": "Transformer of 455M parameters (CoupledQK)",
    "large-354m": "large with a narrower MLP",
    "1b": "Transformer of the shape of Qwen3 (QuacK)",
    "1b-100m": "1b at a tenth of its parameters",
    "1b-20m": "1b at a fiftieth of its parameters",
    "1b-2m": "1b at a five-hundredth of its parameters",
    "fast-slow": "a fast path and a slow path, coupled (FastSlow)",
    "fast-slow-small": "FastSlow in small's width, with a window of 256",
    "fast-slow-medium": "FastSlow in medium's width, with a window of 256",
    "fast-slow-long": "FastSlow on long sequences of bytes, with a window of 256",
    "dense-minimind": "a dense rival of fast-slow, wider",
    "dense-gemma": "a dense rival of fast-slow, narrower",
    "itrsa": "one attention block iterated 16 times, for Sudoku",
    "itrsa-prenorm": "a whole pre-norm block iterated 16 times",
    "akorn": "coupled oscillators on spheres, iterated (AKOrN)",
    "recursive": "a slow answer and a fast reasoning state (TRM)",
}
