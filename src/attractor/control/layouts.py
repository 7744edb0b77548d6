"""The query and key weights of other models."""

from torch import nn

from attractor.control.heads import View
from attractor.errors import InputError

VIEWS: list[View] = []


def refuse_unknown(model: nn.Module) -> None:
    raise InputError("model must have attention")
