"""Tiny models of every architecture that can be imported, with random weights, as Hugging Face saves them."""

import json
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from torch import Tensor

VOCAB_SIZE = 96
COMMON: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 3, "vocab_size": VOCAB_SIZE, "intermediate_size": 48}
COMMON |= {"num_attention_heads": 4, "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "original_max_position_embeddings": 16}
LLAMA3 |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
NARROW = {"num_key_value_heads": 4, "q_lora_rank": 20, "kv_lora_rank": 12}
NARROW |= {"qk_nope_head_dim": 10, "qk_rope_head_dim": 6, "v_head_dim": 14}
MLA = NARROW | {"first_k_dense_replace": 3, "n_routed_experts": 2, "num_experts_per_tok": 1}
MLA |= {"n_group": 1, "topk_group": 1, "moe_intermediate_size": 8}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
BETAS = {"beta_fast": 4.0, "beta_slow": 0.02}  # for heads this narrow, the default values leave no ramp
LONG = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0, 1.25, 1.5, 2.0]}
LONG |= {"long_factor": [1.0, 2.0, 4.0, 8.0]}
BEYOND = {"max_position_embeddings": 64, "original_max_position_embeddings": 16}
HALF = {"partial_rotary_factor": 0.5}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
MULTIPLIERS = {"embedding_multiplier": 3.0, "residual_multiplier": 0.4, "attention_multiplier": 0.2}
MULTIPLIERS |= {"logits_scaling": 4.0}
BIASES = {"attention_bias": True, "mlp_bias": True}
WINDOW: dict[str, Any] = {"sliding_window": 8}
MIXED = ["full_attention", "sliding_attention", "sliding_attention"]
CAPS = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}
GPT2: dict[str, Any] = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_inner": 48, "n_positions": 64}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-biased": ("llama", BIASES),
    "llama-swish-wide-heads-linear": ("llama", {"hidden_act": "swish", "head_dim": 16, "rope_parameters": LINEAR}),
    "llama-gelu-new": ("llama", {"hidden_act": "gelu_new"}),
    "llama-dynamic": ("llama", {"rope_parameters": DYNAMIC, "max_position_embeddings": 64}),
    "llama-dynamic-beyond": ("llama", {"rope_parameters": DYNAMIC, "max_position_embeddings": 16}),
    "llama-yarn": ("llama", {"rope_parameters": YARN | BETAS}),
    "llama-yarn-usual-betas": ("llama", {"rope_parameters": YARN | {"original_max_position_embeddings": 2048}}),
    "llama-yarn-not-rounded": ("llama", {"rope_parameters": YARN | BETAS | {"truncate": False}}),
    "llama-yarn-attention-factor": ("llama", {"rope_parameters": YARN | BETAS | {"attention_factor": 1.3}}),
    "llama-yarn-mscale": ("llama", {"rope_parameters": YARN | BETAS | {"mscale": 0.7, "mscale_all_dim": 0.4}}),
    "llama-longrope": ("llama", {"rope_parameters": LONG | {"factor": 4.0, "original_max_position_embeddings": 64}}),
    "llama-longrope-beyond": (
        "llama",
        {"rope_parameters": LONG | {"original_max_position_embeddings": 16}, "max_position_embeddings": 64},
    ),
    "llama-longrope-attention-factor": (
        "llama",
        {"rope_parameters": LONG | {"original_max_position_embeddings": 16, "attention_factor": 1.2, "factor": 2.0}},
    ),
    "llama-tied-llama3": ("llama", {"tie_word_embeddings": True, "rope_parameters": LLAMA3}),
    "llama-gelu-wide-heads": ("llama", {"hidden_act": "gelu", "head_dim": 16, "rms_norm_eps": 1e-3}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral-yarn": ("mistral", {"sliding_window": None, "rope_parameters": YARN | BETAS}),
    "mistral-window": ("mistral", {"sliding_window": 8}),
    "ministral": ("ministral", WINDOW | {"head_dim": 8}),
    "ministral-mixed": ("ministral", WINDOW | {"layer_types": MIXED, "head_dim": 16}),
    "cwm": ("cwm", WINDOW | {"head_dim": 8, "rope_parameters": LLAMA3}),
    "seed-oss": ("seed_oss", {"head_dim": 16}),
    "seed-oss-biased": ("seed_oss", BIASES | {"head_dim": 8, "attention_out_bias": True}),
    "internlm3": ("internlm3", {"head_dim": 8, "rope_parameters": DYNAMIC, "max_position_embeddings": 16}),
    "internlm3-biased": ("internlm3", BIASES | {"head_dim": 16}),
    "iquestcoder": ("iquestcoder", {"head_dim": 16}),
    "arcee": ("arcee", {"rope_parameters": YARN | BETAS}),
    "arcee-biased": ("arcee", BIASES),
    "jais2": ("jais2", {"layer_norm_eps": 1e-3}),
    "nemotron": ("nemotron", {}),
    "nemotron-biased-whole": ("nemotron", BIASES | {"partial_rotary_factor": 1.0}),
    "cohere2": ("cohere2", WINDOW | {"num_hidden_layers": 4}),
    "cohere2-everywhere-windows": ("cohere2", WINDOW | {"layer_types": ["sliding_attention"] * 3}),
    "exaone4": ("exaone4", WINDOW | {"sliding_window_pattern": 2}),
    "exaone4-whole": ("exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 3}),
    "vaultgemma": ("vaultgemma", WINDOW | CAPS | {"head_dim": 16, "query_pre_attn_scalar": 20}),
    "youtu": ("youtu", NARROW),
    "hyperclovax": ("hyperclovax", {}),
    "hyperclovax-multiplied": ("hyperclovax", MULTIPLIERS | {"use_post_norm": False}),
    "ernie": ("ernie4_5", {"head_dim": 16}),
    "ernie-biased": ("ernie4_5", {"use_bias": True, "head_dim": 8, "tie_word_embeddings": False}),
    "glm": ("glm", {"head_dim": 16}),
    "glm-unbiased-whole": ("glm", {"head_dim": 8, "attention_bias": False, "partial_rotary_factor": 1.0}),
    "glm4": ("glm4", {"head_dim": 16}),
    "helium": ("helium", {"head_dim": 8}),
    "helium-biased": ("helium", {"head_dim": 8, "attention_bias": True}),
    "qwen2": ("qwen2", {}),
    "qwen2-last-windows": ("qwen2", WINDOW | {"use_sliding_window": True, "max_window_layers": 1}),
    "qwen2-tied-yarn": ("qwen2", {"tie_word_embeddings": True, "rope_parameters": YARN | BETAS}),
    "qwen3": ("qwen3", {"head_dim": 16, "rms_norm_eps": 1e-3}),
    "qwen3-window": ("qwen3", WINDOW | {"use_sliding_window": True, "layer_types": MIXED, "head_dim": 8}),
    "qwen3-biased": ("qwen3", {"head_dim": 8, "attention_bias": True}),
    "gemma": ("gemma", {"head_dim": 16, "num_key_value_heads": 1}),
    "gemma-biased": ("gemma", {"head_dim": 8, "attention_bias": True, "hidden_act": "gelu"}),
    "gemma2": ("gemma2", WINDOW | CAPS | {"head_dim": 16, "query_pre_attn_scalar": 20}),
    "gemma2-uncapped-biased": (
        "gemma2",
        WINDOW
        | {"attn_logit_softcapping": None, "final_logit_softcapping": None, "attention_bias": True, "head_dim": 8}
        | {"hidden_activation": "gelu", "layer_types": MIXED},
    ),
    "gemma3": ("gemma3_text", WINDOW | {"head_dim": 16, "sliding_window_pattern": 2, "num_key_value_heads": 1}),
    "gemma3-linear-capped": (
        "gemma3_text",
        WINDOW
        | {"head_dim": 8, "layer_types": MIXED, "final_logit_softcapping": 2.0, "query_pre_attn_scalar": 5}
        | {"rope_parameters": {"full_attention": LINEAR, "sliding_attention": {"rope_type": "default"}}},
    ),
    "gemma3-wide-window": ("gemma3_text", {"head_dim": 8, "layer_types": MIXED, "max_position_embeddings": 64}),
    "olmo3": ("olmo3", WINDOW | {"num_hidden_layers": 4}),
    "olmo3-yarn": (
        "olmo3",
        WINDOW
        | {"layer_types": MIXED, "attention_bias": True}
        | {"rope_parameters": {"full_attention": YARN | BETAS, "sliding_attention": {"rope_type": "default"}}},
    ),
    "olmo2": ("olmo2", {"rms_norm_eps": 1e-3}),
    "olmo2-biased": ("olmo2", {"attention_bias": True}),
    "deepseek-v3": ("deepseek_v3", MLA),
    "deepseek-v3-yarn": (
        "deepseek_v3",
        MLA | {"rope_parameters": YARN | BETAS | {"mscale": 1.0, "mscale_all_dim": 1.0}},
    ),
    "deepseek-v3-yarn-sizes": (
        "deepseek_v3",
        MLA | {"rope_parameters": YARN | BETAS | {"mscale": 0.7, "mscale_all_dim": 0.4}},
    ),
    "diffllama": ("diffllama", {}),
    "diffllama-biased": ("diffllama", {"attention_bias": True}),
    "phi3": ("phi3", {}),
    "phi3-window": ("phi3", WINDOW),
    "phi3-partial": ("phi3", {"rope_parameters": HALF}),
    "phi3-longrope": ("phi3", BEYOND | {"rope_parameters": LONG, "original_max_position_embeddings": 64}),
    "phi3-longrope-beyond": ("phi3", BEYOND | {"rope_parameters": LONG}),
    "phi3-longrope-partial": (
        "phi3",
        BEYOND | {"rope_parameters": LONG | HALF | {"short_factor": [1.0, 1.5], "long_factor": [1.0, 3.0]}},
    ),
    "smollm3": ("smollm3", {"no_rope_layer_interval": 2}),
    "smollm3-all-rope-biased": ("smollm3", BIASES | {"tie_word_embeddings": False}),
    "granite": ("granite", MULTIPLIERS),
    "granite-biased-tied": ("granite", MULTIPLIERS | BIASES | {"tie_word_embeddings": True}),
    "gpt2": ("gpt2", GPT2),
    "gpt2-usual-inner-unscaled": ("gpt2", GPT2 | {"n_inner": None, "scale_attn_weights": False}),
    "gpt2-untied-gelu": ("gpt2", GPT2 | {"tie_word_embeddings": False, "activation_function": "gelu"}),
    "gpt-neox": ("gpt_neox", {}),
    "gpt-neox-sequential": ("gpt_neox", {"use_parallel_residual": False}),
    "gpt-neox-unbiased-tied": (
        "gpt_neox",
        {"attention_bias": False, "tie_word_embeddings": True, "rope_parameters": HALF},
    ),
    "stablelm": ("stablelm", {"rope_parameters": HALF}),
    "stablelm-parallel-biased": ("stablelm", {"use_parallel_residual": True, "use_qkv_bias": True}),
    "starcoder2": ("starcoder2", {"hidden_act": "gelu_pytorch_tanh"}),
    "starcoder2-unbiased-window": ("starcoder2", {"use_bias": False, "sliding_window": 8}),
    "cohere": ("cohere", {}),
    "cohere-biased-untied": ("cohere", {"attention_bias": True, "tie_word_embeddings": False, "logit_scale": 0.8333}),
}


FAST = [  # one of each architecture
    *("llama-yarn-mscale", "mistral", "qwen2", "qwen3-window", "gemma", "olmo2", "deepseek-v3-yarn", "diffllama"),
    *("gemma2", "gemma3-linear-capped", "olmo3-yarn", "phi3-longrope-partial", "smollm3", "granite", "gpt2"),
    *("gpt-neox", "stablelm-parallel-biased", "starcoder2", "cohere"),
]


def theirs(name: str, **changes: Any) -> Any:
    """Build transformers' model of this name, with weights so large that each of them changes the logits."""
    model_type, fields = MODELS[name]
    config = transformers.AutoConfig.for_model(model_type, **COMMON | fields | changes)
    torch.manual_seed(0)
    # With any other attention, transformers 5.17 leaves Gemma 2's cap out.
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for name, weight in model.named_parameters():
        weight.data.normal_(std=0.2)
        if weight.ndim == 1 and "norm" in name and not model_type.startswith("gemma"):
            weight.data.add_(1)
    return model


def saved(folder: Path, name: str = "llama", spelled: bool = True, shards: str = "5GB", **changes: Any) -> Any:
    """Save the model in the folder and return it. With `spelled`, the folder also has a tokenizer.json."""
    model = theirs(name, **changes)
    model.save_pretrained(folder, max_shard_size=shards)
    if spelled:
        sentence_pieces().save(str(folder / "tokenizer.json"))
    return model


def sentence_pieces() -> tokenizers.Tokenizer:
    """Build a tokenizer of Llama's kind: pieces of words after a sign for the space, and bytes for all other text."""
    specials = ["<unk>", "<s>", "</s>"]
    letters = ["▁", *"abcdefghijklmnopqrstuvwxyz.\n"]
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("a", "n"), ("▁", "a"), ("c", "a")]
    vocabulary = [*specials, *letters, *("".join(pair) for pair in merges)]
    vocabulary += [f"<0x{byte:02X}>" for byte in range(0x20, 0x20 + VOCAB_SIZE - len(vocabulary))]
    ids = {spelling: i for i, spelling in enumerate(vocabulary)}
    pairs = tokenizers.models.BPE(vocab=ids, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    made, parts = tokenizers.Tokenizer(pairs), tokenizers.decoders
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    made.decoder = parts.Sequence([parts.Replace("▁", " "), parts.ByteFallback(), parts.Fuse(), parts.Strip(" ", 1, 0)])
    made.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    made.add_special_tokens(specials)
    return made


def change(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def tokens(length: int = 40) -> Tensor:
    return torch.randint(0, VOCAB_SIZE, (2, length), generator=torch.Generator().manual_seed(1))
