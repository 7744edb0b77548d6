"""Convert a trained model to another mechanism that initially computes exactly the same function.

    coupling      q' = q + tanh(g) (q_n - q), k likewise, g = 0                     the gate is closed           (1)
    mlp-only      q' = q + W_2 silu(W_1 q),   W_2 = 0                                                            (2)
    gated output  W_O -> 2 W_O,   W_g = 0                                           sigmoid(0) = 1/2, exactly    (3)

All three are exact in floating point: a product with 0 is added, or a power of two cancels. The rest of the mechanism
is the model's: widths, heads, norms, the form of differential attention.

Under (1) only g has a gradient at first; the coupling network gets one once g has moved. A `gate_lr` above the rate of
the pretrained weights opens the gate sooner. Under (2) W_2 moves first, then W_1; under (3) W_g. Phase activation with
W = 0 would also start exactly, but its gradient is 0, so it would stay there. Mechanisms with another projection or
score (differential, MLA, a decay) have no such starting point.

Gahtan and Bronstein, "Coupled Query-Key Dynamics for Attention", 2026, arXiv 2604.01683: zero-start coupling. (2) and
(3) are additions of this project.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import torch
from torch import nn

from attractor.attention import AttentionConfig
from attractor.attention.acting_weight import NEARLY_ZERO
from attractor.attention.config import STAGES
from attractor.attention.couple.dynamics import Dynamics
from attractor.attention.couple.mlp import MLPOnly
from attractor.attention.couple.none import Uncoupled
from attractor.attention.output.gated import Gated, GatedOutput
from attractor.attention.output.plain import Plain
from attractor.attention.presets import PRESETS, split_fields
from attractor.errors import InputError, require, require_seed
from attractor.files import refuse_inhabited
from attractor.hf.import_models import describe, import_model
from attractor.hf.import_runs import imported_config, tokenizer_files, write_run
from attractor.hf.replace import STARTS_AT_ZERO, chosen, gated, start_closed
from attractor.hf.safetensors import StoredWeights
from attractor.models.language_model import LanguageModel
from attractor.models.transformer import Transformer, TransformerConfig
from attractor.runs.run_folder import RunFolder
from attractor.train.finished import finished_run
from attractor.train.saved_tokenizer import KEPT_FILES


def convert_model(model: LanguageModel, attention: str, seed: int = 0) -> Transformer:
    """Return a copy of the model with the named mechanism; new weights are drawn from (seed, their names)."""
    if not isinstance(model, Transformer):
        raise InputError(f"model must be a transformer to be converted, got the family {model.config.family}; give one")
    require_seed(seed)
    config = converted_config(model.config, attention)
    converted_model = config.build(seed).to(model.embedding.weight.dtype)
    unplaced = converted_model.load_state_dict(model.state_dict(), strict=False).unexpected_keys
    assert not unplaced, f"a mechanism that starts exactly keeps every weight, and lost {unplaced}"
    newly_gated = config.staged_attention.output != model.config.staged_attention.output
    with torch.no_grad():
        for block in converted_model.layers:
            layer = block.attention  # the gate of (1) is closed by its initialization
            start_closed(cast(nn.Module, layer.couple))  # (2)
            if newly_gated:
                output = cast(GatedOutput, layer.output)
                nn.init.constant_(output.gate.weight, NEARLY_ZERO)
                output.out.weight.mul_(2)  # (3)
    return converted_model.train(model.training)


def converted_config(config: TransformerConfig, attention: str) -> TransformerConfig:
    source, rule = config.staged_attention, "one that starts at exactly what this model computes"
    mechanism = converted(source, chosen(attention, partial(conversion_obstacle, source), rule))
    for name, value in split_fields(attention)[1].items():
        stays = f"left out of '{attention}', since a converted model keeps its own"
        require(mechanism.replace(**{name: value}) == mechanism, name, stays, value)
    if attention.partition(":")[0] in PRESETS:
        by_name = config.replace(attention=attention, zero_start=getattr(mechanism.couple, "zero_start", False))
        if by_name.attention_config == mechanism:
            return by_name
    return config.replace(attention=mechanism)


def converted(source: AttentionConfig, wanted: AttentionConfig) -> AttentionConfig:
    """Return the source with the new kinds of stages of `wanted`; all numbers are the source's."""
    couple, output = source.couple, source.output
    if isinstance(couple, Uncoupled) and not isinstance(wanted.couple, Uncoupled):
        norms = {name: getattr(couple, name) for name in ("qk_norm", "qk_norm_across", "qk_norm_eps", "rope_fraction")}
        couple = replace(gated(wanted.couple), **norms)
    if isinstance(wanted.output, Gated) and isinstance(output, Plain):
        output = replace(wanted.output, out_bias=output.out_bias)
    return replace(source, couple=couple, output=output)


def conversion_obstacle(source: AttentionConfig, wanted: AttentionConfig) -> str | None:
    """Return why the conversion cannot start exactly, or None if it can."""
    for stage in STAGES:
        old, new = getattr(source, stage), getattr(wanted, stage)
        if type(old) is type(new):
            continue
        kinds = f"whose {stage} stage is {type(new).__name__} where the model has {type(old).__name__}"
        if stage in ("project", "score"):
            return kinds
        if stage == "output" and not (isinstance(old, Plain) and isinstance(new, Gated)):
            return kinds
        if isinstance(new, Gated) and new.activation != "sigmoid":
            return STARTS_AT_ZERO
        if stage == "couple" and not (isinstance(old, Uncoupled) and isinstance(new, Dynamics | MLPOnly)):
            return "which has no gradient where it changes nothing" if isinstance(old, Uncoupled) else kinds
    return "which the model has already" if converted(source, wanted) == source else None


def convert_run(
    model: str | Path, attention: str, out: str | Path, checkpoint: str = "best", seed: int = 0
) -> RunFolder:
    """Convert the model of a run or of a Hugging Face folder, and write it as a run."""
    folder, out = Path(model).expanduser(), Path(out)
    refuse_inhabited(out)
    name = folder.resolve().name
    if not (folder / "checkpoints").is_dir():
        source = import_model(folder)
        described = describe(folder)
        config, files = (
            imported_config(source.config, name, described),
            tokenizer_files(folder, source.config, described),
        )
        weights = StoredWeights.open(folder)
    else:
        run = finished_run(folder, torch.device("cpu"), checkpoint)
        source, config = run.model, run.config
        files = {name: (folder / name).read_bytes() for name in KEPT_FILES if (folder / name).is_file()}
        weights = StoredWeights.open(folder / "checkpoints" / run.checkpoint)
    converted_model = convert_model(source, attention, seed)
    origin = {"from": name, "attention": source.config.label, "weights_sha256": weights.fingerprint}
    config = config.replace(model=converted_model.config, start=None)
    return write_run(out, converted_model, config, files, "converted", origin)
