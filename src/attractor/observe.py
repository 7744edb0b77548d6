"""Attention maps, and queries and keys, of a whole model, read through its taps."""

from torch import Tensor, nn

from attractor.errors import InputError
from attractor.taps import capture


def attention_maps(model: nn.Module, tokens: Tensor) -> list[Tensor]:
    """The softmax maps of every layer, B H T S each (differential attention: B 2H T S, all A_1 before all A_2).

    The model is run as it stands: call `model.eval()` and `torch.no_grad()` as the measurement asks for.
    """
    with capture("weights") as seen:
        model(tokens)
    if not seen["weights"]:
        raise InputError("model must have attention layers of attractor to give maps, found no tapped weights")
    return seen["weights"]


def queries_and_keys(model: nn.Module, tokens: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The queries and keys of every layer as they were projected, before coupling and position, B H T K each."""
    with capture("q", "k") as seen:
        model(tokens)
    return list(zip(seen["q"], seen["k"], strict=True))
