"""Which parameters of a model weight decay pulls towards zero: matrices, and nothing else.

Vectors and scalars have a scale of their own. Decay would pull the coupling's log step size tau towards 0, which is a
step size of 1; a norm's weight towards 0, where the norm passes nothing on; a gate towards its middle.
"""

import math
from typing import Any

from torch import Tensor, nn

from attractor.errors import InputError


def is_matrix(name: str, parameter: Tensor) -> bool:
    """Whether this is the weight of a linear map or an embedding: lambda vectors kept as rows of one parameter are not.

    torch's own attention and recurrent layers call their matrices `in_proj_weight` and `weight_ih_l0`.
    """
    last = name.rpartition(".")[2]
    return parameter.dim() >= 2 and (last.endswith("weight") or last.startswith("weight_"))


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return the groups of an optimizer such as AdamW, with decay on matrices only, as runs of attractor train.

    The model may be anyone's. A parameter that is shared counts once, and one that is frozen is left out. Each group
    holds its parameters with their names, as torch's optimizers take them.
    """
    if not 0 <= weight_decay < math.inf:
        raise InputError(f"weight_decay must be at least 0 and finite, got {weight_decay}; 0.01 is AdamW's own")
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    matrices = [each for each in named if is_matrix(*each)]
    others = [each for each in named if not is_matrix(*each)]
    groups = [
        {"name": "matrices", "params": matrices, "weight_decay": weight_decay},
        {"name": "vectors and scalars", "params": others, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
