"""Muon for hidden matrices and AdamW for all else, as one optimizer with one schedule, state and checkpoint.

    M <- mu M + (1 - mu) G,   U = mu M + (1 - mu) G   (Nesterov)                                            (1)
    X <- U / |U|_F, then five times  X <- a X + b (X X') X + c (X X')^2 X                                   (2)
    W <- (1 - rate decay) W - rate f X,   f = sqrt(max(1, rows / columns))                                  (3)

(2) brings every singular value that is not nearly 0 close to 1. By default each head's rows of W_q and W_k are
orthogonalised alone (`control.query_key_heads`). `per_head=False` takes those matrices whole, which is another update:
orthogonal heads do not make an orthogonal matrix.

The factor f is Jordan's and torch's default. LogitControl most probably used it as well: that paper gives all
parameters one rate of 3e-4 to 3e-2 and finds the higher rates better, as Jordan's 0.02 is. Rows and columns are those
of the orthogonalised block, such as a head.

Blocks of one shape are orthogonalised together, up to a limit (MAX_BATCH), because small ones take longer to launch
than to compute. The result equals that of each block alone, bit for bit. Where a step is not applied
(`device_decisions.py`), the gradient is replaced by the momentum, so that the momentum stays, and the update is 0.

(2) runs in bf16 on a GPU, as published, and elsewhere in the precision of the weights: a CPU that computes in bf16
would take half the time, but any other CPU 25 times as long.
Jordan et al. 2024, kellerjordan.github.io/posts/muon.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim.adamw import adamw

from attractor.attention import Attention
from attractor.errors import InputError
from attractor.train.distributed import is_spread
from attractor.train.parameters import is_matrix

if TYPE_CHECKING:
    from attractor.control.views import Rows

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # a, b, c of (2): the steepest start
N_ITERATIONS = 5
MOMENTUM = 0.95  # mu of (1)
MAX_BATCH = {"cpu": 2**17}  # numbers that are orthogonalised together: more would not fit a processor's cache
MAX_BATCH_ELSEWHERE = 2**26  # enough to keep any GPU busy; more would only take memory
LARGEST_RATE = torch.finfo(torch.float32).max


def refuse_sharding() -> NoReturn:
    raise InputError(
        "parallel must be ddp under Muon, got fsdp: Muon orthogonalises whole matrices, and under fsdp no process "
        "holds one; choose parallel='ddp', or AdamW"
    )


class MuonAdamW(torch.optim.Optimizer):
    def __init__(
        self,
        model: nn.Module,
        groups: list[dict[str, Any]],
        lr: float,
        betas: tuple[float, float],
        per_head: bool = True,
    ) -> None:
        if any(is_spread(parameter) for parameter in model.parameters()):
            refuse_sharding()
        # "fused" also tells torch to load AdamW's step counts onto the device of the parameters.
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": 1e-8, "fused": True})
        self.blocks_of = {weight: blocks(parts) for weight, parts in heads_of(model).items()} if per_head else {}

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if parameters:
                (self._muon if group["rule"] == "muon" else self._adamw)(group, parameters)

    def _muon(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        gradients, momenta = _gradients(parameters), self._state(parameters, "momentum_buffer")
        decay, found_inf, applied = 1 - group["lr"] * group["weight_decay"], getattr(self, "found_inf", None), None
        if found_inf is not None:
            applied = found_inf == 0
            gradients = [torch.where(applied, g, m) for g, m in zip(gradients, momenta, strict=True)]
            decay = torch.where(applied, decay, 1.0)
        torch._foreach_lerp_(momenta, gradients, 1 - MOMENTUM)  # (1)
        updates = torch._foreach_lerp(gradients, momenta, MOMENTUM)
        torch._foreach_mul_(parameters, decay)
        self.move(parameters, updates, group["lr"], applied)

    def move(
        self, parameters: list[Tensor], updates: Sequence[Tensor], rate: float, applied: Tensor | None = None
    ) -> None:
        """Apply (2), and (3) without the decay."""
        cuts = [cut for weight, update in zip(parameters, updates, strict=True) for cut in self._cut(weight, update)]
        for batch in _in_batches(cuts):
            directions = orthogonalized(torch.cat([cut.blocks for cut in batch]))
            if applied is not None:
                directions = directions * applied
            rows, columns = directions.shape[1:]
            factor = math.sqrt(max(1.0, rows / columns))
            for cut, of_cut in zip(batch, directions.split([len(cut.blocks) for cut in batch]), strict=True):
                # torch refuses a factor beyond fp32. At such a rate the weights overflow either way, and the run stops.
                cut.add(of_cut, -min(rate * factor, LARGEST_RATE))

    def _cut(self, weight: Tensor, update: Tensor) -> Iterator["Cut"]:
        if weight not in self.blocks_of:
            yield Cut(weight, update.unsqueeze(0))
            return
        for rows, n_blocks, axis in self.blocks_of[weight]:
            cut = update.index_select(axis, rows)
            yield Cut(weight, (cut.T if axis else cut).unflatten(0, (n_blocks, -1)), rows, axis)

    def _adamw(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        for parameter in parameters:
            if "step" not in self.state[parameter]:
                self.state[parameter]["step"] = parameter.new_zeros((), dtype=torch.float32)
        adamw(
            parameters,
            _gradients(parameters),
            self._state(parameters, "exp_avg"),
            self._state(parameters, "exp_avg_sq"),
            [],
            [self.state[parameter]["step"] for parameter in parameters],
            fused=True,
            found_inf=getattr(self, "found_inf", None),
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )

    def _state(self, parameters: list[Tensor], name: str) -> list[Tensor]:
        for parameter in parameters:
            if name not in self.state[parameter]:
                self.state[parameter][name] = torch.zeros_like(parameter)
        return [self.state[parameter][name] for parameter in parameters]


@dataclass(frozen=True, eq=False)
class Cut:
    """Blocks of one matrix's update that are orthogonalised, and the rows of the matrix that they belong to."""

    weight: Tensor
    blocks: Tensor  # n R C; a single block holds the whole matrix
    rows: Tensor | None = None  # None: all rows
    axis: int = 0

    def add(self, directions: Tensor, rate: float) -> None:
        if self.rows is None:
            self.weight.add_(directions.squeeze(0), alpha=rate)
        else:
            flat = directions.flatten(0, 1).to(self.weight.dtype)
            self.weight.index_add_(self.axis, self.rows, flat.T if self.axis else flat, alpha=rate)


def _in_batches(cuts: Iterable[Cut]) -> Iterator[list[Cut]]:
    """Yield cuts whose blocks have one shape, as many together as MAX_BATCH allows."""
    batches: dict[tuple[Any, ...], list[Cut]] = {}
    for cut in cuts:
        blocks = cut.blocks
        key = (*blocks.shape[1:], blocks.dtype, blocks.device)
        batch = batches.setdefault(key, [])
        size = sum(other.blocks.numel() for other in batch) + blocks.numel()
        if batch and size > MAX_BATCH.get(blocks.device.type, MAX_BATCH_ELSEWHERE):
            yield batch
            batches[key] = [cut]
        else:
            batch.append(cut)
    yield from batches.values()


def _gradients(parameters: list[Tensor]) -> list[Tensor]:
    return [cast(Tensor, parameter.grad) for parameter in parameters]


def orthogonalized(update: Float[Tensor, "*n R C"]) -> Float[Tensor, "*n R C"]:
    """Apply (2) to every matrix: singular vectors stay, singular values come close to 1, and zero stays zero."""
    if update.dim() == 3 and len(update) == 1:  # torch is faster with one matrix than with a batch of one
        return orthogonalized(update.squeeze(0)).unsqueeze(0)
    if update.shape[-2] > update.shape[-1]:  # the smaller of X X' and X' X
        return orthogonalized(update.mT).mT
    a, b, c = COEFFICIENTS
    x = update.bfloat16() if update.is_cuda else update
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    multiply_add = torch.baddbmm if x.dim() == 3 else torch.addmm
    for _ in range(N_ITERATIONS):
        gram = x @ x.mT
        x = multiply_add(x, multiply_add(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


def blocks(parts: "list[Rows]") -> list[tuple[Tensor, int, int]]:
    """Return how a matrix is cut: rows, the number of equal blocks that they make, and the axis that they lie on.

    Every head is a block. All rows that belong to no head, such as the values of a fused matrix, form one more block.
    """
    axis, length = parts[0].axis, parts[0].weight.shape[parts[0].axis]
    known = [(part.index, part.n_heads, axis) for part in parts]
    rest = torch.ones(length, dtype=torch.bool, device=parts[0].weight.device)
    for rows, _, _ in known:
        rest[rows] = False
    return [*known, (rest.nonzero().flatten(), 1, axis)] if rest.any() else known


def heads_of(model: nn.Module) -> "dict[Tensor, list[Rows]]":
    """Return the rows of the heads in every matrix with several heads."""
    # This imports torch's compiler, two seconds that a command without a step should not take.
    from attractor.control.heads import attention_view, query_key_heads

    layers = [module for module in model.modules() if isinstance(module, Attention)]
    if layers and all(attention_view("", layer) is None for layer in layers):
        return {}  # the control and decay have no logits, and so no query and key heads
    rows_of_weight: dict[Tensor, list[Rows]] = {}
    for view in query_key_heads(model):
        for rows in view.parts().values():
            rows_of_weight.setdefault(rows.weight, []).append(rows)
    return {weight: parts for weight, parts in rows_of_weight.items() if max(part.n_heads for part in parts) > 1}


def muon_groups(model: nn.Module, weight_decay: float, per_head: bool) -> list[dict[str, Any]]:
    """Return the parameter groups with their update rules, which their names say, too.

    A hidden matrix is the weight of a map between activations. Embeddings and the readout are not hidden matrices: each
    of their rows is a vector of its own.
    """
    tables = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    outside = {id(parameter) for table in tables for parameter in table.parameters()} | {id(_readout(model))}
    how = ", query and key matrices head by head" if per_head and heads_of(model) else ""
    kinds = {
        "hidden": (f"hidden matrices, by Muon{how}", "muon", weight_decay),
        "outside": ("embeddings and readout, by AdamW", "adamw", weight_decay),
        "vectors": ("vectors and scalars, by AdamW", "adamw", 0.0),
    }
    params: dict[str, list[tuple[str, Tensor]]] = {kind: [] for kind in kinds}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            hidden = parameter.dim() == 2 and is_matrix(name, parameter)
            kind = "vectors" if not hidden else "outside" if id(parameter) in outside else "hidden"
            params[kind].append((name, parameter))
    return [
        {"name": name, "rule": rule, "params": params[kind], "weight_decay": decay}
        for kind, (name, rule, decay) in kinds.items()
        if params[kind]
    ]


def _readout(model: nn.Module) -> Tensor | None:
    """Return the readout of a LanguageModel, or of a Hugging Face model."""
    if hasattr(model, "get_output_embeddings"):
        head = model.get_output_embeddings()  # type: ignore[operator]
        return None if head is None else head.weight
    return getattr(model, "readout", None)
