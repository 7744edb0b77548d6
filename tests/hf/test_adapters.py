"""Models give the right results under adapters, quantisation, offloading, and in the trainers of TRL."""

import copy
from itertools import product
from pathlib import Path
from typing import Any

import accelerate
import pytest
import torch
import torch.nn.functional as F
import transformers
from short_training import few_steps
from torch import Tensor, nn
from wrapped_models import CONFIGS, N_TOKENS, SMALL, drawn, tokens, wrapped

from attractor.attention import PRESETS
from attractor.attention.acting_weight import acting_weight
from attractor.corpus.tokenizer import ByteTokenizer
from attractor.errors import InputError
from attractor.hf.auto_classes import AttractorForCausalLM, AttractorForSequenceClassification, AttractorModel
from attractor.hf.export import as_hugging_face
from attractor.hf.tokenizers import as_fast_tokenizer
from attractor.models import ItrSAConfig
from tiers import fast_alone

FAST = ("coupled-symplectic", "mla", "psiqrh", "decay", "fast-slow-streams", "untied")


def logits(model: nn.Module) -> Tensor:
    with torch.no_grad():
        return model(tokens()).logits


def with_lora(model: nn.Module, **options: Any) -> Any:
    import peft

    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    tuned = peft.get_peft_model(model, peft.LoraConfig(**{"target_modules": linear, "r": 4} | options)).eval()
    drawn((p for name, p in tuned.named_parameters() if "lora" in name), 2)
    return tuned


@pytest.mark.parametrize("name", fast_alone((name for name in CONFIGS if name != "sigma-reparam"), *FAST))
def test_lora_on_every_linear_layer(name: str) -> None:
    """Criterion: each adapter gets a gradient and changes the logits; merged and unmerged logits agree to 1e-5; without
    adapters the logits are the original ones; the cache changes no token."""
    plain = wrapped(name)
    before = logits(plain)
    tuned = with_lora(copy.deepcopy(plain))
    tuned(tokens(), labels=tokens()).loss.backward()
    without_gradient = [
        n for n, p in tuned.named_parameters() if p.requires_grad and (p.grad is None or not p.grad.any())
    ]
    assert not without_gradient
    tuned_logits = logits(tuned)
    assert (tuned_logits - before).abs().max() > 0.01
    tuned.merge_adapter()
    torch.testing.assert_close(logits(tuned), tuned_logits, rtol=0, atol=1e-5)
    tuned.unmerge_adapter()
    torch.testing.assert_close(logits(tuned), tuned_logits, rtol=0, atol=1e-5)
    with tuned.disable_adapter():
        torch.testing.assert_close(logits(tuned), before, rtol=0, atol=1e-5)
    texts = [tuned.generate(tokens(), max_new_tokens=4, do_sample=False, use_cache=cached) for cached in (True, False)]
    assert torch.equal(*texts)


@pytest.mark.parametrize("name", fast_alone((name for name in CONFIGS if name != "sigma-reparam"), "decay", "gated"))
def test_dora_and_ia3_start_at_the_model_that_they_tune(name: str) -> None:
    """Criterion: on a model that was never trained, whose closed gates are nearly zero, the logits are the model's, to
    1e-5, and after a step they are finite and others."""
    import peft

    linear = ["query", "key", "value", "up", "down"]
    for options in (
        peft.LoraConfig(target_modules="all-linear", use_dora=True, r=2),
        peft.IA3Config(target_modules=linear, feedforward_modules=[]),
    ):
        plain = AttractorForCausalLM.of(CONFIGS[name].build(0)).eval()
        before = logits(plain)
        tuned: Any = peft.get_peft_model(plain, options)
        torch.testing.assert_close(logits(tuned), before, rtol=0, atol=1e-5)
        tuned(tokens(), labels=tokens()).loss.backward()
        torch.optim.SGD(tuned.parameters(), lr=0.1).step()
        after = logits(tuned)
        assert after.isfinite().all()
        assert not torch.equal(after, before)


def test_lora_of_an_embedding_reaches_the_tied_readout() -> None:
    tuned = with_lora(wrapped("standard"), target_modules=["model.embedding"])
    before = logits(tuned)
    tuned.merge_adapter()
    torch.testing.assert_close(logits(tuned), before, rtol=0, atol=1e-5)


def test_dropout_of_an_adapter_changes_a_force_in_training_alone() -> None:
    tuned = with_lora(wrapped("coupled-euler"), lora_dropout=0.5)
    assert torch.equal(logits(tuned), logits(tuned))
    tuned.train()
    assert not torch.equal(logits(tuned), logits(tuned))


# Older transformers warn of weights that are away.
@pytest.mark.filterwarnings("ignore:You are calling .generate:UserWarning")
@pytest.mark.parametrize("where", fast_alone(("cpu", "disk"), "cpu"))
@pytest.mark.parametrize("name", fast_alone(CONFIGS, "coupled-euler", "fast-slow-streams"))
def test_offloaded_weights(name: str, where: str, tmp_path: Path) -> None:
    model = wrapped(name)
    before = logits(model)
    if where == "cpu":
        accelerate.cpu_offload(model, execution_device="cpu")
    else:
        accelerate.disk_offload(model, tmp_path, execution_device="cpu")
    assert all(parameter.is_meta for parameter in model.parameters())
    torch.testing.assert_close(logits(model), before, rtol=0, atol=1e-6)
    assert model.generate(tokens(), max_new_tokens=3, do_sample=False).shape == (2, N_TOKENS + 3)


@pytest.mark.filterwarnings("ignore")  # torch announces the move of its quantisation to another package
@pytest.mark.parametrize("name", fast_alone(CONFIGS, "coupled-euler", "mla"))
def test_linear_layers_in_eight_bits(name: str) -> None:
    """Criterion: the root mean square of the error is below a tenth of that of the logits; a sixth under the delta
    rule, whose norms magnify the rounding of narrow heads."""
    model = wrapped(name)
    before = logits(model)
    quantised = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    share = 6 if name == "gated-deltanet" else 10
    assert 0 < (logits(quantised) - before).square().mean() < share**-2 * before.square().mean()
    assert quantised.generate(tokens(), max_new_tokens=3, do_sample=False).shape == (2, N_TOKENS + 3)


def test_the_matrix_of_a_layer_is_what_the_layer_multiplies_by() -> None:
    layer = nn.Linear(5, 3, bias=False)
    assert acting_weight(layer) is layer.weight
    layer.register_forward_hook(lambda module, inputs, output: output.requires_grad_())  # a hook that changes no value
    assert acting_weight(layer) is layer.weight
    layer.forward = lambda x: 2 * F.linear(x, layer.weight)
    torch.testing.assert_close(acting_weight(layer), 2 * layer.weight)
    embedding = nn.Embedding(7, 4)
    assert acting_weight(embedding, 7) is embedding.weight
    embedding.forward = lambda tokens: F.embedding(tokens, embedding.weight) + 1
    assert torch.equal(acting_weight(embedding, 7), embedding.weight + 1)


@pytest.mark.parametrize("name", ["standard", "untied", "fast-slow"])
def test_the_base_model_ends_before_the_readout(name: str, tmp_path: Path) -> None:
    """Criterion: the hidden states of the base model times the output embeddings are the logits, and `AutoModel` loads
    the base model from a file."""
    model = wrapped(name)
    names = [parameter for parameter, _ in model.named_parameters()]
    base = model.base_model
    assert isinstance(base, AttractorModel)
    assert base.base_model is base
    assert model.get_decoder() is base
    assert [parameter for parameter, _ in model.named_parameters()] == names
    readout = model.get_output_embeddings()
    assert any(module is readout for module in model.modules())
    assert readout.weight is (model.model.embedding if model.model.head is None else model.model.head).weight
    with torch.no_grad():
        hidden = base(tokens()).last_hidden_state
    torch.testing.assert_close(hidden @ readout.weight.mT, logits(model))
    model.save_pretrained(tmp_path)
    loaded, report = transformers.AutoModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values())
    with torch.no_grad():
        assert torch.equal(loaded(tokens()).last_hidden_state, hidden)
    copied = copy.deepcopy(model)
    assert copied.base_model.model is copied.model


@pytest.mark.parametrize("name", ["standard", "fast-slow", "itrsa"])
def test_embeddings_in_place_of_tokens_and_consecutive_positions(name: str) -> None:
    model = wrapped(name)
    with torch.no_grad():
        vectors = model.get_input_embeddings()(tokens())
        assert torch.equal(model(inputs_embeds=vectors).logits, logits(model))
        assert torch.equal(model(tokens(), token_type_ids=torch.zeros_like(tokens())).logits, logits(model))
        positions = torch.arange(N_TOKENS).unsqueeze(0)
        assert torch.equal(model(tokens(), position_ids=positions).logits, logits(model))
    if name != "itrsa":
        with_vectors = model.generate(inputs_embeds=vectors, max_new_tokens=3, do_sample=False)
        assert torch.equal(with_vectors, model.generate(tokens(), max_new_tokens=3, do_sample=False)[:, N_TOKENS:])


@pytest.mark.parametrize("name", fast_alone((*PRESETS, "untied", "itrsa"), "standard", "decay", "untied"))
def test_sequences_packed_into_a_row_do_not_see_each_other(name: str) -> None:
    """Criterion: packed sequences have the logits that they have alone, to 1e-5, with learned positions and with
    RoPE."""
    model = wrapped(name)
    first, second = tokens()[:1, :5], tokens()[1:]
    positions = torch.cat([torch.arange(5), torch.arange(N_TOKENS)]).unsqueeze(0)
    with torch.no_grad():
        packed = model(torch.cat([first, second], dim=1), position_ids=positions, cu_seq_lens_q=None).logits
        alone = torch.cat([model(first).logits, model(second).logits], dim=1)
    torch.testing.assert_close(packed, alone, rtol=0, atol=1e-5)


def test_impossible_inputs_are_refused() -> None:
    model = wrapped("fast-slow")
    with pytest.raises(InputError, match="position_ids must be consecutive for FastSlow"):
        model(tokens()[:1], position_ids=torch.arange(N_TOKENS).unsqueeze(0) % 10)
    with pytest.raises(InputError, match="one of input_ids and inputs_embeds must be given, got neither"):
        model()
    with pytest.raises(InputError, match="cu_seq_lens_q must be given together with position_ids"):
        model(tokens(), cu_seq_lens_q=torch.tensor([0, N_TOKENS]))
    from_noise = AttractorForCausalLM.of(ItrSAConfig(**SMALL, causal=True, blank=0).build(0))
    with pytest.raises(InputError, match="tokens must be given to a model whose blanks"):
        from_noise(inputs_embeds=torch.zeros(1, 3, 32))
    with pytest.raises(TypeError, match="unexpected keyword argument 'labls'"):
        model(tokens(), labls=tokens())


TEXTS = ["the cat sat on the mat and purred", "a dog"] * 12
PAIRS = {"prompt": ["say "] * 8, "chosen": ["yes", "good"] * 4, "rejected": ["no", "bad"] * 4}


def saved(name: str, folder: Path) -> Any:
    config = CONFIGS[name].replace(vocab_size=ByteTokenizer().vocab_size)
    as_hugging_face(config.build(0), ByteTokenizer()).save_pretrained(folder)
    return transformers.AutoModelForCausalLM.from_pretrained(folder)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # warnings of TRL
@pytest.mark.parametrize("adapter", [False, True])
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *product(("sft", "dpo"), ("standard", "coupled-hamiltonian", "untied", "fast-slow")),
        *product(("packed sft",), ("standard", "coupled-hamiltonian", "untied")),  # FastSlow refuses packed rows
        *product(("reward",), ("standard", "fast-slow")),
    ],
)
def test_trainers_of_trl_take_twenty_steps(kind: str, name: str, adapter: bool, tmp_path: Path) -> None:
    """Criterion: the loss of the last five steps is below that of the first five."""
    import datasets
    import peft
    import trl

    options = few_steps(tmp_path / "out", 20, per_device_train_batch_size=2, bf16=False, max_length=32, logging_steps=5)
    shared = {
        "model": saved(name, tmp_path / "model"),
        "processing_class": as_fast_tokenizer(ByteTokenizer(), 40),
        "peft_config": peft.LoraConfig(target_modules="all-linear", r=4) if adapter else None,
    }
    if kind == "dpo":
        pairs = datasets.Dataset.from_dict(PAIRS)
        trainer = trl.DPOTrainer(args=trl.DPOConfig(**options), train_dataset=pairs, **shared)
    elif kind == "reward":
        judge = CONFIGS[name].replace(vocab_size=ByteTokenizer().vocab_size, n_classes=1, pool="last")
        shared["model"] = AttractorForSequenceClassification.of(judge.build(0))
        pairs = datasets.Dataset.from_dict({name: PAIRS[name] for name in ("chosen", "rejected")})
        trainer = trl.RewardTrainer(args=trl.RewardConfig(**options), train_dataset=pairs, **shared)
    else:
        config = trl.SFTConfig(**options, packing=kind == "packed sft")
        texts = datasets.Dataset.from_dict({"text": TEXTS})
        trainer = trl.SFTTrainer(args=config, train_dataset=texts, **shared)
    trainer.train()
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    assert len(losses) == 4
    assert losses[-1] < losses[0]
