"""Layers of Hugging Face's models as maps have the model's own states, and Jacobians that respect the causal mask."""

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from attractor.analysis import finite_time_exponents, jacobian
from attractor.errors import InputError
from attractor.hf.layer_maps import decoder_layers, layer_maps

SIZES: dict[str, Any] = {"vocab_size": 11, "hidden_size": 8, "num_hidden_layers": 3, "num_attention_heads": 2}
MODELS = {
    "llama": transformers.LlamaConfig(**SIZES, intermediate_size=16, num_key_value_heads=1),
    "gpt2": transformers.GPT2Config(vocab_size=11, n_embd=8, n_layer=3, n_head=2, n_positions=16),
    "openai-gpt": transformers.OpenAIGPTConfig(vocab_size=11, n_embd=8, n_layer=3, n_head=2, n_positions=16),
    "gpt-neox": transformers.GPTNeoXConfig(**SIZES, intermediate_size=16),
    "gemma2": transformers.Gemma2Config(
        **SIZES, intermediate_size=16, num_key_value_heads=1, head_dim=4, sliding_window=4
    ),
}


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> nn.Module:
    torch.manual_seed(0)
    built = transformers.AutoModelForCausalLM.from_config(MODELS[request.param]).double().eval()
    for parameter in built.parameters():
        parameter.data.normal_(std=0.3)
    return built


def tokens() -> Tensor:
    return torch.randint(11, (2, 5), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("padded", [False, True])
def test_states_are_the_models_own(model: Any, padded: bool) -> None:
    """Criterion: all states but the last equal the model's hidden states bit for bit. The final norm of the last state
    equals the last hidden state."""
    inputs = {"attention_mask": (torch.arange(5) < torch.tensor([[5], [3]])).long()} if padded else {}
    maps = layer_maps(model, tokens(), **inputs)
    shown = model(input_ids=tokens(), output_hidden_states=True, use_cache=False, **inputs)
    for state, hidden in zip(maps.states, shown.hidden_states[:-1], strict=False):
        assert torch.equal(state, hidden)
    norms = (m for name, m in model.base_model.named_children() if "norm" in name or name == "ln_f")
    norm = next(norms, nn.Identity())  # the first GPT normalises within its layers
    assert torch.equal(norm(maps.states[-1]), shown.hidden_states[-1])


def test_each_map_leads_to_the_next_state_at_every_call(model: nn.Module) -> None:
    """Criterion: a second call of each map gives the same state, so no cache has grown."""
    maps = layer_maps(model, tokens())
    for _ in range(2):
        for step, before, after in zip(maps.steps, maps.states, maps.states[1:], strict=False):
            torch.testing.assert_close(step(before), after)
    step, start = maps.block(1)
    torch.testing.assert_close(step(start), maps.states[2])


def test_the_product_over_depth_is_causal_and_has_the_exponents_of_the_whole(model: nn.Module) -> None:
    """Criterion: exponents are those of the product of dense Jacobians, in which no position affects an earlier one."""
    maps = layer_maps(model, tokens()[:1, :3])
    product = torch.eye(3 * 8, dtype=torch.float64)
    for step, state in zip(maps.steps, maps.states, strict=False):
        product = jacobian(step, state) @ product
    by_position = product.reshape(3, 8, 3, 8).abs().amax((1, 3))
    assert by_position.triu(1).max() == 0 < by_position.diagonal().min()
    found = finite_time_exponents(*maps.whole(), n_steps=1, k=2)
    torch.testing.assert_close(found, torch.linalg.svdvals(product)[:2].log(), rtol=0, atol=2e-3)


def test_layers_may_be_named(model: nn.Module) -> None:
    """Criterion: naming the list of layers gives the same states as finding it automatically."""
    name = next(name for name, module in model.named_modules() if module is decoder_layers(model))
    given, found = layer_maps(model, tokens(), layers=name), layer_maps(model, tokens())
    assert all(map(torch.equal, given.states, found.states))


class Two(nn.Module):
    """A model with two lists of num_hidden_layers layers, so that the right one must be named."""

    def __init__(self) -> None:
        super().__init__()
        self.config = transformers.PretrainedConfig(num_hidden_layers=2)
        self.encoder = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.decoder = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, input_ids: Tensor, use_cache: bool) -> Tensor:
        h = nn.functional.one_hot(input_ids, 4).float()
        for layer in self.decoder:
            h = 2 * layer(h)
        return h


@pytest.mark.parametrize(
    ("layers", "trains", "words"),
    [
        (None, False, "num_hidden_layers=2 layers, got Two with lists 'encoder' of 2, 'decoder'"),
        ("layers", False, "got 'layers'; there are 'encoder', 'decoder'"),
        ("decoder", False, "read what the one before wrote, and those of Two do not"),
        ("decoder", True, "evaluation mode"),
    ],
)
def test_layers_without_a_map_are_refused(layers: str | None, trains: bool, words: str) -> None:
    with pytest.raises(InputError, match=words):
        layer_maps(Two().train(trains), torch.zeros(1, 3, dtype=torch.long), layers=layers)
