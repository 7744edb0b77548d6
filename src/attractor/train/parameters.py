"""Parameter groups of any model: weight decay acts on matrices, and on nothing else.

For a vector or scalar, zero is no neutral value. Decay would pull the coupling's log step size tau towards 0, which is
a step size of 1; the weight of a norm towards 0, where the norm outputs 0; and a gate towards its middle.
"""

import math
from typing import Any

from torch import Tensor, nn

from attractor.errors import InputError


def is_matrix(name: str, parameter: Tensor) -> bool:
    """Return whether a parameter is the weight of a linear map or an embedding, and not vectors stored as rows.

    torch's own attention and recurrent layers call their matrices `in_proj_weight` and `weight_ih_l0`, and mixtures of
    experts in transformers call theirs `gate_up_proj` and `down_proj`.
    """
    last = name.rpartition(".")[2]
    return parameter.dim() >= 2 and (last.endswith(("weight", "_proj")) or last.startswith("weight_"))


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return the parameter groups for an optimizer such as AdamW, as runs of `attractor train` use them.

    Any model will do. A shared parameter counts once, and a frozen one is left out. Each group holds parameters with
    their names, as torch's optimizers accept them.
    """
    if not 0 <= weight_decay < math.inf:
        raise InputError(f"weight_decay must be at least 0 and finite, got {weight_decay}; 0.01 is AdamW's own")
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    matrices = [(name, parameter) for name, parameter in named if is_matrix(name, parameter)]
    others = [(name, parameter) for name, parameter in named if not is_matrix(name, parameter)]
    groups = [
        {"name": "matrices", "params": matrices, "weight_decay": weight_decay},
        {"name": "vectors and scalars", "params": others, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
