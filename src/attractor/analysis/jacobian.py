"""The Jacobian of a step at a state, as an operator that multiplies directions without forming the matrix.

    J = dstep/dx,    with a tangent space  P(step(x)) J P(x)                                                (1)

J v uses forward-mode differentiation, vectorised over the directions. Where an operation has no forward rule, J v is
computed one direction at a time by reverse mode applied twice:

    g(u) = J' u  is linear in u,  J v = (dg/du)' v                                                          (2)

Where a step can be differentiated only once, as a solver with the gradient of its solution, the rows of J are computed
by reverse mode, one for each number of the state, and kept. J' u is vectorised where the step allows it. Attention runs
in its plain form, which has both rules. A direction is taken to need as much memory as the step keeps for its own
backward pass; `max_bytes` bounds how many run at once.
"""

from __future__ import annotations

import copy
import warnings
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel

from attractor.analysis.lanczos import or_one
from attractor.analysis.state import Step, image_of, require_finite, require_finite_derivative, start_of
from attractor.analysis.tangent import Tangent
from attractor.errors import InputError

ONE_GIB = 2**30
MOST_ROWS = 4096  # numbers of a state whose matrix is computed row by row


class Jacobian:
    """A matrix that multiplies directions of the state's own shape (`jvp`, `vjp`) or columns (`times`)."""

    def __init__(
        self, step: Step, x: Tensor, batched: bool = False, tangent: Tangent | None = None, max_bytes: int = ONE_GIB
    ) -> None:
        self.step, self.x, self.tangent = step, start_of(x, batched), tangent
        self.image = image_of(step, self.x)
        require_finite(self.image.unsqueeze(0), 1, batched)
        self.n_samples = x.shape[0] if batched else 1
        self.dim = x.numel() // self.n_samples
        self.batched = batched
        self.n_at_once = max(1, max_bytes // backward_bytes(step, self.x))
        load_forward_mode()
        self._refused: set[str] = set()  # modes that this step does not support; copies share the set
        self._rows: Tensor | None = None
        self._require_one_map()

    def at(self, x: Tensor, image: Tensor) -> Jacobian:
        """Return the Jacobian of the same step at another state, whose image is known."""
        other = copy.copy(self)
        other.x, other.image, other._rows = x, image, None
        return other

    def jvp(self, v: Tensor) -> Tensor:
        """Return J v for a direction of the state's shape, or for a block of them with one more dimension in front."""
        if v.shape == self.x.shape:
            return self.jvp(v.unsqueeze(0)).squeeze(0)
        self._require_block(v)
        return self._project(self.image, self._forward(self._project(self.x, v)))

    def vjp(self, u: Tensor) -> Tensor:
        """Return J' u for a direction or a block of them."""
        if u.shape == self.x.shape:
            return self.vjp(u.unsqueeze(0)).squeeze(0)
        self._require_block(u)
        return self._project(self.x, self._backward(self._project(self.image, u)))

    def times(self, columns: Float[Tensor, "B n k"]) -> Float[Tensor, "B n k"]:
        return self._columns(self.jvp(self._directions(columns)))

    def transposed_times(self, columns: Float[Tensor, "B n k"]) -> Float[Tensor, "B n k"]:
        return self._columns(self.vjp(self._directions(columns)))

    def dense(self) -> Float[Tensor, "B n n"]:
        """Return the matrix."""
        return self.times(torch.eye(self.dim, dtype=self.x.dtype, device=self.x.device).expand(self.n_samples, -1, -1))

    def random_columns(self, n_columns: int, seed: int) -> Float[Tensor, "B n k"]:
        """Draw Gaussian directions of the tangent space: the same on every device, from a generator of their own."""
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randn(self.n_samples, self.dim, n_columns, dtype=self.x.dtype, generator=generator)
        columns = self.onto_tangent(drawn.to(self.x.device))
        if self.tangent is not None and not columns.any():
            raise InputError("tangent must leave at least one direction, and leaves none; leave the tangent out")
        return columns

    def onto_tangent(self, columns: Float[Tensor, "B n k"]) -> Float[Tensor, "B n k"]:
        """Project columns onto the tangent space at x."""
        return self._columns(self._project(self.x, self._directions(columns)))

    def result(self, by_sample: Tensor) -> Tensor:
        """Remove the dimension of samples unless the state is batched."""
        return by_sample if self.batched else by_sample.squeeze(0)

    def _require_one_map(self) -> None:
        """Refuse a step that gives two images, or a derivative that is not finite or not the same in both modes.

        Dropout draws another map in each call. Forward mode ignores torch.no_grad, and reverse mode obeys it, so that
        (J'J v)'v is not |J v|^2.
        """
        v = torch.randn(1, *self.x.shape, dtype=self.x.dtype, generator=torch.Generator().manual_seed(2))
        v = v.to(self.x.device)
        scale = self.image.abs().amax()
        if (image_of(self.step, self.x) - self.image).abs().amax() > 0.01 * scale:
            raise InputError("step must be one map, got two images of x; call model.eval() if it has dropout")
        agree = self._modes_agree(v)
        if not agree and "forward" in self._refused:  # a part of the step, or all of it, has no second derivative
            self._refused.add("twice")
            agree = self._modes_agree(v)
        if not agree:
            raise InputError(
                "step must be one differentiable map, got two derivatives, by forward and by reverse mode; remove "
                "torch.no_grad from the step"
            )

    def _modes_agree(self, v: Tensor) -> bool:
        """Return whether J v and J' u belong to one matrix, as far as a random v shows."""
        pushed = self._forward(v)
        size = pushed.abs().amax()
        pushed = pushed / or_one(size)  # no square overflows
        pulled = self._backward(pushed).double()
        require_finite_derivative(size.isfinite() & pulled.isfinite().all(), "x")
        mismatch = (pushed.double().square().sum() * size - (pulled * v).sum()).abs()
        # A derivative that cancels, as of a normalised row of one channel, is rounding error in either mode.
        rounding = 1e3 * torch.finfo(v.dtype).eps * self.image.abs().amax() / or_one(self.x.abs().amax())
        if size <= rounding:
            return "forward" not in self._refused or bool(self._backward(v).abs().amax() <= rounding)
        return bool(mismatch <= 0.01 * pulled.norm() * v.norm())

    def _project(self, x: Tensor, v: Tensor) -> Tensor:
        return v if self.tangent is None else self.tangent(x, v)

    def _require_block(self, v: Tensor) -> None:
        if v.shape[1:] != self.x.shape or v.dtype != self.x.dtype:
            raise InputError(
                f"directions must have the state's shape {tuple(self.x.shape)}, or one dimension more in front, and "
                f"its dtype {self.x.dtype}, got {tuple(v.shape)} and {v.dtype}; make them like the state"
            )

    def _directions(self, columns: Tensor) -> Tensor:
        return columns.movedim(-1, 0).reshape(-1, *self.x.shape)

    def _columns(self, directions: Tensor) -> Tensor:
        return directions.reshape(-1, self.n_samples, self.dim).movedim(0, -1)

    def _forward(self, v: Tensor) -> Tensor:
        if "forward" not in self._refused:
            try:
                with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
                    return torch.func.vmap(self._pushed, chunk_size=self.n_at_once)(v)
            except RuntimeError:  # torch raises it where a forward rule is missing or vmap is not supported
                self._refused.add("forward")
        if "twice" not in self._refused:
            try:
                with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
                    x = self.x.clone().requires_grad_()
                    u = torch.zeros_like(x, requires_grad=True)
                    (g,) = torch.autograd.grad(self.step(x), x, u, create_graph=True)
                    return torch.stack([_gradient(g, u, direction) for direction in v])  # (2)
            except RuntimeError:  # torch raises it where a backward rule returns a detached gradient
                self._refused.add("twice")
        columns = torch.einsum("ibj,bjk->bik", self._all_rows(), self._columns(v))
        return self._directions(columns)

    def _all_rows(self) -> Float[Tensor, "n B n"]:
        """Return the rows of the matrices of all samples."""
        if self._rows is None:
            if self.dim > MOST_ROWS:
                raise InputError(
                    f"step must be differentiable twice, or in forward mode, for a state of {self.dim:,} numbers, and "
                    f"can be differentiated only once; give a state of at most {MOST_ROWS:,}, as of a shorter text"
                )
            unit = torch.eye(self.dim, dtype=self.x.dtype, device=self.x.device).expand(self.n_samples, -1, -1)
            self._rows = self._backward(self._directions(unit)).reshape(self.dim, self.n_samples, self.dim)
        return self._rows

    def _pushed(self, v: Tensor) -> Tensor:
        return torch.func.jvp(self.step, (self.x,), (v,))[1]

    def _backward(self, u: Tensor) -> Tensor:
        if "backward" not in self._refused:
            try:
                with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
                    pull = torch.func.vjp(self.step, self.x)[1]
                    return torch.func.vmap(pull, chunk_size=self.n_at_once)(u)[0]
            except RuntimeError:
                self._refused.add("backward")
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
            x = self.x.clone().requires_grad_()
            y = self.step(x)
            return torch.stack([_gradient(y, x, direction) for direction in u])


def _gradient(y: Tensor, x: Tensor, u: Tensor) -> Tensor:
    return torch.autograd.grad(y, x, u, retain_graph=True, materialize_grads=True)[0]


@cache
def load_forward_mode() -> None:
    """Use forward mode once with torch's DeprecationWarning silenced: its first use compiles rules by TorchScript."""
    with warnings.catch_warnings(), forward_ad.dual_level():
        warnings.simplefilter("ignore", DeprecationWarning)
        forward_ad.make_dual(torch.zeros(1), torch.zeros(1))


def backward_bytes(step: Step, x: Tensor) -> int:
    """Count the bytes that one step keeps for its backward pass, without weights and other leaves of the graph."""
    saved_bytes = {0: x.nbytes}

    def note(saved: Tensor) -> Tensor:
        owner = saved if saved._base is None else saved._base
        if not owner.is_leaf:
            saved_bytes[owner.untyped_storage().data_ptr()] = owner.nbytes
        return saved

    hooks = torch.autograd.graph.saved_tensors_hooks(note, lambda saved: saved)
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH), hooks:
        y = step(x.clone().requires_grad_())  # kept alive here, so that no two storages share an address
    del y
    return sum(saved_bytes.values())


def jacobian(step: Step, x: Tensor, batched: bool = False, tangent: Tangent | None = None) -> Tensor:
    """Return the matrix, with a row for each output: n n, or B n n. It costs n products."""
    operator = Jacobian(step, x, batched, tangent)
    return operator.result(operator.dense())
