"""Small models for the tests of logits: our models by preset, Hugging Face's by family."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from attractor.attention import PRESETS
from attractor.models import TransformerConfig

B, T = 3, 21
SCORING = [name for name in PRESETS if name not in ("uniform", "decay", "gated-deltanet")]


def small(attention: str = "standard", seed: int = 0, **changes: Any) -> nn.Module:
    config = TransformerConfig(
        vocab_size=40, d_model=32, n_heads=4, n_layers=2, d_ff=16, max_seq_len=32, positions="rope", attention=attention
    )
    return config.replace(**changes).build(seed).train()


def tokens(seed: int, batch: int = B) -> Tensor:
    return torch.randint(40, (batch, T), generator=torch.Generator().manual_seed(seed))


SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
COMMON = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 40, "intermediate_size": 16} | SPECIAL
COMMON |= {"max_position_embeddings": 64}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
LATENT = {"num_attention_heads": 4, "num_key_value_heads": 4, "kv_lora_rank": 12, "qk_nope_head_dim": 10}
LATENT |= {"qk_rope_head_dim": 6, "v_head_dim": 14, "n_routed_experts": 2, "num_experts_per_tok": 1}
LATENT |= {"n_group": 1, "topk_group": 1, "moe_intermediate_size": 8, "first_k_dense_replace": 2}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {**COMMON, **HEADS}),
    "llama-biased": ("LlamaConfig", {**COMMON, **HEADS, "num_key_value_heads": 4, "attention_bias": True}),
    "qwen2": ("Qwen2Config", {**COMMON, **HEADS}),
    "mistral": ("MistralConfig", {**COMMON, **HEADS, "sliding_window": 5}),
    "gemma2": ("Gemma2Config", {**COMMON, **HEADS, "head_dim": 8, "sliding_window": 5, "attn_logit_softcapping": 0.5}),
    "gpt2": (
        "GPT2Config",
        {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 40, "n_positions": 64}
        | {"scale_attn_by_inverse_layer_idx": True, "bos_token_id": 1, "eos_token_id": 2},
    ),
    "gpt-neox": ("GPTNeoXConfig", {**COMMON, "num_attention_heads": 4}),
    "phi3": ("Phi3Config", {**COMMON, **HEADS}),
    "deepseek-v2": ("DeepseekV2Config", {**COMMON, **LATENT, "q_lora_rank": None}),
    "deepseek-v3": ("DeepseekV3Config", {**COMMON, **LATENT, "q_lora_rank": 20}),
    "diffllama": ("DiffLlamaConfig", {**COMMON, **HEADS}),
    "qwen3": ("Qwen3Config", {**COMMON, **HEADS, "head_dim": 8}),
}


def of_family(family: str, implementation: str = "eager", **changes: Any) -> nn.Module:
    import transformers

    name, settings = FAMILIES[family]
    config = getattr(transformers, name)(**settings | changes)
    torch.manual_seed(0)
    return disturbed(transformers.AutoModelForCausalLM.from_config(config, attn_implementation=implementation), 0.2)


def disturbed(model: nn.Module, by: float) -> nn.Module:
    """Return the model for training, without dropout. Biases of 0 and logits near 0, which would hide mistakes, go."""
    for module in model.train().modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    for parameter in model.parameters():
        parameter.data.add_(by * torch.randn_like(parameter))
    return model


def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
    out = model(batch)
    return (out[0] if isinstance(out, tuple) else out.logits).square().mean()


def backward(model: nn.Module, seed: int) -> None:
    model.zero_grad()
    loss_of(model, tokens(seed)).backward()


def give_gradients(model: nn.Module, step: int) -> None:
    """Give random gradients to all parameters that are not frozen."""
    generator = torch.Generator().manual_seed(step)
    for parameter in model.parameters():
        gradient = torch.randn(parameter.shape, generator=generator).to(parameter)
        parameter.grad = gradient if parameter.requires_grad else None


def take_steps(model: nn.Module, optimizer: Optimizer, steps: range = range(1)) -> None:
    for step in steps:
        give_gradients(model, step)
        optimizer.step()


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def assert_same(model: nn.Module, wanted: nn.Module | dict[str, Tensor]) -> None:
    """Check that a model has the weights of another, or those that are given, to the bit."""
    for name, weight in (weights(wanted) if isinstance(wanted, nn.Module) else wanted).items():
        assert torch.equal(model.get_parameter(name), weight), name
