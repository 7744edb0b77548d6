"""A run of ours and a Hugging Face folder load as the same interface, and unusable models are refused in one line."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
import torch

from attractor.errors import InputError
from attractor.evaluate.causal import Causal, load_causal
from attractor.hf.export import export_model
from attractor.hf.import_runs import import_run
from attractor.models.language_model import LanguageModel
from attractor.runs.run_folder import RunFolder
from attractor.train.finished import finished_run
from attractor.train.saved_tokenizer import tokenizer_of_run
from tiny_causal import N_POSITIONS, write_llama, write_run, write_tokenizer

CPU = torch.device("cpu")
SAID = "7 squared is 49, n'est-ce pas? <|endoftext|> \u2014 \u00e9\u6f22"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("ours") / "run")


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("theirs") / "llama")


@pytest.fixture(params=["run", "llama"])
def causal(request: pytest.FixtureRequest) -> Causal:
    return load_causal(request.getfixturevalue(request.param), CPU)


@torch.no_grad()
def test_a_model_encodes_any_text_and_predicts_from_the_past_alone(causal: Causal) -> None:
    """Criterion: names of special tokens in a text are text, and later tokens or padding before change no logits."""
    tokens = causal.encode(SAID)
    assert causal.decode(tokens) == SAID
    assert causal.start not in tokens
    assert causal.start is not None
    x = torch.tensor([[causal.start, *tokens]])
    logits = causal.logits(x)
    assert logits.shape == (1, x.shape[1], causal.vocab_size)
    torch.testing.assert_close(causal.logits(x[:, :5]), logits[:, :5])
    padded = torch.cat([torch.zeros(1, 3, dtype=torch.long), x], dim=1)
    real = torch.arange(padded.shape[1])[None] >= 3
    torch.testing.assert_close(causal.logits(padded, real)[:, 3:], logits, atol=1e-5, rtol=1e-4)
    assert not causal.model.training
    assert causal.max_length == N_POSITIONS


def test_our_models_are_recognised_as_ours(run: Path, llama: Path) -> None:
    ours, theirs = load_causal(run, CPU), load_causal(llama, CPU, dtype=torch.bfloat16)
    assert (isinstance(ours.model, LanguageModel), ours.name, ours.trained_length) == (True, "run", 32)
    assert (isinstance(theirs.model, LanguageModel), theirs.name) == (False, "llama")
    assert next(theirs.model.parameters()).dtype == torch.bfloat16


def test_weights_in_half_precision_are_multiplied_in_the_quickest_way(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Criterion: products are widened while logits are computed, and not after."""
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    causal = load_causal(llama, CPU, dtype=torch.bfloat16)
    widths: list[torch.dtype] = []
    to_float = torch.Tensor.float
    monkeypatch.setattr(torch.Tensor, "float", lambda x: widths.append(x.dtype) or to_float(x))
    with causal.quick_products():
        _ = torch.ones(2, 2, dtype=torch.bfloat16) @ torch.ones(2, 2, dtype=torch.bfloat16)
    assert widths == [torch.bfloat16] * 2
    causal.logits(torch.tensor([[1, 2, 3]]))
    n_in_logits = len(widths)
    _ = torch.ones(2, 2, dtype=torch.bfloat16) @ torch.ones(2, 2, dtype=torch.bfloat16)
    assert len(widths) == n_in_logits > 2


def test_a_name_on_the_hub_is_refused_at_once() -> None:
    with pytest.raises(InputError, match=r"must be a folder here.*nothing is fetched.*hf download"):
        load_causal("meta-llama/Llama-3.2-1B", CPU)


def test_pickled_weights_are_refused_and_the_command_converts_them(tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "with spaces", safetensors=False)
    with pytest.raises(InputError, match="pickled") as refused:
        load_causal(folder, CPU)
    code = re.search(r"python -c (.*)$", str(refused.value))
    assert code is not None
    exec(shlex.split(code[1])[0])
    write_tokenizer(tmp_path / "with spaces-safe")
    converted = load_causal(f"{folder}-safe", CPU)
    assert converted.encode(SAID) == load_causal(write_llama(tmp_path / "llama"), CPU).encode(SAID)


def test_a_folder_without_tokenizer_weights_or_config_is_refused(llama: Path, tmp_path: Path) -> None:
    for missing, said in (
        ("tokenizer.json", "tokenizer beside it"),
        ("model.safetensors", "weights must be model.safetensors"),
        ("config.json", "no config.json"),
    ):
        copy = shutil.copytree(llama, tmp_path / missing)
        (copy / missing).unlink()
        with pytest.raises(InputError, match=said):
            load_causal(copy, CPU)


def test_a_model_that_is_not_a_complete_causal_one_is_refused(llama: Path, tmp_path: Path) -> None:
    from transformers import BertConfig, BertForMaskedLM, BertLMHeadModel, LlamaConfig, LlamaModel

    sizes = {"vocab_size": 300, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    bert = BertConfig(**sizes, intermediate_size=32, initializer_range=0.5)
    headless = LlamaConfig(**sizes, architectures=["LlamaForCausalLM"])
    made = {"causal language model": BertForMaskedLM(bert), "lacks": LlamaModel(headless)}
    bert.is_decoder = True
    made["depends on the next token itself"] = BertLMHeadModel(bert)
    for number, (said, model) in enumerate(made.items()):
        folder = shutil.copytree(llama, tmp_path / str(number))
        model.save_pretrained(folder)
        config = folder / "config.json"
        described = config.read_text().replace("LlamaModel", "LlamaForCausalLM")
        config.write_text(described.replace('"is_decoder": true', '"is_decoder": false'))
        with pytest.raises(InputError, match=said):
            load_causal(folder, CPU)


def test_a_tokenizer_of_a_larger_vocabulary_is_noticed(llama: Path, run: Path) -> None:
    causal = load_causal(llama, CPU)
    small = Causal(**vars(causal) | {"vocab_size": 100, "start": None})
    for refused in (lambda: small.encode(SAID), lambda: Causal(**vars(small) | {"start": 100})):
        with pytest.raises(InputError, match="vocabulary must hold"):
            refused()


@torch.no_grad()
def test_an_imported_or_exported_model_has_the_same_logits(run: Path, tmp_path: Path) -> None:
    """Criterion: start and end tokens and the encoding of a text are the same, too."""
    llama = write_llama(tmp_path / "llama", beginning="<s>")
    import_run(llama, tmp_path / "imported")
    restored = tokenizer_of_run(RunFolder.open(run))
    export_model(finished_run(run, CPU).model, tmp_path / "exported", restored, self_contained=False)
    for one, other in ((llama, tmp_path / "imported"), (run, tmp_path / "exported")):
        before, after = load_causal(one, CPU), load_causal(other, CPU)
        assert (before.start, before.end) == (after.start, after.end)
        assert isinstance(after.model, LanguageModel)
        tokens = before.encode(SAID)
        assert after.encode(SAID) == tokens
        x = torch.tensor([[before.start, *tokens]])
        torch.testing.assert_close(before.logits(x), after.logits(x), atol=1e-4, rtol=1e-4)
