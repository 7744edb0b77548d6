"""Name the projections of attention modules in other libraries: the one table for imports, exports and controls."""

from typing import NamedTuple


class Projections(NamedTuple):
    """The names of the parts that make queries, keys and values, and of the output. One name is a fused matrix."""

    query: str
    key: str
    value: str
    out: str

    @property
    def is_fused(self) -> bool:
        return self.query == self.key == self.value


def fused(matrix: str, out: str) -> Projections:
    return Projections(matrix, matrix, matrix, out)


PROJECTIONS = {
    "llama": Projections("q_proj", "k_proj", "v_proj", "o_proj"),
    "unilm": Projections("q_proj", "k_proj", "v_proj", "out_proj"),
    "modernbert": Projections("q_proj", "k_proj", "v_proj", "Wo"),
    "bert": Projections("query", "key", "value", "dense"),
    "ctrl": Projections("Wq", "Wk", "Wv", "dense"),
    "meta": Projections("wq", "wk", "wv", "wo"),
    "nanochat": Projections("c_q", "c_k", "c_v", "c_proj"),
    "x-transformers": Projections("to_q", "to_k", "to_v", "to_out"),
    "xlm": Projections("q_lin", "k_lin", "v_lin", "out_lin"),
    "phi3": fused("qkv_proj", "o_proj"),
    "gpt-neox": fused("query_key_value", "dense"),
    "gpt2": fused("c_attn", "c_proj"),  # nanoGPT as well
    "timm": fused("qkv", "proj"),
    "torchtitan": fused("qkv_linear", "wo"),
    "megatron": fused("linear_qkv", "linear_proj"),
}
REPLACEMENT = "attractor"  # the stages that hf/replace.py gave a layer, and their attention function
# Parts that compute scores from queries and keys.
SCORING_PARTS = {"torchtitan": "inner_attention", "megatron": "core_attention", "x-transformers": "attend"}


class LatentNames(NamedTuple):
    """The names in DeepSeek-V2 and V3 of Hugging Face. Queries without a latent come from the matrix `query`."""

    query_down: str = "q_a_proj"
    query_up: str = "q_b_proj"
    down: str = "kv_a_proj_with_mqa"
    up: str = "kv_b_proj"
    query_norm: str = "q_a_layernorm"
    norm: str = "kv_a_layernorm"
    query: str = "q_proj"


LATENT = LatentNames()
TITAN_LATENT = LatentNames("wq_a", "wq_b", "wkv_a", "wkv_b", "q_norm", "kv_norm", "wq")
OF_SCORES = {*LATENT[:4], *TITAN_LATENT[:4]}.union(*(names[:2] for names in PROJECTIONS.values()))
