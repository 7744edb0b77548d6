"""Tiny models of every architecture that can be imported, with random weights, as Hugging Face saves them."""

from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from torch import Tensor

VOCAB_SIZE = 96
COMMON: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "vocab_size": VOCAB_SIZE,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
MLA = {
    "num_key_value_heads": 4,
    "q_lora_rank": 20,
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 6,
    "v_head_dim": 14,
    "first_k_dense_replace": 3,
    "n_routed_experts": 2,
    "num_experts_per_tok": 1,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 8,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-tied-llama3": ("llama", {"tie_word_embeddings": True, "rope_parameters": LLAMA3}),
    "llama-linear": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}),
    "llama-gelu-wide-heads": ("llama", {"hidden_act": "gelu", "head_dim": 16, "rms_norm_eps": 1e-3}),
    "mistral": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"head_dim": 16, "rms_norm_eps": 1e-3}),
    "gemma": ("gemma", {"head_dim": 16, "num_key_value_heads": 1}),
    "olmo2": ("olmo2", {"rms_norm_eps": 1e-3}),
    "deepseek-v3": ("deepseek_v3", MLA),
    "diffllama": ("diffllama", {}),
}


def theirs(name: str, **changes: Any) -> Any:
    """The model, with weights large enough for every one of them to matter."""
    model_type, own = MODELS[name]
    config = transformers.AutoConfig.for_model(model_type, **COMMON | own | changes)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for weight in model.parameters():
        weight.data.normal_(std=0.3)
    return model


def saved(folder: Path, name: str = "llama", spelled: bool = True, shards: str = "5GB", **changes: Any) -> Any:
    model = theirs(name, **changes)
    model.save_pretrained(folder, max_shard_size=shards)
    if spelled:
        sentence_pieces().save(str(folder / "tokenizer.json"))
    return model


def sentence_pieces() -> tokenizers.Tokenizer:
    """Llama's kind: pieces of words behind a sign for the space, and bytes for what is in no piece."""
    specials = ["<unk>", "<s>", "</s>"]
    letters = ["▁", *"abcdefghijklmnopqrstuvwxyz.\n"]
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("a", "n"), ("▁", "a"), ("c", "a")]
    vocabulary = [*specials, *letters, *("".join(pair) for pair in merges)]
    vocabulary += [f"<0x{byte:02X}>" for byte in range(0x20, 0x20 + VOCAB_SIZE - len(vocabulary))]
    made = tokenizers.Tokenizer(
        tokenizers.models.BPE(
            vocab={spelling: i for i, spelling in enumerate(vocabulary)},
            merges=merges,
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    made.decoder = tokenizers.decoders.Sequence(
        [
            tokenizers.decoders.Replace("▁", " "),
            tokenizers.decoders.ByteFallback(),
            tokenizers.decoders.Fuse(),
            tokenizers.decoders.Strip(" ", 1, 0),
        ]
    )
    made.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    made.add_special_tokens(specials)
    return made


def tokens(length: int = 40) -> Tensor:
    return torch.randint(0, VOCAB_SIZE, (2, length), generator=torch.Generator().manual_seed(1))
