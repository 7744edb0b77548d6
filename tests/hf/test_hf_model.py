"""Our models in Hugging Face's classes give the same numbers, before and after saving, for every mechanism."""

import json
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import transformers
import wrapped_models
from safetensors import safe_open
from torch import Tensor
from wrapped_models import CONFIGS, SMALL, wrapped

from attractor.attention import PRESETS
from attractor.attention.hooks import capture
from attractor.errors import InputError
from attractor.hf.auto_classes import AttractorForCausalLM, AttractorForSequenceClassification
from attractor.hf.config import AttractorConfig
from attractor.models import FastSlowConfig, TransformerConfig
from attractor.models.language_model import LanguageModel
from tiers import tiered

transformers.utils.logging.disable_progress_bar()


def plain(**changes: Any) -> TransformerConfig:
    return TransformerConfig(**SMALL | {"n_layers": 2, "positions": "rope"} | changes)


FEW = ("standard", "untied", "fast-slow")


def built(name: str) -> LanguageModel:
    return wrapped(name).model


def tokens() -> Tensor:
    return wrapped_models.tokens(2, 9)


def loaded(folder: Path, kind: Any = transformers.AutoModelForCausalLM, **options: Any) -> Any:
    return kind.from_pretrained(folder, **options)


@pytest.mark.parametrize("name", tiered(CONFIGS))
def test_a_saved_and_loaded_model_is_the_same(name: str, tmp_path: Path) -> None:
    """Criterion: a model saved in several files has the same bits and configuration when loaded, with no missing or
    unexpected weights."""
    model = built(name)
    AttractorForCausalLM.of(model).save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    back, report = loaded(tmp_path, output_loading_info=True)
    assert not any(report.values())
    assert isinstance(back, AttractorForCausalLM)
    assert back.model.config == model.config
    for tensor in (*back.parameters(), *back.buffers()):
        tensor.data = tensor.data.clone()  # a product with a vector rounds by the place of the matrix in memory
    with torch.no_grad():
        assert torch.equal(back(tokens()).logits, model(tokens())[0])


def test_wrapping_a_model_copies_nothing_and_keeps_its_mode() -> None:
    model = built("standard").train()
    around = AttractorForCausalLM.of(model, eos_token_id=5, pad_token_id=6)
    assert around.model is model
    assert around.training
    assert {name.removeprefix("model.") for name in around.state_dict()} == set(model.state_dict())
    assert (around.generation_config.eos_token_id, around.generation_config.pad_token_id) == (5, 6)


def test_a_model_from_a_configuration_has_our_initial_weights() -> None:
    """Criterion: with torch's seed, all weights are those of `build`, including weights that are scaled after the
    draw."""
    for config in (plain(), FastSlowConfig(**SMALL), CONFIGS["itrsa"]):
        torch.manual_seed(3)
        ours = config.build().state_dict()
        torch.manual_seed(3)
        theirs = AttractorForCausalLM(AttractorConfig.of(config)).state_dict()
        assert all(torch.equal(value, theirs[f"model.{name}"]) for name, value in ours.items())


@pytest.mark.parametrize("name", FEW)
def test_weights_in_half_precision(name: str, tmp_path: Path) -> None:
    wrapped(name).save_pretrained(tmp_path)
    back = loaded(tmp_path, dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in back.parameters()} == {torch.bfloat16}
    with torch.no_grad():
        assert torch.equal(back(tokens()).logits, built(name).bfloat16()(tokens())[0])
    back.save_pretrained(tmp_path / "half")
    assert json.loads((tmp_path / "half" / "config.json").read_text())["dtype"] == "bfloat16"
    assert loaded(tmp_path / "half", dtype="auto").dtype == torch.bfloat16


@pytest.mark.parametrize("name", FEW)
def test_a_model_can_be_spread_over_devices(name: str, tmp_path: Path) -> None:
    """Criterion: the logits have the same bits with all weights on this device and with the blocks on disk."""
    model = built(name)
    AttractorForCausalLM.of(model).save_pretrained(tmp_path)
    blocks = {f"model.{key}": "disk" for key, module in model.named_modules() if type(module).__name__ == "Block"}
    rest = {f"model.{key}": "cpu" for key, _ in model.named_children() if key not in ("blocks", "pre", "slow", "post")}
    for device_map in ("cpu", "auto", rest | blocks):
        room = {"cpu": "1GB"} if device_map == "auto" else None  # no room on a GPU
        back = loaded(tmp_path, device_map=device_map, max_memory=room, offload_folder=tmp_path / "offloaded")
        with torch.no_grad():
            assert torch.equal(back(tokens()).logits, model(tokens())[0])


@pytest.mark.parametrize("name", FEW)
def test_padding_on_either_side_changes_nothing(name: str) -> None:
    around = wrapped(name)
    row = tokens()[:1, :5]
    alone = around(row).logits
    for left in (0, 3):
        padded = torch.nn.functional.pad(row, (left, 3 - left), value=7)
        mask = torch.nn.functional.pad(torch.ones_like(row), (left, 3 - left))
        logits = around(padded, attention_mask=mask).logits
        torch.testing.assert_close(logits[:, left : left + 5], alone, rtol=1e-4, atol=1e-4)
    assert torch.equal(around(row, attention_mask=torch.ones_like(row)).logits, alone)


@pytest.mark.parametrize("name", [*FEW, "logit-scale"])
def test_hidden_states_and_attention_maps_are_returned_on_request(name: str) -> None:
    """Criterion: there is one hidden state before the blocks and one after each; the last one gives the logits.
    Attention maps equal the captured ones."""
    around = wrapped(name)
    out = around(tokens(), output_hidden_states=True, output_attentions=True)
    readout = around.model.readout
    assert torch.equal(torch.nn.functional.linear(out.hidden_states[-1], readout), out.logits)
    placement = around.model.placement(tokens(), None, None)
    assert torch.equal(out.hidden_states[0], around.model.embedded(tokens(), placement))
    assert len(out.hidden_states) == 3  # of two blocks; those of `fast-slow` are one and a round of one
    assert all(state.shape == (2, 9, 32) for state in out.hidden_states)
    assert torch.equal(around.base_model(tokens()).last_hidden_state, out.hidden_states[-1])
    with capture("weights") as seen:
        around.model(tokens())
    assert all(map(torch.equal, out.attentions, seen["weights"]))
    assert around(tokens()).hidden_states is None
    assert not any(module._forward_hooks for module in around.modules())


def test_logits_are_computed_only_at_the_requested_positions() -> None:
    around = wrapped("standard")
    logits = around(tokens()).logits
    torch.testing.assert_close(around(tokens(), logits_to_keep=2).logits, logits[:, -2:])
    torch.testing.assert_close(around(tokens(), logits_to_keep=torch.tensor([1, 4])).logits, logits[:, [1, 4]])
    assert isinstance(around(tokens(), return_dict=False), tuple)


@pytest.mark.parametrize("name", FEW)
def test_the_vocabulary_can_be_enlarged(name: str, tmp_path: Path) -> None:
    """Criterion: the logits of the old tokens stay, the configuration has the new size, and the saved model loads."""
    around = wrapped(name)
    before = around(tokens()).logits
    around.resize_token_embeddings(70)
    after = around(tokens()).logits
    assert after.shape[-1] == 70 == around.config.vocab_size == around.config.attractor["vocab_size"]
    torch.testing.assert_close(after[..., :61], before)
    around.save_pretrained(tmp_path)
    assert torch.equal(loaded(tmp_path)(tokens()).logits, after)


def test_a_tied_readout_is_one_matrix(tmp_path: Path) -> None:
    tied, untied = (wrapped(name) for name in ("standard", "untied"))
    assert tied.get_output_embeddings() is tied.get_input_embeddings()
    assert untied.get_output_embeddings() is untied.model.head
    assert tied.config.tie_word_embeddings
    assert not untied.config.tie_word_embeddings
    tied.save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert "model.embedding.weight" in file.keys()  # noqa: SIM118
        assert "model.head.weight" not in file.keys()  # noqa: SIM118


@pytest.mark.parametrize("pool", ["last", "mean"])
def test_our_classifier_gives_the_same_logits_and_loss(pool: str, tmp_path: Path) -> None:
    model = plain(n_classes=3, pool=pool).build(0).eval()
    AttractorForSequenceClassification.of(model).save_pretrained(tmp_path)
    back = loaded(tmp_path, transformers.AutoModelForSequenceClassification)
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[1, 6:] = 0
    assert back.config.num_labels == 3
    out = back(tokens(), attention_mask=mask, labels=torch.tensor([0, 2]))
    assert torch.equal(out.logits, model(tokens(), real=mask.bool())[0])
    torch.testing.assert_close(out.loss, model.loss(tokens(), torch.tensor([0, 2]), mask.bool())[0])


def test_losses_of_a_regression_and_of_several_labels_at_once() -> None:
    number = AttractorForSequenceClassification.of(plain(n_classes=1).build(0))
    target = torch.tensor([0.5, -1.0])
    torch.testing.assert_close(number(tokens(), labels=target).loss, number.model.loss(tokens(), target)[0])
    several = AttractorForSequenceClassification(AttractorConfig.of(plain(), num_labels=4))
    labels = torch.eye(4)[:2]
    out = several(tokens(), labels=labels)
    torch.testing.assert_close(out.loss, torch.nn.functional.binary_cross_entropy_with_logits(out.logits, labels))


def test_a_pretrained_language_model_becomes_a_classifier(tmp_path: Path) -> None:
    """Criterion: the classifier has all pretrained weights except for its new, random readout, and can be saved."""
    model = built("coupled-euler")
    AttractorForCausalLM.of(model).save_pretrained(tmp_path)
    kind = transformers.AutoModelForSequenceClassification
    made, report = kind.from_pretrained(tmp_path, num_labels=3, output_loading_info=True)
    assert report["missing_keys"] == {"model.head.weight"}
    assert made.model.head.weight.std() > 0.01
    assert all(torch.equal(value, made.model.state_dict()[name]) for name, value in model.state_dict().items())
    made.save_pretrained(tmp_path / "classifier")
    again = kind.from_pretrained(tmp_path / "classifier")
    assert torch.equal(again(tokens()).logits, made(tokens()).logits)
    assert again.config.attractor["n_classes"] == 3


def test_the_configuration_is_ours_and_is_checked_as_ours(tmp_path: Path) -> None:
    AttractorConfig.of(plain(attention=PRESETS["mla"]), eos_token_id=3).save_pretrained(tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text())
    assert (stored["hidden_size"], stored["num_hidden_layers"], stored["attractor"]["d_model"]) == (32, 2, 32)
    assert transformers.AutoConfig.from_pretrained(tmp_path).model_config() == plain(attention=PRESETS["mla"])
    with pytest.raises(InputError, match="unknown attention 'eular'; did you mean 'coupled-euler'"):
        AttractorConfig(attractor=plain().to_dict() | {"attention": "eular"})
    with pytest.raises(InputError, match=r"hidden_size must be 32, as field 'attractor' has it, got 64"):
        AttractorConfig(attractor=plain().to_dict(), hidden_size=64)
    with pytest.raises(InputError, match=r"attractor must be a configuration.*got None; make one by"):
        AttractorForCausalLM(AttractorConfig())


def test_models_without_the_required_fields_are_refused() -> None:
    with pytest.raises(InputError, match="causal must be True for AttractorForCausalLM"):
        AttractorForCausalLM(AttractorConfig.of(plain(causal=False)))
    with pytest.raises(InputError, match=r"n_classes must be None for AttractorForCausalLM.of.*got 3"):
        AttractorForCausalLM.of(plain(n_classes=3).build(0))
    with pytest.raises(InputError, match=r"n_classes must be 2 for AttractorForSequenceClassification.of.*got None"):
        AttractorForSequenceClassification.of(plain().build(0))
    with pytest.raises(InputError, match=r"model must be one of attractor.models for .*, got TransformerConfig; build"):
        AttractorForCausalLM.of(cast(Any, plain()))
    llama = transformers.LlamaConfig(vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=1)
    with pytest.raises(InputError, match=r"of, got LlamaForCausalLM; .* attractor.hf.import_model"):
        AttractorForCausalLM.of(cast(Any, transformers.LlamaForCausalLM(llama)))
    with pytest.raises(InputError, match=r"attention_mask must be B S with 0 at padding.*got \(2, 4\)"):
        wrapped("standard")(tokens(), attention_mask=torch.ones(2, 4))


def test_a_mask_decides_on_packed_rows_whatever_it_holds() -> None:
    """Criterion: with a mask of ones, positions that begin anew change rotations alone, as they do compiled and beside
    a row with padding."""
    model = AttractorForCausalLM.of(TransformerConfig(**SMALL, positions="rope").build(0)).eval()
    tokens, again = torch.arange(8)[None] + 3, torch.arange(4).repeat(2)[None]
    with torch.no_grad():
        alone = model(tokens, attention_mask=torch.ones_like(tokens), position_ids=again).logits
        padded = torch.tensor([[1] * 8, [0] + [1] * 7])
        beside = model(tokens.repeat(2, 1), attention_mask=padded, position_ids=again.repeat(2, 1)).logits[:1]
    torch.testing.assert_close(alone, beside)
