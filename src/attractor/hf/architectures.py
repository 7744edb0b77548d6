"""The table of Hugging Face architectures whose models attractor imports as Transformers, and exports again."""

from attractor.errors import InputError
from attractor.hf import read_config as read
from attractor.hf import write_config as write
from attractor.hf.architecture import BEFORE, NOT_CAUSAL, Architecture, Names, Need, off

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
WIDE = {"head_dim": 128, "rms_norm_eps": 1e-5}  # of several families whose heads are wider than d_model / n_heads
GLM = {
    "head_dim": 128,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1.5625e-7,
    "max_position_embeddings": 131_072,
    "attention_bias": True,
    "partial_rotary_factor": 0.5,
}
GATE_UP = {"mlp.gate_up_proj": ["gate", "up"], "mlp.down_proj": ["down"]}
FOUR_NORMS = BEFORE | AFTER | {"mlp_norm": "pre_feedforward_layernorm"}

ARCHITECTURES: tuple[Architecture, ...] = (
    Architecture(
        "llama",
        "llama",
        read.shape,
    ),
    Architecture(
        "mistral",
        "llama",
        read.with_window,
        describe=write.window,
        windows=True,
        defaults={"sliding_window": 4096, "num_key_value_heads": 8, "max_position_embeddings": 131_072},
    ),
    Architecture(
        "qwen2",
        "qwen2",
        read.biased,
        describe=write.qwen2,
        windows=True,
        defaults=QWEN,
    ),
    Architecture(
        "qwen3",
        "qwen3",
        read.normed,
        describe=write.qwen2,
        windows=True,
        defaults=QWEN | {"head_dim": 128},
    ),
    Architecture(
        "gemma",
        "llama",
        read.scaled_embeddings,
        (NO_FORESIGHT,),
        norm_offset=1.0,
        activations=GEMMA,
        defaults=GEMMA1,
    ),
    Architecture(
        "gemma2",
        "llama",
        read.gemma2,
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
        "gemma3",
        read.gemma3,
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
        "llama",
        read.normed_after,
        names=Names(norms=AFTER),
        defaults={"rms_norm_eps": 1e-5},
    ),
    Architecture(
        "olmo3",
        "llama",
        read.olmo3,
        (LOCAL_ROPE,),
        write.olmo3,
        names=Names(norms=AFTER),
        windows=True,
        defaults={"rms_norm_eps": 1e-5, "sliding_window": 4096, "rope_theta": 5e5},
    ),
    Architecture(
        "phi3",
        "phi3",
        read.with_window,
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
        names=Names(mlp=GATE_UP),
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
        "llama",
        read.some_without_rope,
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
        "llama",
        read.multiplied,
        describe=write.multiplied,
        defaults=dict.fromkeys(MULTIPLIERS, 1.0),
    ),
    Architecture(
        "gpt2",
        "gpt2",
        read.gpt2,
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
        "gpt-neox",
        read.parallel,
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
        "llama",
        read.stablelm,
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
        "llama",
        read.starcoder2,
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
        "cohere",
        read.parallel_with_one_norm,
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
        "ministral",
        "llama",
        read.with_kinds,
        (off("attention_bias", "biases in this architecture"),),
        write.kinds,
        windows=True,
        defaults={
            "head_dim": None,
            "sliding_window": 4096,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131_072,
        },
    ),
    Architecture(
        "cwm",
        "llama",
        lambda stored: read.with_kinds(stored, every=4),
        (off("attention_bias", "biases in this architecture"),),
        write.kinds,
        windows=True,
        defaults=WIDE
        | {
            "bos_token_id": 128_000,
            "sliding_window": 8192,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131_072,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 1e6,
                "factor": 16.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            },
        },
    ),
    Architecture(
        "seed_oss",
        "llama",
        read.biased_inputs,
        describe=write.biased_inputs,
        defaults={
            "head_dim": 128,
            "num_key_value_heads": 8,
            "max_position_embeddings": 524_288,
            "attention_bias": True,
        },
    ),
    Architecture(
        "internlm3",
        "llama",
        read.biased_alike,
        defaults=WIDE | {"num_key_value_heads": 2, "max_position_embeddings": 32_768},
    ),
    Architecture(
        "iquestcoder",
        "llama",
        read.shape,
        (off("clip_qkv", "bound of queries, keys and values"), NO_WINDOW),
        defaults=WIDE | {"num_key_value_heads": 8, "max_position_embeddings": 131_072},
    ),
    Architecture(
        "arcee",
        "llama",
        read.shape,
        names=Names(mlp={"mlp.up_proj": ["up"], "mlp.down_proj": ["down"]}),
        activations={"relu2": "relu2"},
        defaults={"hidden_act": "relu2", "rms_norm_eps": 1e-5, "max_position_embeddings": 4096},
    ),
    Architecture(
        "hyperclovax",
        "llama",
        read.multiplied_twice_normed,
        describe=write.multiplied_twice_normed,
        names=Names(norms=BEFORE | {"attention_post_norm": "post_norm1", "mlp_post_norm": "post_norm2"}),
        defaults=dict.fromkeys(("embedding_multiplier", "residual_multiplier", "logits_scaling"), 1.0)
        | {"use_post_norm": True},
    ),
    Architecture(
        "ernie4_5",
        "cohere",
        read.biased_alike,
        defaults=WIDE
        | {
            "tie_word_embeddings": True,
            "num_key_value_heads": 2,
            "max_position_embeddings": 131_072,
            "rope_theta": 5e5,
        },
        aliases={"use_bias": "attention_bias"},
    ),
    Architecture(
        "glm",
        "cohere",
        read.biased_inputs,
        describe=write.biased_inputs,
        names=Names(mlp=GATE_UP),
        partial_rotation=True,
        defaults=GLM,
    ),
    Architecture(
        "glm4",
        "cohere",
        lambda stored: read.biased_inputs(stored) | {"norms_per_block": 4},
        describe=write.biased_inputs,
        names=Names(
            mlp=GATE_UP,
            norms=BEFORE | {"attention_post_norm": "post_self_attn_layernorm", "mlp_post_norm": "post_mlp_layernorm"},
        ),
        partial_rotation=True,
        defaults=GLM,
    ),
    Architecture(
        "helium",
        "cohere",
        read.biased_inputs,
        describe=write.biased_inputs,
        defaults={
            "head_dim": 128,
            "num_key_value_heads": 20,
            "rms_norm_eps": 1e-8,
            "max_position_embeddings": 4096,
            "rope_theta": 1e5,
        },
    ),
    Architecture(
        "deepseek_v3",
        "deepseek-v3",
        read.latent,
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
        "diffllama",
        read.paired,
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
    "ministral3": "scale of queries that grows with their position",
    "exaone4": "windows in the layers with RoPE alone, in this table",
    "hunyuan_v1_dense": "norm of queries and keys after their rotation",
    "apertus": "activation xIELU",
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
    raise InputError(
        f"{refused}{why}; 'attractor evaluate' takes causal models of other types directly, and so does 'attractor "
        "measure' where docs/control-architectures.md says yes"
    )
