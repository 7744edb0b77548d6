"""Hugging Face's `generate` with our caches gives the text of our own `generate`."""

import copy
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from wrapped_models import CONFIGS, wrapped

from attractor.errors import InputError
from attractor.hf.auto_classes import AttractorForCausalLM
from attractor.hf.cache import CACHE_NAME, AttractorCache
from tiers import tiered

CACHED = ("standard", "mla", "fast-slow", "window")
PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8, 9], [10]]
PROMPT = torch.tensor([PROMPTS[1]])
N_NEW = 10


def around(name: str) -> AttractorForCausalLM:
    """Return the model of this name with large weights, which vary the text and make choices clear, and no end."""
    return AttractorForCausalLM.of(wrapped(name, by=0.4).model, pad_token_id=0)


def padded() -> dict[str, Tensor]:
    rows = [[0] * (6 - len(row)) + row for row in PROMPTS]
    mask = [[0] * (6 - len(row)) + [1] * len(row) for row in PROMPTS]
    return {"input_ids": torch.tensor(rows), "attention_mask": torch.tensor(mask)}


def greedy(model: Any, **inputs: Any) -> Tensor:
    return model.generate(**{"max_new_tokens": N_NEW, "do_sample": False} | inputs)


@pytest.mark.parametrize("name", tiered(CONFIGS))
def test_greedy_generation_equals_ours(name: str) -> None:
    """Criterion: both give the same tokens for a batch that is padded on the left and for a single prompt."""
    model = around(name)
    cached = name != "itrsa"
    ours = model.model.generate(PROMPTS, N_NEW, temperature=0.0, use_cache=cached)
    assert torch.equal(greedy(model, **padded()), ours)
    alone = model.model.generate([PROMPTS[1]], N_NEW, temperature=0.0, use_cache=cached)
    assert torch.equal(greedy(model, input_ids=PROMPT), alone)


@pytest.mark.parametrize("name", CACHED)
def test_sampling_draws_from_the_same_distribution(name: str) -> None:
    """Criterion: with one seed, sampling gives the same text with and without the cache."""
    texts = []
    for use_cache in (True, False):
        torch.manual_seed(5)
        sampled = {"do_sample": True, "temperature": 1.5, "top_k": 20, "top_p": 0.9, "use_cache": use_cache}
        texts.append(greedy(around(name), **padded(), **sampled))
    assert torch.equal(*texts)


@pytest.mark.parametrize("name", CACHED)
def test_beams_keep_their_caches(name: str) -> None:
    """Criterion: beam search gives the same texts with and without the cache, with several texts for each prompt."""
    model = around(name)
    beams = {"num_beams": 3, "num_return_sequences": 2}
    with_cache = greedy(model, **padded(), **beams)
    assert with_cache.shape == (6, 6 + N_NEW)
    assert torch.equal(with_cache, greedy(model, **padded(), **beams, use_cache=False))


@pytest.mark.parametrize("name", CACHED)
def test_generation_continues_from_a_cache(name: str) -> None:
    """Criterion: generation in two parts gives the text of one part, and a copy of the cache is independent."""
    model = around(name)
    whole = greedy(model, input_ids=PROMPT)
    first = greedy(model, input_ids=PROMPT, max_new_tokens=4, return_dict_in_generate=True)
    past = first[CACHE_NAME]
    assert isinstance(past, AttractorCache)
    assert past.get_seq_length() == first.sequences.shape[1] - 1
    for given in (copy.deepcopy(past), past):
        rest = greedy(model, input_ids=first.sequences, max_new_tokens=N_NEW - 4, **{CACHE_NAME: given})
        assert torch.equal(rest, whole)


def test_rows_are_selected_in_all_caches() -> None:
    """Criterion: after rows of FastSlow's caches are selected, each continues as the row that it was, despite
    padding."""
    model = around("fast-slow").model
    inputs = padded()
    real, fresh = inputs["attention_mask"].bool(), torch.tensor([[11], [12], [13]])
    with torch.no_grad():
        plain, changed = AttractorCache(model), AttractorCache(model)
        for cache in (plain, changed):
            model(inputs["input_ids"], cache=cache.held, real=real)
        rows = torch.tensor([2, 0, 0, 1])
        changed.reorder_cache(rows)
        new_tokens = fresh.expand(3, 5).split(1, dim=1)
        expected = torch.cat([model(token, cache=plain.held)[0] for token in new_tokens], dim=1)
        selected = torch.cat([model(token[rows], cache=changed.held)[0] for token in new_tokens], dim=1)
    torch.testing.assert_close(selected, expected[rows], rtol=1e-5, atol=1e-5)
    changed.batch_repeat_interleave(2)
    assert changed.held.real is not None
    assert changed.held.real.shape[0] == 8


def test_rejected_tokens_of_an_assistant_change_nothing() -> None:
    """Criterion: tokens that an assistant proposes and the model rejects do not change the text. FastSlow refuses
    an assistant."""
    model = around("standard")
    assistant = AttractorForCausalLM.of(CONFIGS["gqa"].build(1).eval(), pad_token_id=0)
    prompt = {"input_ids": PROMPT, "eos_token_id": 0}  # transformers 5.0 needs an end here
    expected = greedy(model, **prompt)
    assert expected.shape[1] == 6 + N_NEW
    assert torch.equal(greedy(model, **prompt, assistant_model=assistant), expected)
    assert torch.equal(greedy(model, **prompt, prompt_lookup_num_tokens=2), expected)
    assert torch.equal(greedy(model, **prompt, prefill_chunk_size=2), expected)
    ours = f"{CACHE_NAME} must be of a Transformer.*generate without an assistant"
    theirs = "requires a cache that can be cropped"  # transformers 5.24 asks before anything is cropped
    with pytest.raises(ValueError, match=f"{ours}|{theirs}"):
        greedy(around("fast-slow"), **prompt, assistant_model=assistant)


@pytest.mark.parametrize("whole", [True, False])
def test_a_cache_is_taken_under_both_names(whole: bool) -> None:
    """Criterion: `past_key_values`, the name before transformers 5.24, and `cache`, the name since, give equal outputs,
    which continue the prompt. So does the model without its readout."""
    causal = around("standard")
    model = causal if whole else causal.base_model
    with torch.no_grad():
        expected = model(PROMPT)[0][:, 4:]
        for name in ("past_key_values", "cache"):
            past = model(PROMPT[:, :4], use_cache=True)[CACHE_NAME]
            rest = model(PROMPT[:, 4:], **{name: past})
            torch.testing.assert_close(rest[0], expected, rtol=1e-5, atol=1e-5)
            assert rest[CACHE_NAME] is past
            assert past.get_seq_length() == 6


def test_the_pipeline_generates_our_text() -> None:
    words = {f"w{i}": i for i in range(60)} | {"<pad>": 60}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", padding_side="left")
    model = around("coupled-euler")
    pipeline = transformers.pipeline("text-generation", model=model, tokenizer=fast, batch_size=3)
    prompts = [" ".join(f"w{token}" for token in row) for row in PROMPTS]
    answers = pipeline(prompts, max_new_tokens=N_NEW, do_sample=False)
    ours = model.model.generate(PROMPTS, N_NEW, temperature=0.0)
    for (answer,), row, prompt in zip(answers, ours, prompts, strict=True):
        assert answer["generated_text"] == prompt + fast.decode(row[6:])


def test_an_empty_cache_of_another_kind_is_replaced_and_a_cache_can_be_cropped_to_a_length() -> None:
    """Criterion: `generate` with an empty DynamicCache gives the text without it. In a loop, a cache from which tokens
    were forgotten, by number or by the length to keep (transformers 5.0), continues as an uncropped one."""
    model = around("standard")
    theirs = transformers.DynamicCache()
    assert torch.equal(greedy(model, input_ids=PROMPT, **{CACHE_NAME: theirs}), greedy(model, input_ids=PROMPT))
    expected = model(PROMPT).logits[:, 4:]
    for crop in (-2, 4):
        past = model(PROMPT, use_cache=True)[CACHE_NAME]
        past.crop(crop)
        rest = model(PROMPT[:, 4:], attention_mask=torch.ones_like(PROMPT), past_key_values=past)
        torch.testing.assert_close(rest.logits, expected, rtol=1e-5, atol=1e-5)
        past.crop(9)
        assert past.get_seq_length() == 6


def test_unsupported_uses_of_caches_are_refused() -> None:
    model = around("standard")
    with pytest.raises(InputError, match=r"cache_implementation must be left out, got 'static'"):
        greedy(model, input_ids=PROMPT, cache_implementation="static")
    of_an_assistant = transformers.GenerationConfig(use_cache=True)
    of_an_assistant.cache_implementation = "dynamic_full"  # in transformers 5.0, and unknown in later ones
    arguments: dict[str, Any] = {}
    model._prepare_cache_for_generation(of_an_assistant, arguments)
    assert isinstance(arguments[CACHE_NAME], AttractorCache)
    with pytest.raises(InputError, match=rf"{CACHE_NAME} must be a cache of this model, got DynamicCache.*leave it"):
        model(PROMPT, past_key_values=transformers.DynamicCache(), use_cache=True)
    of_another = AttractorForCausalLM.of(CONFIGS["standard"].replace(n_layers=1).build(0))
    with pytest.raises(InputError, match=rf"^{CACHE_NAME} must be a cache of this model, got one of another model"):
        of_another(PROMPT, **{CACHE_NAME: model(PROMPT, use_cache=True)[CACHE_NAME]}, use_cache=True)
    past = model(PROMPT, use_cache=True)[CACHE_NAME]
    with pytest.raises(InputError, match=f"past_key_values and cache must not .* together.*; give {CACHE_NAME} alone"):
        model(PROMPT, past_key_values=past, cache=past)
    with pytest.raises(InputError, match=r"attention_mask must be B S .* got \(1, 6\) for 6 cached positions"):
        model(PROMPT[:, :1], attention_mask=torch.ones(1, 6), past_key_values=past)
    with pytest.raises(InputError, match="tokens_to_remove must be at least -6, got -7"):
        past.crop(-7)
    past = around("window")(PROMPT, use_cache=True)[CACHE_NAME]
    assert not past.is_croppable
    with pytest.raises(InputError, match=r"window must be at least the 6 cached positions to .*, got 4"):
        past.crop(-1)
    # Its first layer could forget, but must not, since the second cannot.
    assert [past.held.length, *(layer.length for layer in past.held.layers)] == [6, 6, 6]
    with pytest.raises(InputError, match="max_seq_len must be at least the sequence's length, got 40 for 41"):
        greedy(around("untied"), input_ids=PROMPT, max_new_tokens=36)
