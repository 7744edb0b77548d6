"""A model is exported as another architecture, and transformers' own class for it computes the same logits."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from foreign import MODELS, saved, tokens
from rich.console import Console
from safetensors.torch import load_file
from torch import Tensor

from attractor.attention import PRESETS
from attractor.attention.position import Rope
from attractor.cli.commands import options_of
from attractor.cli.hugging_face import ExportArguments, export
from attractor.corpus.tokenizer import ByteTokenizer
from attractor.errors import InputError
from attractor.hf.architectures import ARCHITECTURES, architecture
from attractor.hf.export import export_model
from attractor.hf.foreign_export import chosen_architecture
from attractor.hf.import_models import import_model
from attractor.hf.import_runs import import_run
from attractor.models import FastSlowConfig, ImportedConfig
from attractor.models.config import ModelConfig
from attractor.models.language_model import LanguageModel
from tiers import fast_alone, tiered

SIZES: dict[str, Any] = {"vocab_size": 320, "d_model": 32, "n_heads": 4, "n_layers": 2, "d_ff": 48, "max_seq_len": 64}
LLAMA = ImportedConfig(**SIZES, positions="rope")
QK = {"qk_norm": True, "qk_norm_eps": 1e-6}
PLAIN_GPT = {"stream_norm": "layernorm", "qkv_bias": True, "out_bias": True, "mlp_bias": True}
GEMMA = {"mlp": "geglu-tanh", "embedding_scale": 32**0.5, "norms_per_block": 4}
ONE_NORM = {"stream_norm": "layernorm-no-bias", "parallel_branches": True, "norms_per_block": 1, "logit_scale": 0.1}
CAPS = {"softcap": 20.0, "logit_softcap": 10.0}
FIRST, EVERY = ({"window": 8, "global_layers": layers} for layers in ("first:1", "every:2"))
LATENT = LLAMA.replace(attention="mla", n_kv_heads=None).attention_config.replace(latent_norm=True)
OURS: dict[str, tuple[str, ImportedConfig]] = {
    "llama": ("llama", LLAMA.replace(tied_embeddings=False, n_kv_heads=2)),
    "llama-gqa-preset": ("llama", LLAMA.replace(attention="gqa", head_dim=16)),
    "llama-dropout": ("llama", LLAMA.replace(dropout=0.1, rope_scaling="yarn:4:16:4:0.02:1.1")),
    "mistral": ("mistral", LLAMA.replace(rope_scaling="dynamic:2:64")),
    "mistral-window": ("mistral", LLAMA.replace(window=8)),
    "gemma2": ("gemma2", LLAMA.replace(**GEMMA, **CAPS, **EVERY, attention_scale=0.25)),
    "gemma3-text": ("gemma3-text", LLAMA.replace(**GEMMA, **QK, **FIRST, local_rope_theta=1e3)),
    "olmo3": ("olmo3", LLAMA.replace(**QK, **EVERY, qk_norm_across=True, post_norm=True)),
    "qwen2": ("qwen2", LLAMA.replace(qkv_bias=True)),
    "qwen3": ("qwen3", LLAMA.replace(**QK)),
    "gemma": ("gemma", LLAMA.replace(mlp="geglu-tanh", embedding_scale=32**0.5)),
    "olmo2": ("olmo2", LLAMA.replace(**QK, qk_norm_across=True, post_norm=True)),
    "phi3": ("phi3", LLAMA.replace(rope_fraction=0.5)),
    "smollm3": ("smollm3", LLAMA.replace(no_rope_every=2)),
    "granite": ("granite", LLAMA.replace(branch_scale=0.3, logit_scale=0.125, attention_scale=0.2)),
    "gpt2": ("gpt2", LLAMA.replace(**PLAIN_GPT, mlp="gelu-tanh", positions="learned")),
    "gpt-neox": ("gpt-neox", LLAMA.replace(**PLAIN_GPT, mlp="gelu", rope_fraction=0.25, parallel_branches=True)),
    "stablelm": ("stablelm", LLAMA.replace(stream_norm="layernorm", qkv_bias=True, rope_fraction=0.25)),
    "starcoder2": ("starcoder2", LLAMA.replace(**PLAIN_GPT, mlp="gelu-tanh", window=8)),
    "cohere": ("cohere", LLAMA.replace(**ONE_NORM)),
    "ministral": ("ministral", LLAMA.replace(**FIRST)),
    "cwm": ("cwm", LLAMA.replace(**FIRST, rope_scaling="llama3:8:1:4:16")),
    "seed-oss": ("seed-oss", LLAMA.replace(qkv_bias=True, head_dim=16)),
    "internlm3": ("internlm3", LLAMA.replace(n_kv_heads=2)),
    "iquestcoder": ("iquestcoder", LLAMA.replace(head_dim=16)),
    "arcee": ("arcee", LLAMA.replace(mlp="relu2")),
    "jais2": ("jais2", LLAMA.replace(**PLAIN_GPT, mlp="relu2")),
    "nemotron": ("nemotron", LLAMA.replace(stream_norm="layernorm", mlp="relu2", rope_fraction=0.25)),
    "cohere2": ("cohere2", LLAMA.replace(**ONE_NORM, **EVERY, no_rope_every=2)),
    "exaone4": ("exaone4", LLAMA.replace(**QK, post_norm=True)),
    "vaultgemma": ("vaultgemma", LLAMA.replace(mlp="geglu-tanh", embedding_scale=32**0.5, softcap=9.0)),
    "youtu": ("youtu", LLAMA.replace(attention=LATENT)),
    "hyperclovax": ("hyperclovax", LLAMA.replace(branch_scale=0.3, logit_scale=2.0, norms_per_block=4)),
    "ernie4-5": ("ernie4-5", LLAMA.replace(n_kv_heads=1)),
    "glm": ("glm", LLAMA.replace(rope_fraction=0.5, qkv_bias=True)),
    "glm4": ("glm4", LLAMA.replace(rope_fraction=0.25, norms_per_block=4)),
    "helium": ("helium", LLAMA.replace(qkv_bias=True)),
    "deepseek-v3": ("deepseek-v3", LLAMA.replace(attention=LATENT)),
}


def assert_same_weights(model: LanguageModel, other: LanguageModel) -> None:
    weights, others = model.state_dict(), other.state_dict()
    assert weights.keys() == others.keys()
    assert all(torch.equal(weights[name], others[name]) for name in weights)


def own_class(folder: Path) -> Any:
    """Load the folder by transformers' own class, which executes nothing of the folder."""
    config = json.loads((folder / "config.json").read_text())
    assert "auto_map" not in config
    assert not list(folder.glob("*.py"))
    options = {"output_loading_info": True, "attn_implementation": "eager"}  # as in `foreign.theirs`
    model, report = transformers.AutoModelForCausalLM.from_pretrained(folder, **options)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert [type(model).__name__] == config["architectures"]
    assert type(model).__module__.startswith("transformers.")
    return model


@torch.no_grad()
@pytest.mark.parametrize(
    "name", fast_alone(MODELS, "llama-yarn-mscale", "gemma", "deepseek-v3-yarn", "gpt2", "diffllama")
)
def test_an_imported_model_is_exported_unchanged(name: str, tmp_path: Path) -> None:
    """Criterion: export and import give the same weights bit for bit, and transformers the same logits to 1e-5."""
    saved(tmp_path / "theirs", name, spelled=False)
    model = import_model(tmp_path / "theirs")
    export_model(model, tmp_path / "back", to=architecture(MODELS[name][0]))
    assert_same_weights(model, import_model(tmp_path / "back"))
    torch.testing.assert_close(own_class(tmp_path / "back")(tokens()).logits, model(tokens())[0], rtol=0, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("name", OURS)
def test_our_models_are_exported_as_other_architectures(name: str, tmp_path: Path) -> None:
    option, config = OURS[name]
    model = config.build(0).eval()
    for weight in model.parameters():  # initial biases of 0 and norms of 1 would hide mistakes
        weight.add_(0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(weight.numel())))
    export_model(model, tmp_path / "out", ByteTokenizer(), to=chosen_architecture(option))
    assert_same_weights(model, import_model(tmp_path / "out"))
    theirs, inputs = own_class(tmp_path / "out"), tokens()
    torch.testing.assert_close(theirs(inputs).logits, model(inputs)[0], rtol=0, atol=1e-5)
    assert theirs.generation_config.eos_token_id == ByteTokenizer().end_of_text
    spelled = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")("a cat")["input_ids"]
    assert spelled == ByteTokenizer().encode("a cat").tolist()


def test_every_architecture_is_tried_in_both_directions() -> None:
    """DiffLlama is the exception: it lacks a weight that all our models have, so none of them can be exported as
    one."""
    assert {*(option for option, _ in OURS.values()), "diffllama"} == {known.option for known in ARCHITECTURES}


def test_the_help_lists_the_architectures() -> None:
    (described,) = (option.phrase for option in options_of("export") if option.name == "to")
    assert [known.option for known in ARCHITECTURES if f" {known.option}" not in described] == []


@pytest.mark.parametrize("name", ["llama-dropout", "gpt-neox"])
def test_tools_from_before_transformers_5_find_the_rotation_under_its_older_names(name: str, tmp_path: Path) -> None:
    option, config = OURS[name]
    export_model(config.build(0), tmp_path / "out", to=chosen_architecture(option))
    described = json.loads((tmp_path / "out" / "config.json").read_text())
    del described["rope_parameters"]
    back = chosen_architecture(option).config(described)
    assert Rope(8, back.rope_theta, back.rope_scaling).scaling == Rope(8, 1e4, config.rope_scaling).scaling
    assert (back.rope_theta, ImportedConfig.of(back).rope_fraction) == (config.rope_theta, config.rope_fraction)


@torch.no_grad()
def test_half_precision_and_shards(tmp_path: Path) -> None:
    """Gemma's norms are stored as differences from 1. The difference is taken before the weights are rounded."""
    model = OURS["gemma"][1].build(0).eval()
    model.norm.weight.add_(1e-3)
    export_model(model, tmp_path / "out", dtype=torch.bfloat16, max_shard_size="20KB", to=chosen_architecture("gemma"))
    assert len(list((tmp_path / "out").glob("*.safetensors"))) > 1
    stored: dict[str, Tensor] = {}
    for file in (tmp_path / "out").glob("*.safetensors"):
        stored |= load_file(file)
    assert {weight.dtype for weight in stored.values()} == {torch.bfloat16}
    assert stored["model.norm.weight"].float().mean().item() == pytest.approx(1e-3, rel=1e-2)


REFUSED: dict[str, tuple[str, ModelConfig[Any], str]] = {
    "coupled": ("llama", LLAMA.replace(attention="coupled-euler"), "attention must be standard .*, got coupled-euler"),
    "no MLA": ("deepseek-v3", LLAMA, "attention must be mla for --to deepseek-v3, got standard"),
    "gated": ("qwen3", LLAMA.replace(attention="gated", **QK), "attention must be standard for --to qwen3, got gated"),
    "learned": ("llama", LLAMA.replace(positions="learned"), "positions must be rope for --to llama, got learned"),
    "rope": ("gpt2", LLAMA.replace(**PLAIN_GPT, mlp="gelu-tanh"), "positions must be learned for --to gpt2, got rope"),
    "mlp": ("llama", LLAMA.replace(mlp="gelu"), "mlp must be swiglu for --to llama, got gelu"),
    "qk-norm": ("qwen3", LLAMA, "qk_norm must be True for --to qwen3, got False"),
    "no qk-norm": ("llama", LLAMA.replace(**QK), "qk_norm must be False for --to llama, got True"),
    "bias": ("llama", LLAMA.replace(qkv_bias=True), "qkv_bias must be False for --to llama, got True"),
    "softcap": ("llama", LLAMA.replace(softcap=30.0), "softcap must be None for --to llama, got 30.0"),
    "sigma": ("llama", LLAMA.replace(sigma_reparam=True), "sigma_reparam must be False for --to llama, got True"),
    "scale": ("gemma", LLAMA.replace(mlp="geglu-tanh"), r"embedding_scale must be 5.65\d+ for --to gemma, got 1.0"),
    "partial": ("llama", LLAMA.replace(rope_fraction=0.5), "rope_fraction must be 1.0 for --to llama, got 0.5"),
    "layers": ("llama", LLAMA.replace(no_rope_every=2), "no_rope_every must be None for --to llama, got 2"),
    "norms": ("llama", LLAMA.replace(norms_per_block=4), "norms_per_block must be 2 for --to llama, got 4"),
    "encoder": ("llama", LLAMA.replace(causal=False), "causal must be True for --to llama, got False"),
    "labels": ("llama", LLAMA.replace(n_classes=3), "n_classes must be None for --to llama, got 3"),
    "family": (
        "llama",
        FastSlowConfig(d_model=32, d_ff=48),
        "family must be transformer for --to llama, got fast-slow",
    ),
    "heads": (
        "gpt2",
        LLAMA.replace(**PLAIN_GPT, mlp="gelu-tanh", positions="learned", n_kv_heads=2),
        "n_kv_heads must be 4 for --to gpt2, got 2",
    ),
    "window": ("llama", LLAMA.replace(window=8), "window must be None for --to llama, got 8"),
    "one window": ("mistral", LLAMA.replace(**EVERY), "global_layers must be None for --to mistral, got 1"),
    "scale without a whole number": (
        "gemma2",
        LLAMA.replace(**GEMMA, **CAPS, attention_scale=0.3),
        r"attention_scale must be 0.3015\d+ for --to gemma2, got 0.3",
    ),
    "scaling": (
        "phi3",
        LLAMA.replace(rope_scaling="linear:2"),
        "rope_parameters must be of type default or longrope for --to phi3, got {'rope_type': 'linear'",
    ),
    "trained norm": (
        "diffllama",
        LLAMA.replace(attention="differential-original", norm_eps=1e-5),
        "score.norm.weight must be 1 to be exported",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_unsuitable_model_is_refused_with_the_name_of_its_field(name: str, tmp_path: Path) -> None:
    option, config, words = REFUSED[name]
    model = config.build(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    with pytest.raises(InputError, match=words) as refused:
        export_model(model, tmp_path / "out", to=chosen_architecture(option))
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", tiered(PRESETS))
def test_every_mechanism_is_exported_or_refused_in_one_line(name: str) -> None:
    """Criterion: plain attention is exported as a Llama for any number of key heads; other mechanisms are refused."""
    config, key_heads = LLAMA.replace(attention=name), {"standard": 4, "gqa": 1, "mqa": 1}
    for option in ("llama", "gpt2", "gemma2", "deepseek-v3", "diffllama"):
        if option == "llama" and name in key_heads:
            assert chosen_architecture(option).exported(config)["num_key_value_heads"] == key_heads[name]
        else:
            with pytest.raises(InputError, match=f" must be .* for --to {option}, got ") as refused:
                chosen_architecture(option).exported(config)
            assert "\n" not in str(refused.value)


@torch.no_grad()
def test_the_command_writes_a_folder_without_code_and_says_how_to_load_it(tmp_path: Path) -> None:
    saved(tmp_path / "llama")
    run = import_run(tmp_path / "llama", tmp_path / "run")
    export(ExportArguments(run.path, to="llama"), Console(quiet=True))
    model, folder = import_model(tmp_path / "llama"), run.path / "llama"
    assert_same_weights(model, import_model(folder))
    torch.testing.assert_close(own_class(folder)(tokens()).logits, model(tokens())[0], rtol=0, atol=1e-5)
    card = (folder / "README.md").read_text()
    assert "part of transformers" in card
    assert "trust_remote_code" not in card
    theirs, ours = (transformers.AutoTokenizer.from_pretrained(path) for path in (tmp_path / "llama", folder))
    assert ours("the cat")["input_ids"] == theirs("the cat")["input_ids"]
