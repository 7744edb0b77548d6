"""A folder with a tiny instruct model of transformers: a Llama with random weights and sampling settings.

Its byte-level BPE tokenizer has a start token, two ids that end a text, and a chat template.
"""

from pathlib import Path
from typing import Any

import torch

VOCAB_SIZE = 340
N_POSITIONS = 96
ENDS = ("<|im_end|>", "<|endoftext|>")
SPECIALS = ("<|endoftext|>", "<s>", "<pad>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('unknown role ' + message['role']) }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TEXTS = [f"user asks how much {i} and {i + 1} are, and the assistant says that it is {2 * i + 1}.\n" for i in range(40)]
CHAT = [
    {"role": "system", "content": "Answer briefly."},
    {"role": "user", "content": "How much are 3 and 4? <|im_end|>"},
]
PROMPT = "<|im_start|>user\nhow much<|im_end|> <s> and <|endoftext|>"
N_SPOKEN = 9  # number of tokens of the greedy answer to CHAT before its end
SEED = 1


def write_tokenizer(folder: Path, **changes: Any) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=[*SPECIALS], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(TEXTS, trainer)
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", made.token_to_id("<s>"))]
    )
    tokenizer = PreTrainedTokenizerFast(
        **{
            "tokenizer_object": made,
            "bos_token": "<s>",
            "eos_token": ENDS[0],
            "pad_token": "<pad>",
            "additional_special_tokens": ["<|im_start|>"],
            "chat_template": TEMPLATE,
            "padding_side": "left",
            "model_max_length": N_POSITIONS,
        }
        | changes
    )
    tokenizer.save_pretrained(folder)
    return tokenizer


@torch.no_grad()
def write_chat(folder: Path, penalty: float | None = 1.2, **changes: Any) -> Path:
    """Write the model. Its greedy answer to CHAT ends after N_SPOKEN tokens with the second id that ends a text."""
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    tokenizer = write_tokenizer(folder, **changes)
    ends = tokenizer.convert_tokens_to_ids([*ENDS])
    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=N_POSITIONS,
        initializer_range=0.4,
        tie_word_embeddings=False,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=ends[0],
        pad_token_id=tokenizer.pad_token_id,
    )
    model = LlamaForCausalLM(config).eval()
    settings = {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.8}
    settings |= {} if penalty is None else {"repetition_penalty": penalty}
    ids = {"bos_token_id": tokenizer.bos_token_id, "pad_token_id": tokenizer.pad_token_id}
    model.generation_config = GenerationConfig(**settings, **ids, eos_token_id=None)
    prompt = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, return_tensors="pt")["input_ids"]
    answer = model.generate(prompt, do_sample=False, max_new_tokens=N_SPOKEN + 1)[0, prompt.shape[1] :].tolist()
    assert answer[-1] not in answer[:-1]
    assert not {*ends} & {*answer}
    rows = model.lm_head.weight
    rows[[answer[-1], ends[1]]] = rows[[ends[1], answer[-1]]]  # makes the model generate the end here
    model.generation_config.eos_token_id = ends
    model.save_pretrained(folder)
    return folder
