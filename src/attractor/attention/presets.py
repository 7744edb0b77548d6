"""PRESETS, the table of mechanisms by name. A row names the choices that differ from standard attention."""

import ast
import re
from typing import Any

from attractor.attention.config import AttentionConfig
from attractor.attention.couple.euler import Euler
from attractor.attention.couple.leapfrog import Leapfrog
from attractor.attention.couple.mlp import MLPOnly
from attractor.attention.couple.phase import Phase
from attractor.attention.output.gated import Gated
from attractor.attention.output.plain import Plain
from attractor.attention.project.convolved import ConvolvedHeads
from attractor.attention.project.decayed import DecayedHeads
from attractor.attention.project.delta import DeltaHeads
from attractor.attention.project.heads import Heads
from attractor.attention.project.latent import Latent
from attractor.attention.project.residual import ResidualHeads
from attractor.attention.project.shared import Shared
from attractor.attention.project.values import Values
from attractor.attention.score.decayed import Decayed
from attractor.attention.score.delta import Delta
from attractor.attention.score.differential import Differential
from attractor.attention.score.exclusive import Exclusive
from attractor.attention.score.sinks import Sinks
from attractor.attention.score.uniform import Uniform
from attractor.errors import InputError, require_known

PRESETS: dict[str, AttentionConfig] = {
    "standard": AttentionConfig(),
    "gqa": AttentionConfig(project=Heads(heads_per_kv=4)),
    "mqa": AttentionConfig(project=Heads(n_kv_heads=1)),
    "mla": AttentionConfig(project=Latent()),
    "differential": AttentionConfig(score=Differential()),
    "differential-original": AttentionConfig(score=Differential(form="vectors")),
    "differential-v2": AttentionConfig(score=Differential(form="token")),
    "mlp-only": AttentionConfig(couple=MLPOnly()),
    "coupled-euler": AttentionConfig(couple=Euler()),
    "coupled-hamiltonian": AttentionConfig(couple=Leapfrog()),
    "coupled-symplectic": AttentionConfig(couple=Leapfrog(force="gradient")),
    "coupled-linear": AttentionConfig(couple=Euler(force="linear")),
    "coupled-differential": AttentionConfig(couple=Euler(), score=Differential()),
    "coupled-gqa": AttentionConfig(project=Heads(heads_per_kv=4), couple=Euler()),
    "coupled-mla": AttentionConfig(project=Latent(), couple=Euler()),
    "psiqrh": AttentionConfig(project=Shared(), couple=Phase(), output=Plain(out_bias=True)),
    "phase": AttentionConfig(couple=Phase()),
    "gated": AttentionConfig(output=Gated()),
    "gated-heads": AttentionConfig(output=Gated(by_head=True)),
    "gated-few": AttentionConfig(output=Gated(by_head=True, n_channels=12)),
    "coupled-gated": AttentionConfig(couple=Euler(), output=Gated()),
    "value-residual": AttentionConfig(project=ResidualHeads()),
    "short-conv": AttentionConfig(project=ConvolvedHeads()),
    "xsa": AttentionConfig(score=Exclusive()),
    "sinks": AttentionConfig(score=Sinks()),
    "decay": AttentionConfig(project=DecayedHeads(), score=Decayed()),
    "gated-deltanet": AttentionConfig(project=DeltaHeads(), score=Delta(), output=Gated(activation="silu")),
    "uniform": AttentionConfig(project=Values(), score=Uniform()),
}

# What `attractor list` says of each of these.
ABOUT_PRESETS = {
    "standard": "softmax attention, keys and values per head",
    "gqa": "four query heads share a key and value head",
    "mqa": "all query heads share one key and value head",
    "mla": "keys and values from a small latent vector",
    "differential": "difference of two softmax maps",
    "differential-original": "the same, weighted as in its first paper",
    "differential-v2": "the same, with a weight for every token",
    "mlp-only": "an MLP on queries, no coupling (control)",
    "coupled-euler": "queries and keys move each other, Euler step",
    "coupled-hamiltonian": "queries and keys move each other by leapfrog",
    "coupled-symplectic": "leapfrog whose force is a gradient",
    "coupled-linear": "an Euler step whose force is one matrix",
    "coupled-differential": "coupled-euler, then differential",
    "coupled-gqa": "coupled-euler with keys shared as in gqa",
    "coupled-mla": "coupled-euler with keys from mla's latent",
    "psiqrh": "phase attention over one wide shared latent",
    "phase": "queries and keys turned by a learned phase",
    "gated": "a sigmoid gate on what every head returns",
    "gated-heads": "one sigmoid gate for each head",
    "gated-few": "the same, decided by twelve channels",
    "coupled-gated": "coupled-euler with gated output",
    "value-residual": "values of the first layer mixed into all",
    "short-conv": "a short convolution before the projections",
    "xsa": "exclusive: no part along the own value",
    "sinks": "softmax that may attend to nothing",
    "decay": "linear attention with a learned decay",
    "gated-deltanet": "a memory of constant size, corrected by each token",
    "uniform": "the mean of visible values (control)",
}


def preset(name: str) -> AttentionConfig:
    """Return the preset of a name, which other values of its fields may follow: `coupled-euler:n_steps=3,dt=0.1`."""
    plain, fields = split_fields(name)
    require_known("attention", plain, PRESETS, see="'attractor list' shows all")
    return PRESETS[plain].replace(**fields)


def split_fields(named: str) -> tuple[str, dict[str, Any]]:
    """Split NAME:FIELD=VALUE,FIELD=VALUE. A value that is no number, True, False or None is text."""
    name, colon, written = named.rpartition(":")
    if not colon or ("=" not in written and named.partition(":")[0] not in PRESETS):
        return named, {}
    fields: dict[str, Any] = {}
    for part in re.split(r",(?=\w*=?)", written):
        field, equals, value = part.partition("=")
        if not equals:
            raise InputError(
                f"preset must be NAME or NAME:FIELD=VALUE,..., got '{named}'; write {field or 'FIELD'}=VALUE"
            )
        try:
            fields[field] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            fields[field] = value
    return name, fields


def presets_as_data() -> dict[str, dict[str, Any]]:
    """Return every preset as a configuration stores a mechanism, for readers that know no classes."""
    return {name: config.to_dict() for name, config in PRESETS.items()}
