"""Generation agrees with and without a cache, and in a padded batch and alone; samplers keep their definitions."""

import pytest
import torch

from attractor.attention import PRESETS
from attractor.attention.hooks import capture
from attractor.errors import InputError
from attractor.models import Transformer, TransformerConfig
from attractor.models.generate import sample
from tiers import tiered

PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8, 9], [10]]


def small(attention: str, positions: str = "learned") -> Transformer:
    config = TransformerConfig(61, 32, 4, n_layers=2, d_ff=48, max_seq_len=40, positions=positions, attention=attention)
    model = config.build(0)
    with torch.no_grad():  # sharper logits, so that greedy choices do not depend on rounding
        model.embedding.weight.mul_(20)
    return model.eval()


@pytest.mark.parametrize("attention", ["standard", "mla", "decay", "coupled-euler"])
@pytest.mark.parametrize("positions", ["learned", "rope"])
def test_cached_and_padded_decoding_gives_the_same_tokens(attention: str, positions: str) -> None:
    """Criterion: greedy tokens agree with uncached decoding, and with each prompt decoded alone, without padding."""
    model = small(attention, positions)
    cached = model.generate(PROMPTS, max_new_tokens=12, temperature=0.0)
    assert torch.equal(cached, model.generate(PROMPTS, max_new_tokens=12, temperature=0.0, use_cache=False))
    for row, prompt in zip(cached, PROMPTS, strict=True):
        alone = model.generate(torch.tensor([prompt]), max_new_tokens=12, temperature=0.0)
        assert alone[0].tolist() == prompt + row[-12:].tolist()


@pytest.mark.parametrize("attention", tiered(PRESETS))
def test_training_is_unaffected_by_generation_before_it(attention: str) -> None:
    """Criterion: after generation under open taps, a loss on the generated tokens has the gradients of a model that
    never generated."""
    model, untouched = small(attention, "rope").train(), small(attention, "rope").train()
    with capture("q_coupled", "logits") as seen:
        spoken = model.generate(PROMPTS, max_new_tokens=2, temperature=0.0)
    assert seen
    for each in (model, untouched):
        loss, aux_loss = each.loss(spoken[:, :-1], spoken[:, 1:])
        (loss + aux_loss).backward()
    for parameter, other in zip(model.parameters(), untouched.parameters(), strict=True):
        assert torch.equal(parameter.grad, other.grad) if other.grad is not None else parameter.grad is None


def test_sampling_is_reproducible_and_leaves_the_mode_alone() -> None:
    model = small("standard").train()
    model.blocks[0].eval()  # as a frozen block is kept
    generators = [torch.Generator().manual_seed(1) for _ in range(2)]
    texts = [model.generate(PROMPTS, 8, temperature=1.0, top_k=5, top_p=0.9, generator=g) for g in generators]
    assert torch.equal(*texts)
    assert [module.training for module in (model, *model.blocks)] == [True, False, True]


def test_stop_token_ends_a_sequence_and_all_stopped_ends_early() -> None:
    model = small("standard")
    free = model.generate([[1, 2, 3]], 12, temperature=0.0)[0].tolist()
    stop = free[5]
    stopped = model.generate([[1, 2, 3]], 12, temperature=0.0, stop_token=stop, pad_token=60)[0].tolist()
    assert stopped == free[: free.index(stop, 3) + 1]


def test_samplers_keep_their_definitions() -> None:
    """Criterion: greedy takes the likeliest token, top-k one of the k likeliest, and top-p one of the fewest that reach
    p."""
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]]).expand(4000, -1)
    generator = torch.Generator().manual_seed(0)
    assert (sample(logits, 0.0) == 0).all()
    assert set(sample(logits, 1.0, top_k=2, generator=generator).tolist()) == {0, 1}
    # Probabilities are .644 .237 .087 .032: the first two hold .881, the third is needed to reach .9.
    assert set(sample(logits, 1.0, top_p=0.6, generator=generator).tolist()) == {0}
    assert set(sample(logits, 1.0, top_p=0.9, generator=generator).tolist()) == {0, 1, 2}
    drawn = torch.bincount(sample(logits, 1.0, generator=generator), minlength=4) / 4000
    torch.testing.assert_close(drawn, logits[0].softmax(-1), rtol=0, atol=0.03)
    assert sample(logits / 0.01, 100.0, generator=generator).unique().numel() == 4


def test_prompts_of_any_integer_type_are_taken() -> None:
    model, tokens = small("standard"), torch.tensor([[1, 2, 3]])
    expected = model.generate(tokens, max_new_tokens=3, temperature=0.0)
    assert torch.equal(model.generate(tokens.to(torch.uint8), max_new_tokens=3, temperature=0.0), expected)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"max_new_tokens": 100}, "max_new_tokens must be at most 34 after a prompt of 6 tokens"),
        ({"max_new_tokens": 2.5}, "max_new_tokens must be an integer of at least 0, got 2.5"),
        ({"tokens": [[1], []]}, "every prompt must have at least one token"),
        ({"tokens": [1, 2, 3]}, "tokens must be one prompt a row, B T or a list of prompts, got one prompt"),
        ({"tokens": torch.tensor([1, 2, 3])}, "tokens must be one prompt a row"),
        ({"tokens": [[1, 61]]}, "tokens must be below the vocabulary's size 61 and at least 0, got 61"),
        ({"tokens": [[1, -1]]}, "tokens must be below the vocabulary's size 61 and at least 0, got -1"),
        ({"tokens": [[1.5, 2.0]]}, "tokens must be integers, the ids of a vocabulary"),
        ({"tokens": torch.tensor([[1.0]])}, "tokens must be integers, the ids of a vocabulary"),
        (
            {"tokens": [[1, 2], [3]], "pad_token": -1},
            "pad_token must be a token below the vocabulary's size 61, got -1",
        ),
    ],
)
def test_bad_requests_are_refused(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        small("standard").generate(**{"tokens": PROMPTS} | arguments)


@pytest.mark.parametrize(("field", "value"), [("causal", False), ("n_classes", 3)])
def test_a_model_without_a_next_token_is_refused(field: str, value: object) -> None:
    model = small("standard").config.replace(**{field: value}).build(0)
    with pytest.raises(InputError, match=f"{field} must be (True|None) to generate, got {value}"):
        model.generate(PROMPTS)
