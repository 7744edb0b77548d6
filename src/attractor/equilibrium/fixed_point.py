"""Fixed points of a causal map F on sequences, by methods that treat every token by itself.

    single      z = F(u)                                             one Euler step                         (1)
    passes      z <- F(z), k times from u                            its limit forgets u                    (2)
    anderson    z <- F(z) - sum_j a_j dF_j,  a = argmin |r - sum_j a_j dr_j|,  r = F(z) - z                 (3)
    deq         z = G(z) = u + F(z) - z, by (3) for G                its root keeps u                       (4)
    deq's gradient    v = g + J' v  by (3),  J = dG/dz;  u and the weights of F receive v in place of g      (5)
    forced      z <- F(z) + c, k times from u                        its limit forgets u and keeps c        (6)
    forced-deq  z = F(z) + c, by (3), with (5) for J = dF/dz         its root is the limit of (6)           (7)

dF_j and dr_j are the changes of F(z) and r over the last `depth` evaluations. With depth 1, a = <dr, r> / |dr|^2 and
dF = dz + dr, which is the paper's rule. Each token has its own coefficients a, and the number of evaluations is fixed.
A coefficient or stopping rule for the whole sequence would depend on future tokens, and one for the batch would couple
its sequences. Therefore decoding with a cache for each evaluation gives the same result as a solve of the whole
sequence.

Limits: with one evaluation, (2), (3) and (4) have the value and gradient of (1), and (7) those of (6). With c = 0, (6)
is (2). Under (4) and (7), a token's result is the image of its iterate with the smallest residual, and J is taken at
the last iterate; the two agree if the solve has converged. It need not converge if the map is expansive, which
`Equilibrium` reports. (3), (4) and (7) never continue from or return a non-finite iterate; (1), (2) and (6) do not
check.
(1), (2) and (3) with depth 1: FastSlow, section 11 (Gao, Attention is just another name for coupling?, 2026,
arXiv 2606.16730). (6) is its equation (2), where c is the injection, and (7) its f(x, y) = 0, solved. (4) is ours.
(5): Bai, Kolter and Koltun, Deep equilibrium models, 2019, arXiv 1909.01377.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from attractor.errors import require, require_count, require_known

METHODS = ("single", "passes", "anderson", "deq", "forced", "forced-deq")
IMPLICIT = ("deq", "forced-deq")  # their gradient is that of the solution, (5)
MIXED = ("anderson", *IMPLICIT)
FORCED = ("forced", "forced-deq")  # they take c
# The options of a solver: the least whole number, the value under all other methods, and the methods that read it.
OPTIONS: dict[str, tuple[int | None, float | None, tuple[str, ...]]] = {
    "n_iterations": (1, 1, METHODS[1:]),
    "depth": (1, 1, MIXED),
    "tolerance": (None, 1e-3, METHODS[1:]),
    "backward_iterations": (0, None, IMPLICIT),
}

# (state B T ..., number of the evaluation from 0) -> F(state). Each evaluation may have its own cache.
Step = Callable[[Tensor, int], Tensor]


def require_options(field: str, **options: Any) -> None:
    """Refuse an unknown method, whose field has this name, and options out of range or that the method does not read.

    A config may name an option with `solver_` before it.
    """
    method = options.pop(field)
    require_known(field, method, METHODS)
    for name, value in options.items():
        least, fixed, methods = OPTIONS[name.removeprefix("solver_")]
        if least is None:
            require(value > 0, name, "positive", value, "1e-3 suits training")
        elif value is not None or fixed is not None:
            require_count(name, value, least, "give a larger one")
        choice = " or ".join(f"'{reader}'" for reader in methods)
        free = method in methods or value == fixed
        require(free, name, f"{fixed} under {field} '{method}'", value, f"choose {field} {choice}")


@dataclass(frozen=True)
class Equilibrium:
    """The result of a solve.

    Residuals are |F(z) - z| / |z| without gradients, with G in place of F under "deq" and F + c with a forcing.
    """

    state: Float[Tensor, "B T *token"]
    trace: Float[Tensor, " k"]  # mean residual over tokens, for each evaluation
    residual: Float[Tensor, "B T"]  # of the iterate from which a token's state is computed
    tolerance: float

    @property
    def n_unsolved(self) -> Tensor:
        return (self.residual > self.tolerance).sum()

    @property
    def largest_residual(self) -> Tensor:
        return self.residual.amax()


@dataclass(frozen=True)
class Solver:
    method: str = "single"
    n_iterations: int = 1  # calls of `step`; under the methods of IMPLICIT only the last one has a graph
    depth: int = 1  # of (3), under the methods of MIXED
    tolerance: float = 1e-3  # residual below which a token counts as solved; it stops nothing
    backward_iterations: int | None = None  # of (5); None: n_iterations; 0: v = g

    def __post_init__(self) -> None:
        require_options("method", **vars(self))

    def solve(
        self, step: Step, u: Float[Tensor, "B T *token"], forcing: Float[Tensor, "B T *token"] | None = None
    ) -> Equilibrium:
        """Solve for F = `step` from u; `forcing` is c of (6) and (7), and None is c = 0."""
        fits = forcing is None or self.method in FORCED
        require(fits, "forcing", f"None under method '{self.method}'", "a tensor", "choose method 'forced'")

        def forced(z: Tensor, index: int) -> Tensor:
            return step(z, index) if forcing is None else step(z, index) + forcing  # (1), (2), (3), (6), (7)

        def anchored(z: Tensor, index: int) -> Tensor:
            return _anchored(step(z, index), z, u)  # (4)

        if self.method in IMPLICIT and self.n_iterations > 1:
            return self._implicit(anchored if self.method == "deq" else forced, u)
        orbit = _Orbit(u, self.depth if self.method in MIXED else 0)
        for index in range(self.n_iterations):
            orbit.take(forced(orbit.next(), index))
        return self._equilibrium(orbit.next(), orbit)

    def _implicit(self, mapped: Step, u: Tensor) -> Equilibrium:
        with torch.no_grad():
            search = _Search(u, self.depth)
            for index in range(self.n_iterations - 1):
                search.take(mapped(search.next(), index))
            z = search.next()
        z.requires_grad_(torch.is_grad_enabled())
        image = mapped(z, self.n_iterations - 1)
        with torch.no_grad():
            search.take(image)
        state = search.best
        if torch.is_grad_enabled():
            n_backward = self.n_iterations if self.backward_iterations is None else self.backward_iterations
            state = _Attached.apply(image, state, _Adjoint(z, image, n_backward, self.depth))
        return self._equilibrium(state, search)

    def _equilibrium(self, state: Tensor, orbit: "_Orbit") -> Equilibrium:
        return Equilibrium(state, torch.stack(orbit.trace), orbit.residual, self.tolerance)


class _Orbit:
    """The iterates of a solve: `next` returns a state, and `take` records its image, as far as (3) needs it."""

    def __init__(self, start: Tensor, depth: int) -> None:
        self.z = start
        self.depth = depth
        self.image: Tensor | None = None
        self.r, self.flat_image = start, start  # B T W in fp32 or wider, after the first image
        self.changes: list[tuple[Tensor, Tensor]] = []  # of r and of the image
        self.residual = self.noise = start  # B T, after the first image
        self.trace: list[Tensor] = []

    def next(self) -> Tensor:
        if self.image is None:
            return self.z
        if self.depth == 0:
            self.z = self.image
        else:
            mixed = self.flat_image
            if self.changes:
                mixed = mixed - _correction(self.r, self.changes, self.noise)  # (3)
            self.z = _where_finite(mixed.view_as(self.z).to(self.z.dtype), _where_finite(self.image, self.z))
        return self.z

    def take(self, image: Tensor) -> None:
        flat, flat_z = _flat(image), _flat(self.z)
        r = flat - flat_z
        if self.depth and self.image is not None:
            self.changes = [*self.changes, (r - self.r, flat - self.flat_image)][-self.depth :]
        self.image, self.flat_image, self.r = image, flat, r
        with torch.no_grad():
            norm, image_norm = (torch.linalg.vector_norm(x, dim=-1) for x in (flat_z, flat))
            size = torch.where(norm == 0, image_norm, norm)  # a token without gradient starts (5) at zero
            relative = torch.linalg.vector_norm(r, dim=-1) / size.clamp(min=torch.finfo(flat_z.dtype).tiny)
            self.residual = relative.nan_to_num(nan=torch.inf, posinf=torch.inf)
            self.trace.append(self.residual.mean())
            self.noise = 4 * torch.finfo(image.dtype).eps * image_norm


class _Search(_Orbit):
    """An orbit that keeps for each token the image of the iterate with the smallest residual."""

    def __init__(self, start: Tensor, depth: int) -> None:
        super().__init__(start, depth)
        self.best = start
        self.least: Tensor | None = None

    def take(self, image: Tensor) -> None:
        super().take(image)
        least = torch.full_like(self.residual, torch.inf) if self.least is None else self.least
        better = (self.residual < least).view(*least.shape, *[1] * (image.ndim - 2))
        self.best = torch.where(better, image, self.best)
        self.least = self.residual = torch.minimum(self.residual, least)


class _Attached(torch.autograd.Function):
    """Return the solution; in the backward pass, give the adjoint's solution v as gradient of the last evaluation."""

    @staticmethod
    def forward(ctx: Any, image: Tensor, solution: Tensor, adjoint: "_Adjoint") -> Tensor:
        ctx.adjoint = adjoint
        return solution

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        return ctx.adjoint(g), None, None


@dataclass(frozen=True, eq=False)  # as in `NormAndPosition`
class _Adjoint:
    """Solve (5) by products with J' through the graph of the last evaluation, from z to its image."""

    z: Tensor
    image: Tensor
    n_iterations: int
    depth: int

    def __call__(self, g: Tensor) -> Tensor:
        search = _Search(g, self.depth)
        for _ in range(self.n_iterations):
            (pulled,) = torch.autograd.grad(self.image, self.z, search.next(), retain_graph=True)
            search.take(g + pulled)  # (5)
        return search.best


def _anchored(image: Tensor, z: Tensor, u: Tensor) -> Tensor:
    """Return u + F(z) - z, summed in an order that is exact at z = u."""
    wide = torch.promote_types(u.dtype, torch.float32)
    return (image.to(wide) + (u.to(wide) - z.to(wide))).to(u.dtype)


def _correction(r: Tensor, changes: list[tuple[Tensor, Tensor]], noise: Tensor) -> Tensor:
    """Return sum_j a_j dF_j of (3). A dr_j that is not longer than its rounding error has a_j = 0 and no gradient."""
    dr, dimage = (torch.stack(parts) for parts in zip(*changes, strict=True))
    square = _dot(dr, dr)
    significant = square > noise.square()
    scale = torch.where(significant, square, 1).rsqrt() * significant
    unit = dr * scale.unsqueeze(-1)
    a = _dot(unit, r).movedim(0, -1)  # B T depth
    if len(changes) > 1:
        gram = torch.stack([_dot(unit, row) for row in unit], -1).movedim(0, -2)
        diagonal = torch.eye(len(changes), dtype=torch.bool, device=r.device)
        # A ridge, since changes become parallel as the solve converges. `solve_ex`, unlike `solve`, neither raises nor
        # waits for the device.
        ridge = torch.finfo(r.dtype).eps ** 0.5
        a = torch.linalg.solve_ex(torch.where(diagonal, 1, gram * (1 - ridge)), a)[0]
    return ((a.movedim(-1, 0) * scale).unsqueeze(-1) * dimage).sum(0)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(-1)  # not a matrix product, which autocast would narrow


def _flat(x: Tensor) -> Tensor:
    return x.flatten(2).to(torch.promote_types(x.dtype, torch.float32))


def _where_finite(x: Tensor, otherwise: Tensor) -> Tensor:
    """Return x for tokens where it is finite, and `otherwise` for the others."""
    return torch.where(x.isfinite().flatten(2).all(-1).view(*x.shape[:2], *[1] * (x.ndim - 2)), x, otherwise)


def growth_rate(
    f: Callable[[Tensor], Tensor], z: Tensor, n_iterations: int = 16, generator: torch.Generator | None = None
) -> Float[Tensor, " B"]:
    """Estimate the spectral radius of each sequence's Jacobian at z, complex pairs included.

    The estimate is the mean growth per iteration of J' on a random vector, over the second half of the iterations; it
    is no bound. Below 1, plain iteration of f converges near z. For (4), where f is F(z) - z, (5) then converges too.
    """
    pull = _pullback(f, z)
    v = _signs(z, generator)
    v = v / v[0].numel() ** 0.5  # so that no number overflows in half precision
    wide = torch.promote_types(v.dtype, torch.float32)
    logs = []
    for _ in range(n_iterations):
        v = pull(v).to(wide)
        size = torch.linalg.vector_norm(v.flatten(1), dim=1)
        logs.append(size.log())
        v = (v / size.clamp(min=torch.finfo(wide).tiny).view(-1, *[1] * (v.ndim - 1))).to(z.dtype)
    return torch.stack(logs[n_iterations // 2 :]).mean(0).exp()


def _pullback(f: Callable[[Tensor], Tensor], z: Tensor) -> Callable[[Tensor], Tensor]:
    with torch.enable_grad():
        at = z.detach().requires_grad_()
        image = f(at)
    return lambda v: torch.autograd.grad(image, at, v, retain_graph=True)[0]


def _signs(z: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draw random signs on the generator's device, by default the CPU, so that a seed is the same on every device."""
    device = torch.device("cpu") if generator is None else generator.device
    return (2 * torch.randint(2, z.shape, generator=generator, device=device) - 1).to(z)
