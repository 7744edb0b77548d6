"""The table of Hugging Face architectures whose models attractor imports as Transformers, and exports again."""

from attractor.errors import InputError
from attractor.hf import read_config as read
from attractor.hf import write_config as write
from attractor.hf.architecture import ALTERNATIVE, BEFORE, NOT_CAUSAL, Architecture, Names, Need, off

GEMMA = {"gelu_pytorch_tanh": "geglu-tanh", "gelu": "geglu-tanh"}  # its first config files say gelu and mean tanh
PLAIN = {"gelu": "gelu", "gelu_new": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh", "gelu_fast": "gelu-tanh"}
AFTER = {"attention_post_norm": "post_attention_layernorm", "mlp_post_norm": "post_feedforward_layernorm"}
LOCAL_ROPE = Need(
    "rope_parameters",
    "of type default in layers with a window",
    lambda stored: read.rope_type(stored, "local_rope_parameters") == "default",
    "scaling of positions in these layers alone",
)
NO_WINDOW = off("use_sliding_window", "sliding windows in this architecture")

NO_FORESIGHT = off("use_bidirectional_attention", "reading ahead")
QWEN = {
    "num_key_value_heads": 32,
    "max_position_embeddings": 32_768,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
GEMMA1 = {
    "hidden_act": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
    "head_dim": 256,
    "num_key_value_heads": 16,
    "max_position_embeddings": 8192,
}
GEMMA2 = GEMMA1 | {
    "num_key_value_heads": 4,
    "sliding_window": 4096,
    "query_pre_attn_scalar": 256,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}
MULTIPLIERS = ("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling")
FOUR_NORMS = BEFORE | AFTER | {"mlp_norm": "pre_feedforward_layernorm"}

ARCHITECTURES: tuple[Architecture, ...] = (
    Architecture(
        "llama",
        "Llama 1 to 3.3, SmolLM, TinyLlama, Yi",
        "llama",
        read.shape,
        "`standard` with `n_kv_heads`, RoPE with any scaling, `swiglu`, biases where it has them",
    ),
    Architecture(
        "mistral",
        "Mistral",
        "llama",
        read.with_window,
        "as Llama, with a `window` in 7B v0.1",
        describe=write.window,
        windows=True,
        defaults={"sliding_window": 4096, "num_key_value_heads": 8, "max_position_embeddings": 131_072},
    ),
    Architecture(
        "qwen2",
        "Qwen 1.5, 2 and 2.5",
        "qwen2",
        read.biased,
        "as Llama, with `qkv_bias`, and `window` and `global_layers` where it has them",
        describe=write.qwen2,
        windows=True,
        defaults=QWEN,
    ),
    Architecture(
        "qwen3",
        "Qwen3, dense",
        "qwen3",
        read.normed,
        "as Llama, with `qk_norm` and `head_dim`, and `window` and `global_layers` where it has them",
        describe=write.qwen3,
        windows=True,
        defaults=QWEN | {"head_dim": 128},
    ),
    Architecture(
        "gemma",
        "Gemma 1 and CodeGemma",
        "llama",
        read.scaled_embeddings,
        "`embedding_scale` = sqrt(d_model), `geglu-tanh`; norms stored as w are 1 + w",
        (NO_FORESIGHT,),
        lambda config: write.shape(config) | {"head_dim": write.first_layer(config).layout.free},
        norm_offset=1.0,
        activations=GEMMA,
        defaults=GEMMA1,
    ),
    Architecture(
        "gemma2",
        "Gemma 2",
        "llama",
        read.gemma2,
        "as Gemma, with four norms, `softcap`, `logit_softcap`, `attention_scale`, and a `window` in every other layer",
        (NO_FORESIGHT,),
        write.gemma2,
        names=Names(norms=FOUR_NORMS),
        norm_offset=1.0,
        windows=True,
        defaults=GEMMA2,
        aliases={"hidden_activation": "hidden_act"},
    ),
    Architecture(
        "gemma3_text",
        "Gemma 3, text alone",
        "gemma3",
        read.gemma3,
        "as Gemma 2, with `qk_norm` in place of the caps, `global_layers` and `local_rope_theta`",
        (NO_FORESIGHT, LOCAL_ROPE, off("attn_logit_softcapping", "cap that transformers does not apply")),
        write.gemma3,
        names=Names(norms=FOUR_NORMS),
        norm_offset=1.0,
        windows=True,
        defaults=GEMMA2
        | {
            "max_position_embeddings": 131_072,
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            "rope_theta": 1e6,
        },
        aliases={"hidden_activation": "hidden_act"},
    ),
    Architecture(
        "olmo2",
        "OLMo 2",
        "llama",
        read.normed_after,
        "`post_norm`, and `qk_norm_across`: QK-norm over all heads together",
        names=Names(norms=AFTER),
        defaults={"rms_norm_eps": 1e-5},
    ),
    Architecture(
        "olmo3",
        "OLMo 3",
        "llama",
        read.olmo3,
        "as OLMo 2, with a `window`, `global_layers`, and YaRN in the global layers alone (`local_rope_theta`)",
        (LOCAL_ROPE,),
        write.olmo3,
        names=Names(norms=AFTER),
        windows=True,
        defaults={"rms_norm_eps": 1e-5, "sliding_window": 4096, "rope_theta": 5e5},
    ),
    Architecture(
        "phi3",
        "Phi-3 and Phi-4 mini, Phi-4",
        "phi3",
        read.with_window,
        "as Llama, with `rope_fraction`, LongRoPE, and a `window` where it has one; fused matrices are split",
        (
            Need(
                "rope_parameters",
                "of type default or longrope",
                lambda stored: read.rope_type(stored) in ("default", "longrope"),
                "such scaling of positions in this architecture",
            ),
        ),
        write.phi3,
        windows=True,
        names=Names(mlp={"mlp.gate_up_proj": ["gate", "up"], "mlp.down_proj": ["down"]}),
        partial_rotation=True,
        defaults={
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 4096,
            "original_max_position_embeddings": 4096,
            "sliding_window": None,
        },
    ),
    Architecture(
        "smollm3",
        "SmolLM3",
        "llama",
        read.some_without_rope,
        "as Llama, with `no_rope_every`: layers without RoPE",
        (
            NO_WINDOW,
            Need(
                "no_rope_layers",
                "0 in the last of every so many layers and 1 in the others",
                lambda stored: (
                    read.rotated_layers(stored)
                    == read.rotated_layers_of(
                        stored["num_hidden_layers"], read.some_without_rope(stored)["no_rope_every"]
                    )
                ),
                "other choice of layers without RoPE",
            ),
        ),
        write.without_rope,
        defaults={
            "tie_word_embeddings": True,
            "num_key_value_heads": 4,
            "max_position_embeddings": 32_768,
            "no_rope_layer_interval": 4,
            "rope_theta": 2e6,
        },
    ),
    Architecture(
        "granite",
        "Granite 3, dense",
        "llama",
        read.multiplied,
        "as Llama, with `embedding_scale`, `branch_scale`, `attention_scale` and `logit_scale`",
        describe=write.multiplied,
        defaults=dict.fromkeys(MULTIPLIERS, 1.0),
    ),
    Architecture(
        "gpt2",
        "GPT-2, DistilGPT-2",
        "gpt2",
        read.gpt2,
        "`stream_norm` = layernorm, learned positions, `gelu-tanh`, biases everywhere",
        (
            off("scale_attn_by_inverse_layer_idx", "scale of attention by layer"),
            off("add_cross_attention", "attention to another sequence"),
        ),
        write.gpt2,
        names=Names(
            base="transformer.",
            embedding="wte",
            positions="wpe",
            norm="ln_f",
            blocks="h",
            attention="attn",
            norms={"attention_norm": "ln_1", "mlp_norm": "ln_2"},
            mlp={"mlp.c_fc": ["up"], "mlp.c_proj": ["down"]},
            transposed=True,
            not_weights=(".attn.bias", ".attn.masked_bias"),
        ),
        activations=PLAIN,
        defaults={
            "hidden_act": "gelu_new",
            "tie_word_embeddings": True,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 1024,
            "scale_attn_weights": True,
        },
        aliases={
            "n_embd": "hidden_size",
            "n_positions": "max_position_embeddings",
            "n_layer": "num_hidden_layers",
            "n_head": "num_attention_heads",
            "n_inner": "intermediate_size",
            "activation_function": "hidden_act",
            "layer_norm_epsilon": "rms_norm_eps",
        },
    ),
    Architecture(
        "gpt_neox",
        "GPT-NeoX, Pythia",
        "gpt-neox",
        read.parallel,
        "`stream_norm` = layernorm, `parallel_branches`, `rope_fraction`, biases, `gelu`",
        describe=write.parallel,
        names=Names(
            base="gpt_neox.",
            embedding="embed_in",
            norm="final_layer_norm",
            attention="attention",
            mlp={"mlp.dense_h_to_4h": ["up"], "mlp.dense_4h_to_h": ["down"]},
            not_weights=("inv_freq", ".attention.bias", ".attention.masked_bias"),
            older={"lm_head.weight": "embed_out.weight"},
        ),
        activations=PLAIN,
        partial_rotation=True,
        defaults={
            "hidden_act": "gelu",
            "rms_norm_eps": 1e-5,
            "attention_bias": True,
            "use_parallel_residual": True,
            "partial_rotary_factor": 0.25,
        },
        aliases={
            "layer_norm_eps": "rms_norm_eps",
            "rotary_emb_base": "rope_theta",
            "rotary_pct": "partial_rotary_factor",
        },
    ),
    Architecture(
        "stablelm",
        "StableLM 3B and 2",
        "llama",
        read.stablelm,
        "`stream_norm` = layernorm, `rope_fraction`, `qkv_bias` and `parallel_branches` where it has them",
        (off("qk_layernorm", "LayerNorm of queries and keys"),),
        write.stablelm,
        partial_rotation=True,
        defaults={
            "rms_norm_eps": 1e-5,
            "num_key_value_heads": 32,
            "max_position_embeddings": 4096,
            "use_qkv_bias": False,
            "use_parallel_residual": False,
            "partial_rotary_factor": 0.25,
        },
        aliases={"layer_norm_eps": "rms_norm_eps"},
    ),
    Architecture(
        "starcoder2",
        "StarCoder 2",
        "llama",
        read.starcoder2,
        "`stream_norm` = layernorm, biases, `gelu-tanh`, and a `window` where it has one",
        describe=write.window,
        names=Names(mlp={"mlp.c_fc": ["up"], "mlp.c_proj": ["down"]}),
        activations=PLAIN,
        windows=True,
        defaults={
            "hidden_act": "gelu_pytorch_tanh",
            "tie_word_embeddings": True,
            "rms_norm_eps": 1e-5,
            "num_key_value_heads": 2,
            "max_position_embeddings": 4096,
            "attention_bias": True,
        },
        aliases={"norm_epsilon": "rms_norm_eps", "use_bias": "attention_bias"},
    ),
    Architecture(
        "cohere",
        "Command R, Aya 23",
        "cohere",
        read.parallel_with_one_norm,
        "`stream_norm` = layernorm-no-bias, `parallel_branches` with one norm, `logit_scale`",
        (off("use_qk_norm", "LayerNorm of queries and keys"),),
        write.one_norm,
        names=Names(norms={"attention_norm": "input_layernorm"}),
        defaults={
            "tie_word_embeddings": True,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 8192,
            "logit_scale": 0.0625,
            "rope_theta": 5e5,
        },
        aliases={"layer_norm_eps": "rms_norm_eps"},
    ),
    Architecture(
        "deepseek_v3",
        "DeepSeek-V3 without experts",
        "deepseek-v3",
        read.latent,
        "`mla` with its five widths and `latent_norm`",
        (
            off("attention_bias", "biases in MLA"),
            off("mlp_bias", "such bias in this architecture"),
            Need(
                "first_k_dense_replace",
                "at least num_hidden_layers",
                lambda stored: (
                    isinstance(stored["first_k_dense_replace"], int)
                    and stored["first_k_dense_replace"] >= read.number(stored, "num_hidden_layers")
                ),
                "mixtures of experts (MoE)",
            ),
            Need("q_lora_rank", "a number", lambda stored: bool(stored["q_lora_rank"]), "MLA with direct queries"),
            Need("rope_interleave", "true", lambda stored: bool(stored["rope_interleave"]), "such order of rotation"),
        ),
        write.latent,
        defaults={
            "first_k_dense_replace": 3,
            "q_lora_rank": 1536,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "rope_interleave": True,
            "max_position_embeddings": 4096,
        },
    ),
    Architecture(
        "diffllama",
        "DiffLlama",
        "diffllama",
        read.paired,
        "`differential-original` with half as many heads of twice the width",
        (
            Need(
                "rms_norm_eps",
                "1e-05",
                lambda stored: stored["rms_norm_eps"] == 1e-5,
                "other epsilon in the norm of differential attention",
            ),
        ),
        write.pairs,
        defaults={"rms_norm_eps": 1e-5},
    ),
)

# What attractor lacks for other well-known architectures.
MOE = "mixtures of experts (MoE)"
LACKING = {
    "gemma3": "images; the text model alone has model_type gemma3_text",
    "gptj": "interleaved rotation of a part of each head, or a bias of the readout",
    "opt": "shifted learned positions, or ReLU",
    "phi": "bias of the readout",
    "olmo": "norm without weights, or clipped queries",
    "cohere2": "windows in the layers with RoPE alone, in this table",
    "gpt_oss": f"{MOE}, or attention sinks",
    **dict.fromkeys(("falcon", "bloom"), "attention with biases by distance (ALiBi)"),
    **dict.fromkeys(("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "deepseek_v2"), MOE),
    **dict.fromkeys(("mamba", "mamba2"), "state-space layers"),
}
WITH_ENCODERS = (
    *("albert", "bert", "camembert", "deberta", "deberta-v2", "distilbert", "electra", "eurobert", "modernbert"),
    *("mpnet", "nomic_bert", "roberta", "xlm-roberta", "xlm-roberta-xl", "bart", "led", "m2m_100", "marian", "mbart"),
    *("mt5", "pegasus", "t5", "t5gemma", "umt5", "whisper"),
)


def architecture(model_type: object) -> Architecture:
    for known in ARCHITECTURES:
        if known.model_type == model_type:
            return known
    names = ", ".join(known.model_type for known in ARCHITECTURES)
    refused = f"model_type must be one of attractor, {names}, got {model_type!r}"
    if model_type in WITH_ENCODERS:
        raise InputError(f"{refused}: a model with an encoder, whose positions see what comes after them; {NOT_CAUSAL}")
    why = f": attractor has no {LACKING[model_type]}" if isinstance(model_type, str) and model_type in LACKING else ""
    raise InputError(f"{refused}{why}; {ALTERNATIVE}")
