"""An imported Hugging Face model computes the same logits; a model that would not is refused in one line."""

import json
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from foreign import FAST, LONG, MODELS, VOCAB_SIZE, change, saved, sentence_pieces, tokens
from rich.console import Console
from safetensors.torch import load_file, save_file

from attractor.attention.position import Rope, Scaling
from attractor.cli.hugging_face import ExportArguments, export
from attractor.corpus.tokenizer import ByteTokenizer, restore
from attractor.errors import InputError
from attractor.hf.architectures import ARCHITECTURES, architecture
from attractor.hf.import_models import import_model
from attractor.hf.import_runs import TOKENIZER, import_run, missing_tokenizer_message
from attractor.hf.safetensors import INDEX, SINGLE, StoredWeights, files_of
from attractor.hf.tokenizers import as_fast_tokenizer
from attractor.models import FastSlowConfig, TransformerConfig
from attractor.models.config import ModelConfig
from attractor.runs.run_folder import RunFolder
from attractor.train.finished import finished_run
from attractor.train.saved_tokenizer import tokenizer_of_run
from tiers import fast_alone

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    saved(tmp_path / "llama")
    return tmp_path / "llama"


def change_weights(folder: Path, changed: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    save_file(changed(load_file(folder / SINGLE)), folder / SINGLE)


@torch.no_grad()
@pytest.mark.parametrize("name", fast_alone(MODELS, *FAST))
def test_same_logits_at_once_and_token_by_token(name: str, tmp_path: Path) -> None:
    """Criterion: logits agree to 1e-5, far below their differences between tokens. The sequence is longer than the
    positions at which any RoPE scaling begins. Both compute in fp64, since fp32 would round logits by as much."""
    model = saved(tmp_path, name, spelled=False).double()
    ours, inputs = import_model(tmp_path).double(), tokens()
    expected = model(inputs).logits
    assert expected.std() > 0.05
    torch.testing.assert_close(ours(inputs)[0], expected, rtol=0, atol=1e-5)
    cache, start = ours.new_cache(), inputs[:, :12]
    parts = [ours(part, cache=cache)[0] for part in start.split(1, dim=1)]
    torch.testing.assert_close(torch.cat(parts, 1), model(start).logits, rtol=0, atol=1e-5)


def test_every_architecture_of_the_table_is_tried_here() -> None:
    assert {known.model_type for known in ARCHITECTURES} == {model_type for model_type, _ in MODELS.values()}


SHAPE: dict[str, Any] = {"d_model": 32, "n_heads": 4, "d_ff": 48}
OURS: dict[str, ModelConfig[Any]] = {
    "standard": TransformerConfig(**SHAPE, vocab_size=31, n_layers=2, max_seq_len=40),
    "coupled-mla": TransformerConfig(
        **SHAPE, vocab_size=31, n_layers=2, attention="coupled-mla", tied_embeddings=False
    ),
    "sigma": TransformerConfig(**SHAPE, vocab_size=31, n_layers=1, sigma_reparam=True),
    "fast-slow": FastSlowConfig(vocab_size=31, d_model=32, d_ff=48),
}


@torch.no_grad()
@pytest.mark.parametrize("name", OURS)
def test_our_own_models_come_back_bit_for_bit(name: str, tmp_path: Path) -> None:
    model = OURS[name].build(0).eval()
    weights = {f"model.{name}": weight.contiguous() for name, weight in model.state_dict().items()}
    save_file(weights, tmp_path / SINGLE)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "attractor", "attractor": OURS[name].to_dict()}))
    back = import_model(tmp_path)
    assert back.config == OURS[name]
    assert torch.equal(back(tokens() % 31)[0], model(tokens() % 31)[0])


def test_weights_are_read_as_safetensors_reads_them_shards_too(tmp_path: Path) -> None:
    saved(tmp_path / "one", spelled=False)
    saved(tmp_path / "several", spelled=False, shards="20KB")
    expected = load_file(tmp_path / "one" / SINGLE)
    (tmp_path / "one" / INDEX).write_bytes((tmp_path / "several" / INDEX).read_bytes())  # left over, and not read
    for folder in (tmp_path / "one", tmp_path / "several"):
        weights = {name: stored.read() for name, stored in StoredWeights.open(folder).tensors.items()}
        assert weights.keys() == expected.keys()
        assert all(torch.equal(weights[name], expected[name]) for name in expected)
    assert len({stored.file for stored in StoredWeights.open(tmp_path / "several").tensors.values()}) > 1


def test_half_precision_stays_and_norms_around_one_are_not_rounded(tmp_path: Path) -> None:
    for name in ("llama", "gemma"):
        saved(tmp_path / name, name, spelled=False).to(torch.bfloat16).save_pretrained(tmp_path / name)
    assert {weight.dtype for weight in import_model(tmp_path / "llama").parameters()} == {torch.bfloat16}
    assert {weight.dtype for weight in import_model(tmp_path / "llama", torch.float32).parameters()} == {torch.float32}
    gemma, stored = import_model(tmp_path / "gemma"), load_file(tmp_path / "gemma" / SINGLE)
    assert torch.equal(gemma.norm.weight, 1 + stored["model.norm.weight"].float())


def test_configurations_from_before_transformers_5_are_read_alike(llama: Path, tmp_path: Path) -> None:
    """Older configurations hold rope_theta and rope_scaling as separate fields, and leave out default values."""
    stored = json.loads((llama / "config.json").read_text())
    rope = stored.pop("rope_parameters")
    old = {"type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaled = {"rope_scaling": old | {"original_max_position_embeddings": 16}, "rope_theta": rope["rope_theta"]}
    for name in ("tie_word_embeddings", "head_dim", "attention_bias", "hidden_act", "mlp_bias"):
        del stored[name]
    (llama / "config.json").write_text(json.dumps(stored | scaled))
    expected = TransformerConfig(**SHAPE, vocab_size=VOCAB_SIZE, n_kv_heads=2, n_layers=3, positions="rope")
    scaling = "llama3:8.0:1.0:4.0:16"
    assert import_model(llama).config == expected.replace(tied_embeddings=False, rope_scaling=scaling)
    assert Rope(8, scaling=scaling).scaling == Scaling("llama3", (8, 1, 4, 16))


@torch.no_grad()
@pytest.mark.parametrize("name", ["gpt2", "gpt-neox", "gpt-neox bool"])
def test_older_files_have_other_names_and_buffers(name: str, tmp_path: Path) -> None:
    """GPT-2 was published without the prefix of its base model, and GPT-NeoX with another name of the readout.
    Both have buffers, some of them in dtypes that no weight has."""
    model = saved(tmp_path, name.split()[0], spelled=False)
    old = {"transformer.": "", "lm_head.": "embed_out."}
    layer = "gpt_neox.layers.0.attention"
    buffers = {
        "gpt2": {"h.0.attn.bias": torch.float32},
        "gpt-neox": {f"{layer}.masked_bias": torch.float32, f"{layer}.bias": torch.uint8},
        "gpt-neox bool": {f"{layer}.bias": torch.bool},
    }[name]

    def renamed(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        for new, older in old.items():
            weights = {weight.replace(new, older): values for weight, values in weights.items()}
        return weights | {buffer: torch.ones(1, 1, 4, 4, dtype=dtype) for buffer, dtype in buffers.items()}

    change_weights(tmp_path, renamed)
    torch.testing.assert_close(import_model(tmp_path)(tokens())[0], model(tokens()).logits, rtol=0, atol=1e-5)


@torch.no_grad()
def test_longrope_under_its_older_names(tmp_path: Path) -> None:
    """Phi-3's first files call LongRoPE "su", and later ones "yarn"."""
    model = saved(tmp_path, "phi3-longrope-beyond", spelled=False)
    stored = json.loads((tmp_path / "config.json").read_text())
    rope = stored.pop("rope_parameters")
    for kind in ("su", "yarn"):
        old = {"type": kind, "short_factor": rope["short_factor"], "long_factor": rope["long_factor"]}
        (tmp_path / "config.json").write_text(json.dumps(stored | {"rope_scaling": old, "rope_theta": 1e4}))
        torch.testing.assert_close(import_model(tmp_path)(tokens())[0], model(tokens()).logits, rtol=0, atol=1e-5)


ALONE = """
import resource, sys
from pathlib import Path
sys.modules["transformers"] = None  # importing it fails
import torch
from attractor.hf.import_models import import_model
def peak(): return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = peak()
model = import_model(sys.argv[1])
print((peak() - before) / (Path(sys.argv[1]) / "model.safetensors").stat().st_size)
"""


@pytest.mark.slow
def test_a_model_is_read_without_transformers_in_memory_of_its_own_size(tmp_path: Path) -> None:
    """Criterion: reading needs less than 1.15 times the size of the file, half of which is the embedding."""
    saved(tmp_path, spelled=False, hidden_size=512, num_hidden_layers=1, vocab_size=16_000)
    done = subprocess.run([sys.executable, "-c", ALONE, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 1.15


REFUSED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "gpt_oss": (
        {"model_type": "gpt_oss"},
        [
            "model_type must be one of attractor, llama",
            "attractor has no mixtures of experts (MoE), or attention sinks",
        ],
    ),
    "moe": ({"model_type": "qwen3_moe"}, ["'qwen3_moe'", "mixtures of experts (MoE)", "attractor measure"]),
    "nobody": ({"model_type": "nobodys"}, ["got 'nobodys'; "]),
    "encoder": (
        {"model_type": "bert"},
        ["'bert': a model with an encoder, whose positions see what comes after them; attractor imports, measures"],
    ),
    "encoder and decoder": ({"model_type": "t5"}, ["'t5': a model with an encoder", "causal language models alone"]),
    "norm after rotation": (
        {"model_type": "hunyuan_v1_dense"},
        ["attractor has no norm of queries and keys after their rotation; 'attractor evaluate' takes"],
    ),
    "experts": (
        {"model_type": "deepseek_v3", "first_k_dense_replace": 1, "num_hidden_layers": 3},
        ["first_k_dense_replace must be at least num_hidden_layers", "got 1", "mixtures of experts"],
    ),
    "bias": ({"attention_bias": True}, ["'model.layers.0.self_attn.q_proj.bias' must be in", "is missing"]),
    "mlp bias": ({"mlp_bias": True}, ["'model.layers.0.mlp.gate_proj.bias' must be in", "is missing"]),
    "bias of MLA": (
        {"model_type": "deepseek_v3", "attention_bias": True},
        ["attention_bias must be false", "got True", "biases in MLA"],
    ),
    "decoder as an encoder": (
        {"is_causal": False},
        ["is_causal must be true or left out", "got False", "causal language models alone"],
    ),
    "layers without rope": (
        {"model_type": "smollm3", "no_rope_layers": [0, 1, 1]},
        ["no_rope_layers must be 0 in the last of every so many layers", "other choice of layers without RoPE"],
    ),
    "windows": ({"layer_types": ["sliding_attention"] * 3}, ["layer_types must be full_attention in every layer"]),
    "too few layers": (
        {"model_type": "qwen3", "layer_types": ["full_attention"] * 2},
        ["layer_types must be full_attention or sliding_attention, once for each layer", "got ['full_attention', "],
    ),
    "chunks": (
        {"model_type": "gemma2", "layer_types": ["chunked_attention"] * 3},
        ["layer_types must be full_attention or sliding_attention, once for each layer", "other kinds of layers"],
    ),
    "scaling in local layers": (
        {"model_type": "olmo3", "rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0}}},
        ["rope_parameters must be of type default in layers with a window", "in these layers alone"],
    ),
    "reading ahead": (
        {"model_type": "gemma3_text", "use_bidirectional_attention": True},
        ["use_bidirectional_attention must be false or left out", "reading ahead"],
    ),
    "packed": ({"quantization_config": {"bits": 4}}, ["quantization_config must be false", "packed weights"]),
    "activation": ({"hidden_act": "relu"}, ["hidden_act must be silu or gelu", "got 'relu'"]),
    "axial": ({"rope_parameters": {"rope_type": "axial"}}, ["rope_parameters must be of type default", "axial"]),
    "part of a head": ({"partial_rotary_factor": 0.5}, ["rope_parameters must be of whole heads", "0.5"]),
    "scaling with too few numbers": (
        {"rope_parameters": LONG | {"short_factor": [1.0]}},
        ["rope_scaling must be longrope with lists of one length"],
    ),
    "scaling for another width": (
        {"rope_parameters": LONG | {"short_factor": [1.0], "long_factor": [1.0]}},
        ["rope_scaling must be longrope with 4 numbers in each list, half the rotated width"],
    ),
    "scaling without its factor": (
        {"rope_parameters": {"rope_type": "linear"}},
        ["rope_scaling must be linear:FACTOR", "got 'linear:None'"],
    ),
    "no width": ({"hidden_size": None}, ["hidden_size must be a whole number", "got None"]),
    "vocabulary": ({"vocab_size": 64}, ["'model.embed_tokens.weight' must have shape (64, 32)", "got (96, 32)"]),
    "heads": (
        {"num_key_value_heads": 4},
        ["'model.layers.0.self_attn.k_proj.weight' must have shape (32, 32)", "got (16, 32)"],
    ),
    "depth": ({"num_hidden_layers": 4}, ["'model.layers.3.self_attn.q_proj.weight' must be in"]),
    "shallow": ({"num_hidden_layers": 2}, ["every weight must have a place", "model.layers.2."]),
    "tied": ({"tie_word_embeddings": True}, ["lm_head.weight must be the embedding", "set it to false there"]),
}
YARN_WITHOUT_A_NUMBER = {"rope_type": "yarn", "factor": "4", "original_max_position_embeddings": 64}
MALFORMED: list[tuple[str, dict[str, Any]]] = [
    ("rms_norm_eps", {"rms_norm_eps": None}),
    ("num_key_value_heads", {"num_key_value_heads": "4"}),
    ("head_dim", {"head_dim": "8"}),
    ("rope_parameters", {"rope_parameters": "linear"}),
    ("rope_scaling", {"rope_scaling": "x"}),
    ("factor", {"rope_parameters": YARN_WITHOUT_A_NUMBER}),
    ("rope_theta", {"rope_parameters": {"rope_theta": "x"}}),
    ("short_factor", {"rope_parameters": LONG | {"short_factor": 5}}),
    ("layer_types", {"layer_types": 5}),
    ("hidden_size", {"hidden_size": True}),
    ("attractor", {"model_type": "attractor"}),
    ("query_pre_attn_scalar", {"model_type": "gemma2", "query_pre_attn_scalar": None}),
    ("query_pre_attn_scalar", {"model_type": "gemma2", "query_pre_attn_scalar": 0}),
    ("sliding_window", {"model_type": "mistral", "sliding_window": "x"}),
    ("logits_scaling", {"model_type": "granite", "logits_scaling": 0}),
    ("logits_scaling", {"model_type": "granite", "logits_scaling": None}),
]
REFUSED |= {str(fields): (fields, [f"{name} must be ", "got "]) for name, fields in MALFORMED}


def assert_in_one_line(refused: pytest.ExceptionInfo[InputError], words: list[str]) -> None:
    said = str(refused.value)
    assert "\n" not in said
    for word in words:
        assert word in said, said


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_fields_are_refused_by_name(name: str, llama: Path) -> None:
    changes, words = REFUSED[name]
    change(llama / "config.json", **changes)
    with pytest.raises(InputError) as refused:
        import_model(llama)
    assert_in_one_line(refused, words)


OUT_OF_THE_FOLDER = [{"w": name} for name in ("../elsewhere.safetensors", "/etc/passwd", 3, ["a"])]


@pytest.mark.parametrize("weight_map", [[], None, *OUT_OF_THE_FOLDER])
def test_an_index_without_names_or_that_leads_out_of_its_folder_is_refused(weight_map: Any, tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(InputError, match=r"must hold names of files in its own folder"):
        files_of(tmp_path)


def test_a_readout_that_is_the_embedding_may_be_stored_beside_it(tmp_path: Path) -> None:
    saved(tmp_path, "llama-tied-llama3", spelled=False)
    change_weights(tmp_path, lambda weights: weights | {"lm_head.weight": weights["model.embed_tokens.weight"].clone()})
    assert import_model(tmp_path).head is None


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda folder: (folder / SINGLE).unlink(), ["weights must be model.safetensors", "has neither"]),
        (
            lambda folder: (folder / SINGLE).rename(folder / "pytorch_model.bin"),
            ["must be safetensors, got 'pytorch_model.bin'", "is pickled", "convert it once with: python -c"],
        ),
        (lambda folder: (folder / SINGLE).write_bytes(b"{}" * 20), ["is damaged", "fetch it again"]),
        (
            lambda folder: (folder / SINGLE).write_bytes((folder / SINGLE).read_bytes()[:-100]),
            ["is damaged, or cut short"],
        ),
        (
            lambda folder: change_weights(folder, lambda weights: {n: w.to(torch.int8) for n, w in weights.items()}),
            ["must be stored as one of F64, F32, F16, BF16, got I8"],
        ),
        (lambda folder: (folder / "config.json").write_text("{"), ["is damaged", "one JSON object"]),
        (lambda folder: (folder / "config.json").unlink(), ["must hold config.json with a model_type"]),
        (
            lambda folder: change_weights(folder, lambda weights: {n: w for n, w in weights.items() if "lm_" not in n}),
            ["lm_head.weight must be in", "tie_word_embeddings is false, and is missing"],
        ),
        (shutil.rmtree, ["must be a folder here", "nothing is fetched"]),
    ],
    ids=["none", "pickled", "damaged", "cut short", "int8", "damaged config", "no config", "no readout", "no folder"],
)
def test_files_that_cannot_be_read_are_refused(spoil: Callable[[Path], None], words: list[str], llama: Path) -> None:
    spoil(llama)
    with pytest.raises(InputError) as refused:
        import_model(llama)
    assert_in_one_line(refused, words)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    saved(tmp_path, spelled=False, shards="20KB")
    (tmp_path / "model-00002-of-00007.safetensors").unlink()
    with pytest.raises(InputError, match="shard 'model-00002-of-00007.safetensors' must be in .*" + INDEX):
        import_model(tmp_path)


@torch.no_grad()
def test_a_run_holds_the_model_and_its_tokenizer_and_no_path(tmp_path: Path) -> None:
    model = saved(tmp_path / "llama")
    import_run(tmp_path / "llama", tmp_path / "run")
    run = finished_run(tmp_path / "run", CPU)
    torch.testing.assert_close(run.model(tokens())[0], model(tokens()).logits, rtol=0, atol=1e-4)
    folder = RunFolder.open(tmp_path / "run")
    text = "the cat and a can.\nQ!"
    tokenizer, theirs = tokenizer_of_run(folder), sentence_pieces()
    assert tokenizer.encode(text).tolist() == theirs.encode(text, add_special_tokens=False).ids
    assert tokenizer.end_of_text == theirs.token_to_id("</s>")
    summary = folder.summary() or {}
    assert summary["imported"]["from"] == "llama"
    assert not [file for file in folder.path.glob("*.json") if str(tmp_path) in file.read_text()]


def test_a_run_keeps_the_precision_of_what_was_imported(tmp_path: Path) -> None:
    saved(tmp_path / "llama").to(torch.bfloat16).save_pretrained(tmp_path / "llama")
    run = import_run(tmp_path / "llama", tmp_path / "run")
    stored = StoredWeights.open(next(run.checkpoints.iterdir())).tensors
    assert {weight.dtype for weight in stored.values()} == {"BF16"}


def test_a_folder_that_is_not_empty_is_refused(llama: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "letter.txt").write_text("dear")
    with pytest.raises(InputError, match="out must be a new or empty folder"):
        import_run(llama, tmp_path / "run")
    assert [file.name for file in (tmp_path / "run").iterdir()] == ["letter.txt"]


def test_a_model_without_tokenizer_is_imported_with_a_message_that_says_so(tmp_path: Path) -> None:
    """Criterion: the message names the way to a tokenizer, and exports have the ids of special tokens."""
    saved(tmp_path / "llama", spelled=False)
    run = import_run(tmp_path / "llama", tmp_path / "run")
    for to in ("hf", "llama"):
        export(ExportArguments(run.path, to, tmp_path / f"as-{to}"), Console(quiet=True))
        stored = json.loads((tmp_path / f"as-{to}" / "config.json").read_text())
        assert [stored[f"{name}_token_id"] for name in ("bos", "eos", "pad")] == [1, 2, 0]
    assert run.finished
    assert not (run.path / TOKENIZER).exists()
    assert "has no tokenizer.json, so this run can neither generate text nor" in missing_tokenizer_message(
        tmp_path / "llama"
    )
    (tmp_path / "llama" / "tokenizer.model").touch()
    assert "make one of its tokenizer.model with: python -c" in missing_tokenizer_message(tmp_path / "llama")


def test_a_tokenizer_larger_than_the_vocabulary_is_refused(tmp_path: Path) -> None:
    saved(tmp_path / "llama")
    larger = sentence_pieces()
    larger.add_tokens(["tomorrow"])
    larger.save(str(tmp_path / "llama" / "tokenizer.json"))
    with pytest.raises(InputError, match=f"must have at most the {VOCAB_SIZE} tokens .*, got {VOCAB_SIZE + 1}"):
        import_run(tmp_path / "llama", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_our_bytes_come_back_as_bytes(tmp_path: Path) -> None:
    saved(tmp_path / "llama", spelled=False, vocab_size=320)
    as_fast_tokenizer(ByteTokenizer()).save_pretrained(tmp_path / "llama")
    run = import_run(tmp_path / "llama", tmp_path / "run")
    assert (run.path / TOKENIZER).read_bytes() == ByteTokenizer.definition
    assert restore(ByteTokenizer.definition, "").fingerprint == tokenizer_of_run(run).fingerprint


def test_the_page_has_a_row_for_every_architecture_with_the_fields_that_are_refused() -> None:
    page = (ROOT / "docs" / "import.md").read_text().partition("\n- **Scaled RoPE**")[0]
    for known in ARCHITECTURES:
        (row,) = re.findall(rf"^\| `{known.model_type}` \|.*$", page, re.MULTILINE)
        assert row.endswith(f"| {', '.join(f'`{need.field}`' for need in known.needs)} |")


@pytest.mark.parametrize("name", ["qwen2", "mistral", "deepseek_v3", "gemma3_text"])
def test_a_damaged_field_of_config_json_is_refused_in_one_line(name: str) -> None:
    """Criterion: whatever stands in one field, or if it is missing, only an InputError leaves the translation."""
    sizes = dict.fromkeys(("hidden_size", "vocab_size", "intermediate_size"), 64)
    counts = {"num_attention_heads": 4, "num_key_value_heads": 4, "num_hidden_layers": 2}
    stored = transformers.AutoConfig.for_model(name, **sizes, **counts).to_dict()
    for field in (*stored, "use_sliding_window"):
        for value in (None, "x", -1, [], {}, math.inf, True, [{}], 10**400):
            with suppress(InputError):
                architecture(name).config(stored | {field: value})
        with suppress(InputError):
            architecture(name).config({key: value for key, value in stored.items() if key != field})
