"""Folders with tiny causal models of random weights, ours and Hugging Face's, each with a tokenizer."""

import json
from pathlib import Path
from typing import Any

import torch

from attractor.corpus import bpe
from attractor.corpus.tokenizer import ByteTokenizer
from attractor.evaluate.causal import Causal
from attractor.models import TransformerConfig
from attractor.tasks.text import Text
from attractor.train.config import Runtime, TrainConfig
from attractor.train.loop import train

CPU = torch.device("cpu")
TEXTS = [f"{i} squared is {i * i}, and twice {i} is {2 * i}: who would have thought so?\n" for i in range(40)]
CHOICES = ("so", "no")
N_POSITIONS = 64


def bytes_causal(seed: int = 0, name: str = "tiny", **model: Any) -> Causal:
    """Return a model whose random weights are so large that its input changes its output noticeably."""
    config = TransformerConfig(
        **{"vocab_size": 320, "d_model": 16, "n_heads": 2, "n_layers": 2, "d_ff": 32, "max_seq_len": N_POSITIONS}
        | model
    )
    made = config.build(seed).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.ndim == 2:
                parameter.mul_(8.0)
    tokenizer = ByteTokenizer()
    return Causal(
        name=name,
        model=made,
        vocab_size=config.vocab_size,
        start=tokenizer.end_of_text,
        end=tokenizer.end_of_text,
        max_length=made.max_length,
        trained_length=None,
        spell=tokenizer.encode,
        unspell=lambda ids: tokenizer.decode([token for token in ids if token < tokenizer.n_spelled]),
    )


def write_run(folder: Path, n_steps: int = 3, seed: int = 0, **model: Any) -> Path:
    """Write the folder of a run on bytes, with windows of 32."""
    corpus = folder.parent / "squares.txt"
    if not corpus.exists():
        corpus.parent.mkdir(parents=True, exist_ok=True)
        corpus.write_text("<|endoftext|>\n".join(TEXTS))
    config = TrainConfig(
        model=TransformerConfig(
            **{"vocab_size": 320, "d_model": 16, "n_heads": 2, "n_layers": 1, "d_ff": 32, "max_seq_len": N_POSITIONS}
            | model
        ),
        task=Text(str(corpus)),
        n_steps=n_steps,
        batch_size=4,
        seq_len=32,
        warmup_steps=1,
        eval_batches=2,
        seed=seed,
    )
    train(config, folder, Runtime(device="cpu"))
    return folder


def write_llama(folder: Path, safetensors: bool = True, beginning: str | None = None) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM

    write_tokenizer(folder, beginning)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=N_POSITIONS,
        initializer_range=0.5,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    if not safetensors:
        (folder / "model.safetensors").unlink()
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
    return folder


def write_tokenizer(folder: Path, beginning: str | None = None) -> None:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer.from_str(bpe.train(iter(TEXTS), 290).definition.decode())
    PreTrainedTokenizerFast(tokenizer_object=made, eos_token=bpe.ENDS[0], bos_token=beginning).save_pretrained(folder)


def write_task(folder: Path) -> Path:
    """Write the lm-eval task `squares` with its questions; the first choice is right for every second one."""
    questions = [{"text": text, "choices": CHOICES, "answer": i % 2} for i, text in enumerate(TEXTS)]
    (folder / "questions.jsonl").write_text("".join(json.dumps(question) + "\n" for question in questions))
    task = {
        "task": "squares",
        "dataset_path": "json",
        "dataset_kwargs": {
            "data_files": {"test": str(folder / "questions.jsonl")},
            "cache_dir": str(folder / "cache"),
        },
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{text.split(',')[0]}}",
        "doc_to_choice": "choices",
        "doc_to_target": "answer",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    }
    (folder / "squares.yaml").write_text(json.dumps(task))  # JSON is valid YAML
    return folder
