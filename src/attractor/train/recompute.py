"""Policies of activation checkpointing: the operations whose results a block keeps, by the value of `recompute`.

    blocks    none: the backward pass computes the whole block again
    cheap     attention and products that sum over many numbers are kept; norms, activations, elementwise products,
              coupling, and products over few numbers (of a head's queries and a small matrix) are computed again

Computing one number of a product that sums over K numbers costs K operations, but keeping it costs the same memory for
every K. An operation counts as attention if torch counts its FLOPs and it is no plain product.
"""

from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils.checkpoint import CheckpointPolicy

MANY = 192  # a product that sums over this many numbers is kept: between the widths of a head and a model
aten = torch.ops.aten
PRODUCTS = {aten.mm: 0, aten.bmm: 0, aten.addmm: 1, aten.baddbmm: 1}  # which argument is the left factor
ON_CPU = (aten._scaled_dot_product_flash_attention_for_cpu,)  # torch does not count its FLOPs
OURS = ("attractor::differential_attention",)


def is_expensive(operator: OpOverload, *args: Any) -> bool:
    from torch.utils.flop_counter import flop_registry  # imports triton, a quarter of a second

    packet = getattr(operator, "overloadpacket", operator)  # operators of higher order have no overloads
    if packet in PRODUCTS:
        return args[PRODUCTS[packet]].shape[-1] >= MANY
    return packet in flop_registry or packet in ON_CPU or operator.name() in OURS


def cheap(context: Any, operator: OpOverload, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if is_expensive(operator, *args) else CheckpointPolicy.PREFER_RECOMPUTE


SAVED_OPS = {"blocks": None, "cheap": cheap}  # policies of torch's selective checkpoints
