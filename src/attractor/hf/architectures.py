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
MOE = "mixtures of experts (MoE)"
LATENT = {
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "rope_interleave": True,
}
OF_LATENTS = (
    off("attention_bias", "biases in MLA"),
    Need("q_lora_rank", "a number", lambda stored: bool(stored["q_lora_rank"]), "MLA with direct queries"),
    Need("rope_interleave", "true", lambda stored: bool(stored["rope_interleave"]), "such order of rotation"),
)
LAST_WITHOUT_ROPE = Need(
    "layer_types",
    "full_attention in the last of every so many layers and sliding_attention in the others",
    lambda stored: (
        [int(kind == read.LOCAL) for kind in read.local_kinds(stored)]
        == read.rotated_layers_of(
            read.number(stored, "num_hidden_layers"), read.rotated_where_local(stored)["no_rope_every"]
        )
    ),
    "other choice of layers without RoPE",
)
BIASES = {"attention_bias": True, "mlp_bias": True}
RELU2 = {"relu2": "relu2"}
UP_DOWN = {"mlp.up_proj": ["up"], "mlp.down_proj": ["down"]}
MULTIPLIERS = ("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling")
WIDE = {"head_dim": 128, "rms_norm_eps": 1e-5}  # of several families whose heads are wider than d_model / n_heads
COHERE = {
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 8192,
    "logit_scale": 0.0625,
}
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
    Architecture("llama", "llama", read.shape),
    Architecture(
        "mistral",
        "llama",
        read.with_window,
        windows=True,
        defaults={"sliding_window": 4096, "num_key_value_heads": 8, "max_position_embeddings": 131_072},
    ),
    Architecture("qwen2", "qwen2", read.biased, describe=write.kinds, windows=True, defaults=QWEN),
    Architecture(
        "qwen3",
        "qwen3",
        read.normed,
        describe=write.kinds,
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
        write.kinds,
        names=Names(norms=FOUR_NORMS),
        norm_offset=1.0,
        windows=True,
        defaults=GEMMA2,
        aliases={"hidden_activation": "hidden_act"},
    ),
    Architecture(
        "vaultgemma",
        "llama",
        lambda stored: read.gemma2(stored) | {"norms_per_block": 2},
        (NO_FORESIGHT,),
        write.vaultgemma,
        names=Names(norms={"attention_norm": "input_layernorm", "mlp_norm": "pre_feedforward_layernorm"}),
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
        write.olmo3,
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
    Architecture("olmo2", "llama", read.normed_after, names=Names(norms=AFTER), defaults={"rms_norm_eps": 1e-5}),
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
        defaults={
            "tie_word_embeddings": True,
            "num_key_value_heads": 4,
            "max_position_embeddings": 32_768,
            "no_rope_layer_interval": 4,
            "rope_theta": 2e6,
        },
    ),
    Architecture("granite", "llama", read.multiplied, defaults=dict.fromkeys(MULTIPLIERS, 1.0)),
    Architecture(
        "gpt2",
        "gpt2",
        read.gpt2,
        (
            off("scale_attn_by_inverse_layer_idx", "scale of attention by layer"),
            off("add_cross_attention", "attention to another sequence"),
        ),
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
        names=Names(norms={"attention_norm": "input_layernorm"}),
        defaults=COHERE | {"rope_theta": 5e5},
        aliases={"layer_norm_eps": "rms_norm_eps"},
    ),
    Architecture(
        "cohere2",
        "cohere",
        read.cohere2,
        (LAST_WITHOUT_ROPE,),
        write.local_where_rotated,
        names=Names(norms={"attention_norm": "input_layernorm"}),
        windows=True,
        defaults=COHERE | {"sliding_window": 4096},
        aliases={"layer_norm_eps": "rms_norm_eps"},
    ),
    Architecture(
        "exaone4",
        "llama",
        read.exaone4,
        (LAST_WITHOUT_ROPE,),
        write.exaone4,
        names=Names(norms=AFTER),
        windows=True,
        defaults={"rms_norm_eps": 1e-5, "num_key_value_heads": 32, "sliding_window": 4096},
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
        names=Names(mlp=UP_DOWN),
        activations=RELU2,
        defaults={"hidden_act": "relu2", "rms_norm_eps": 1e-5, "max_position_embeddings": 4096},
    ),
    Architecture(
        "jais2",
        "llama",
        read.layer_normed,
        names=Names(mlp=UP_DOWN),
        activations=RELU2,
        defaults=BIASES | {"hidden_act": "relu2", "rms_norm_eps": 1e-5, "max_position_embeddings": 8192},
        aliases={"layer_norm_eps": "rms_norm_eps"},
    ),
    Architecture(
        "nemotron",
        "llama",
        read.layer_normed,
        names=Names(mlp=UP_DOWN),
        norm_offset=1.0,
        activations=RELU2,
        partial_rotation=True,
        defaults={
            "hidden_act": "relu2",
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 4096,
            "partial_rotary_factor": 0.5,
        },
        aliases={"norm_eps": "rms_norm_eps"},
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
            *OF_LATENTS,
            off("mlp_bias", "such bias in this architecture"),
            Need(
                "first_k_dense_replace",
                "at least num_hidden_layers",
                lambda stored: (
                    isinstance(stored["first_k_dense_replace"], int)
                    and stored["first_k_dense_replace"] >= read.number(stored, "num_hidden_layers")
                ),
                MOE,
            ),
        ),
        write.latent,
        defaults=LATENT | {"first_k_dense_replace": 3, "max_position_embeddings": 4096},
    ),
    Architecture(
        "youtu",
        "deepseek-v3",
        read.latent,
        OF_LATENTS,
        write.latent,
        # Its class sets the embedding of padding to 0 when it loads a file, which would change that token's logit.
        defaults=LATENT | {"tie_word_embeddings": True, "max_position_embeddings": 131_072, "pad_token_id": None},
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

# What attractor lacks for the other causal model types of transformers: their names by feature.
LACKING_FEATURES = {
    MOE: """afmoe aria_text axk1 axk2 bailing_hybrid beam cohere2_moe dbrx deepseek_v2 deepseek_v32 deepseek_v4 dots1
        dots3_note dots3_note_text ernie4_5_moe exaone_moe flex_olmo flint glm4_moe glm4_moe_lite glm_moe_dsa granitemoe
        granitemoe_swa granitemoehybrid granitemoeshared hunyuan_v1_moe hy_v3 hy_v4 inkling2_text inkling_text jetmoe
        kimi_linear kolibri1 laguna lfm2_moe llama4 llama4_text longcat_flash mellum mimo_v2_flash minimax minimax_m2
        minimax_m3_vl_text mixtral olmoe phimoe qwen2_moe qwen3_5_moe qwen3_5_moe_text qwen3_moe qwen3_next qwen4_exp
        qwen4_exp_text solar_open zaya""",
    f"{MOE}, or attention sinks": "gpt_oss",
    "state-space layers": "bamba falcon_h1 falcon_mamba jamba mamba mamba2 nemotron_h zamba zamba2",
    "such recurrent layers": "recurrent_gemma rwkv xlstm",
    "layers of gated DeltaNet beside gated attention, in this table": "olmo_hybrid qwen3_5 qwen3_5_text",
    "layers of convolutions alone": "lfm2 lfm3",
    "images or sounds beside text": """emu3 fuyu gemma3n gemma4 gemma4_unified git got_ocr2 mllama
        moss_transcribe_diarize phi4_multimodal""",
    "images; the text model alone has model_type gemma3_text": "gemma3",
    "inputs of each layer from its tokens": "gemma3n_text gemma4_text gemma4_unified_text",
    "keys and values of another model": "gemma4_assistant gemma4_unified_assistant",
    "several streams of tokens": "moshi",
    "patches of bytes": "blt",
    "attention with biases by distance (ALiBi)": "bloom falcon mpt",
    "relative positions, or positions by segments": "cpmant xlnet",
    "sinusoidal positions": "ctrl xglm",
    "shifted learned positions, or ReLU": "biogpt opt",
    "norms after each addition": "openai-gpt",
    "norms without weights, or clipped queries": "nanochat olmo",
    "norms before output projections": "bitnet",
    "norm of embeddings": "modernbert-decoder",
    "LayerNorm of queries and keys": "persimmon",
    "norm of queries and keys after their rotation": "hunyuan_v1_dense",
    "scale of queries that grows with their position": "ministral3",
    "rotation by several positions": "cohere_compass_text",
    "interleaved rotation of a part of each head, or a bias of the readout": "codegen gptj",
    "bias of the readout": "phi",
    "bias of the last layer alone": "gpt_neox_japanese",
    "attention by hashes": "reformer",
    "masks that values decide": "doge",
    "layers that run several times, in this table": "hrm_text",
    "sinks beside windows, in this table": "granite_swa",
    "windows beside learned positions, in this table": "gpt_neo",
    "one key of all queries in a fused matrix, in this table": "gpt_bigcode",
    "multiplied branches beside MLA, in this table": "minicpm3",
    "activation xIELU": "apertus",
}
LACKING = {name: feature for feature, names in LACKING_FEATURES.items() for name in names.split()}
WITH_ENCODERS = """albert bart bert bert-generation big_bird bigbird_pegasus blenderbot blenderbot-small camembert
    data2vec-text deberta deberta-v2 distilbert electra ernie eurobert led m2m_100 marian mbart megatron-bert modernbert
    mpnet mt5 musicgen musicgen_melody mvp nomic_bert pegasus plbart prophetnet rembert roberta roberta-prelayernorm
    roc_bert roformer t5 t5gemma trocr umt5 whisper xlm xlm-roberta xlm-roberta-xl xmod"""


def architecture(model_type: object) -> Architecture:
    for known in ARCHITECTURES:
        if known.model_type == model_type:
            return known
    names = ", ".join(known.model_type for known in ARCHITECTURES)
    refused = f"model_type must be one of attractor, {names}, got {model_type!r}"
    if model_type in WITH_ENCODERS.split():
        raise InputError(f"{refused}: a model with an encoder, whose positions see what comes after them; {NOT_CAUSAL}")
    why = f": attractor has no {LACKING[model_type]}" if isinstance(model_type, str) and model_type in LACKING else ""
    raise InputError(
        f"{refused}{why}; 'attractor evaluate' takes causal models of other types directly, and so does 'attractor "
        "measure' where docs/control-architectures.md says yes"
    )
