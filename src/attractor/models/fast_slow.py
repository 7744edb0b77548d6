"""FastSlow: a fast path updates at each token, and a slow path, which feeds back into it, once every P tokens.

    x <- Pre(x),  then n_rounds times, with the same weights:                                               (1)
    y <- Slow(pool(x));   u = x + tanh(gamma) Norm(phi(up(y)));   x <- relax(Post, u)                       (2)

pool and up are in `block_pooling.py`; Slow is causal over the pooled positions; phi is a linear map or an MLP without
biases, so that 0, which the first block reads, stays 0. Norm and phi act on each block once: Norm(phi(up(y))) is
up(Norm(phi(y))). gamma starts at 0: the coupled model starts as the one without coupling, and its slow path gets no
gradient until the gate has moved. `relax` is a single pass of Post, or a method that comes closer to its equilibrium
(`equilibrium/fixed_point.py`). Under "forced", the injection enters at every evaluation: x <- Post(x) + injection, from
x instead of u; "forced-deq" solves x = Post(x) + injection.
FastSlow: Gao, Attention is just another name for coupling?, 2026, arXiv 2606.16730.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product, repeat
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from attractor.attention import AttentionConfig, Cache, Rope, Rotation
from attractor.attention.hooks import listening, tap
from attractor.attention.named import Mechanism
from attractor.attention.project.heads import Heads
from attractor.attention.stage import Projection
from attractor.equilibrium.fixed_point import FORCED, IMPLICIT, Solver, require_options
from attractor.equilibrium.manifold import unit_sphere
from attractor.errors import require
from attractor.fields import later
from attractor.models.block import Block
from attractor.models.block_pooling import AlignedBlocks, BlockMemory, Blocks, ContinuedBlocks, NextTokenBlocks
from attractor.models.config import ModelConfig, grows_with_square
from attractor.models.language_model import LanguageModel, ModelCache, TokenPlacement
from attractor.models.mlp import PlainMLP
from attractor.models.residual_streams import StreamedBlock

KV_HEADS = 2  # the paper's number, for four query heads


@dataclass(frozen=True)
class FastSlowConfig(ModelConfig["FastSlow"]):
    """The config of FastSlow; the defaults are the paper's model of 779,777 parameters."""

    family: ClassVar[str] = "fast-slow"

    vocab_size: int = 320
    d_model: int = 128
    n_heads: int = 4
    n_kv_heads: int | None = KV_HEADS  # applies if the attention leaves the number open
    d_ff: int = 512
    max_seq_len: int = 1024
    positions: str = "rope"
    mlp: str = "gelu"
    qk_norm: bool = True
    pool_factor: int = 4
    """tokens per slow position (P)"""
    n_pre: int = 1
    """fast blocks before the slow path"""
    n_post: int = 1
    """fast blocks after the slow path"""
    n_slow: int = 2
    """blocks of the slow path"""
    n_rounds: int = 2
    """exchanges between the two paths, with the same weights"""
    slow_attention: str | Mechanism | None = None
    """mechanism of the slow path; by default as the fast path's"""
    frozen: bool = False
    """keep the gate of the slow path closed, so that it neither runs nor learns (a control)"""
    projector_width: int | None = None
    """hidden units of the projector back (phi); by default linear"""
    equilibrium: str = "single"
    """how the last blocks settle: single, passes, anderson, deq, forced, forced-deq"""
    n_iterations: int = 4
    """iterations of the model, or of the equilibrium's solver"""
    solver_depth: int = later(1)
    """evaluations from which anderson, deq and forced-deq extrapolate"""
    solver_tolerance: float = later(1e-3)
    """residual below which a token has reached its equilibrium; it stops nothing"""
    backward_iterations: int | None = later(None)
    """iterations for the gradient of deq and forced-deq; by default n_iterations"""
    fixed_point_loss: float = 0.0
    """weight of the distance to equilibrium in the loss, the mean square of Post(u) - u"""
    streams: int = 1
    """residual streams, mixed by doubly stochastic matrices (M1 has 4)"""
    unit_slow_state: bool = False
    """keep the output of the slow path on the unit sphere (M2)"""
    slow_input: str = later("text")
    """what the slow path reads: text, or constant (a control)"""

    def __post_init__(self) -> None:
        for field in ("pool_factor", "n_rounds", "streams"):
            self.require_count(field)
        for field in ("n_pre", "n_post", "n_slow"):
            self.require_count(field, least=0)
        require(self.n_pre + self.n_post >= 1, "n_pre + n_post", "at least 1", 0, "there must be a fast path")
        rule = f"at most max_seq_len={self.max_seq_len}"
        require(self.pool_factor <= self.max_seq_len, "pool_factor", rule, self.pool_factor, "no block would be read")
        if self.projector_width is not None:
            self.require_count("projector_width")
        require(self.slow_input in ("text", "constant"), "slow_input", "text or constant", self.slow_input)
        rule = "at least 0 and finite"
        require(0 <= self.fixed_point_loss < math.inf, "fixed_point_loss", rule, self.fixed_point_loss)
        require(self.causal, "causal", "True for a slow path that reads past blocks", self.causal)
        self._require_solver()
        super().__post_init__()

    def _require_solver(self) -> None:
        method = self.equilibrium
        require_options(
            "equilibrium",
            equilibrium=method,
            solver_depth=self.solver_depth,
            solver_tolerance=self.solver_tolerance,
            backward_iterations=self.backward_iterations,
        )
        why = "these options apply to Post, which n_post=0 leaves out"
        require(self.n_post > 0 or method == "single", "equilibrium", "'single' with n_post=0", method, why)
        rule = "0 with n_post=0"
        require(self.n_post > 0 or not self.fixed_point_loss, "fixed_point_loss", rule, self.fixed_point_loss, why)
        rule = f"0 under {method}, which solves another equation"
        free = method not in (*IMPLICIT, *FORCED)
        require(free or not self.fixed_point_loss, "fixed_point_loss", rule, self.fixed_point_loss)
        rule = f"0 under {method}, since dropout would change the map at each evaluation"
        dropout = max(self.dropout, self.attention_config.dropout)
        require(method not in IMPLICIT or not dropout, "dropout", rule, dropout)
        assert self.solver  # its constructor refuses a wrong n_iterations

    @property
    def label(self) -> str:
        return "fast-slow" if self.attention == "standard" else f"fast-slow {super().label}"

    @property
    def solver(self) -> Solver:
        n_iterations = 1 if self.equilibrium == "single" else self.n_iterations
        depth, tolerance = self.solver_depth, self.solver_tolerance
        return Solver(self.equilibrium, n_iterations, depth, tolerance, self.backward_iterations)

    @property
    def slow_attention_config(self) -> Mechanism:
        """The mechanism of the slow path. The field `window` limits only the fast path."""
        if self.slow_attention is not None:
            return self.mechanism(self.slow_attention, with_window=False)
        mechanism = self.mechanism(self.attention, with_window=False)
        return mechanism if mechanism.window is None else mechanism.replace(window=None)

    @property
    def mechanisms(self) -> tuple[Mechanism, ...]:
        return (self.attention_config, self.slow_attention_config)

    def kv_heads(self, project: Projection) -> int | None:
        """Return the paper's number of key heads for mechanisms that leave the number open."""
        is_open = isinstance(project, Heads) and project.n_kv_heads is None and project.heads_per_kv == 1
        return self.n_kv_heads if is_open or self.n_kv_heads != KV_HEADS else None

    def require_length(self, seq_len: int) -> None:
        super().require_length(seq_len)
        rule = f"below seq_len={seq_len}"
        next_step = "no block would be read; give a smaller one, or longer sequences"
        require(self.pool_factor < seq_len, "pool_factor", rule, self.pool_factor, next_step)

    def slow_length(self, seq_len: int) -> int:
        return AlignedBlocks(self.pool_factor, seq_len, torch.device("meta")).n_blocks

    @property
    def gates(self) -> tuple[str, ...]:
        return () if self.frozen else ("injection.gate",)

    @property
    def own_rate(self) -> tuple[str, ...]:
        """The gates, and the weights that mix streams, which hardly move at the learning rate of matrices."""
        return (*self.gates, *self.mixing, *self.coupling_gates)

    @property
    def coupling_gates(self) -> tuple[str, ...]:
        """The gates of coupling with `zero_start`."""
        fast, slow = (
            [f"{stack}.{n}.attention" for stack in stacks for n in range(getattr(self, f"n_{stack}"))]
            for stacks in (("pre", "post"), ("slow",))
        )
        return (
            *self.gates_of_coupling(self.attention_config, fast),
            *self.gates_of_coupling(self.slow_attention_config, slow),
        )

    @property
    def mixing(self) -> tuple[str, ...]:
        if self.streams == 1:
            return ()
        blocks = [f"{stack}.{n}" for stack in ("pre", "slow", "post") for n in range(getattr(self, f"n_{stack}"))]
        return tuple(
            f"{block}.{branch}_mixing.{weights}_weights"
            for block, branch, weights in product(blocks, ("attention", "mlp"), ("read", "write", "mix"))
        )

    @property
    def depth(self) -> str:
        return f"{self.n_pre} + {self.n_rounds} x ({self.n_slow} slow, {self.n_post})"

    @property
    def layer_equivalents(self) -> float:
        """The paper's L_eq, with every evaluation of Post."""
        fast, of_slow = map(grows_with_square, self.mechanisms)
        slow = 0.0 if self.frozen else of_slow * self.n_slow / self.pool_factor**2
        if not fast:
            return self.n_rounds * slow
        return self.n_pre + self.n_rounds * (self.n_post * self.solver.n_iterations + slow)

    def build_uninitialised(self) -> "FastSlow":
        return FastSlow(self)


class RoundCache:
    """The caches of one round: those of the slow layers, of Post at each of its evaluations, and of pooled blocks."""

    def __init__(self, config: FastSlowConfig) -> None:
        fast, slow = config.attention_config.window, config.slow_attention_config.window
        self.slow = [Cache(slow) for _ in range(config.n_slow)]
        self.post = [[Cache(fast) for _ in range(config.n_post)] for _ in range(config.solver.n_iterations)]
        self.blocks = BlockMemory()


class FastSlowCache(ModelCache):
    def __init__(self, config: FastSlowConfig) -> None:
        super().__init__()
        self.pre = [Cache(config.attention_config.window) for _ in range(config.n_pre)]
        self.rounds = [RoundCache(config) for _ in range(config.n_rounds)]
        self.seen_blocks: Tensor | None = None  # B K, where sequences are shifted against each other


class FastSlow(LanguageModel):
    part_of_module = LanguageModel.part_of_module | {"slow": "slow path", "injection": "injection"}
    takes_packed_rows = False  # a pooled block would mix two sequences
    config: FastSlowConfig

    def build_core(self) -> None:
        config = self.config
        fast, slow = config.attention_config, config.slow_attention_config
        self.slow_reads_more = isinstance(slow, AttentionConfig) and slow.project.reads_more

        def stack(attention: Mechanism, first: int, n: int) -> nn.ModuleList:
            indices = range(first, first + n)
            if config.streams == 1:
                return nn.ModuleList(Block(config, attention, index) for index in indices)
            return nn.ModuleList(StreamedBlock(config, attention, index, config.streams) for index in indices)

        self.pre = stack(fast, 0, config.n_pre)
        self.slow = stack(slow, config.n_pre, config.n_slow)
        self.post = stack(fast, config.n_pre + config.n_slow, config.n_post)
        self.injection = Injection(config)
        width = self.blocks_of(self.slow)[0].attention.rope_width if config.n_slow else 0
        turned = config.positions == "rope" and width
        self.slow_rope = Rope(width, config.rope_theta, config.rope_scaling) if turned else None
        self.solver = config.solver
        if config.frozen:
            self.slow.requires_grad_(False)
            self.injection.requires_grad_(False)

    @staticmethod
    def blocks_of(stack: nn.ModuleList) -> list[Block]:
        return cast(list[Block], list(stack))

    @property
    def layers(self) -> list[Block]:
        return [block for stack in (self.pre, self.slow, self.post) for block in self.blocks_of(stack)]

    @property
    def rope_width(self) -> int:
        """The width that RoPE rotates in the fast path; the slow path has a rotation of its own."""
        return (self.blocks_of(self.pre) + self.blocks_of(self.post))[0].attention.rope_width

    @property
    def gate(self) -> Tensor:
        """tanh(gamma), the Euler step of the coupling."""
        return self.injection.gate.tanh()

    @property
    def pool_factor(self) -> int:
        return self.config.pool_factor

    def through(self, x: Tensor, placement: TokenPlacement, cache: ModelCache | None) -> tuple[Tensor, Tensor]:
        past = cast(FastSlowCache | None, cache)
        x = self.spread(x)
        x, losses = self.stacked(self.pre, x, placement.mask, placement.rotation, None if past is None else past.pre)
        slow_placement = None if self.config.frozen else self.slow_placement(x, placement, past)
        for index in range(self.config.n_rounds):
            its_past = None if past is None else past.rounds[index]
            injection = None
            if slow_placement is not None:
                injected, of_slow = self.injected(self.joined(x), *slow_placement, its_past)
                injection, losses = self.spread(injected), losses + of_slow
            x, of_post = self.relaxed(x, injection, placement, its_past)
            losses = losses + of_post
        return self.joined(x), torch.stack(losses).sum()

    def slow_placement(
        self, x: Tensor, placement: TokenPlacement, past: FastSlowCache | None
    ) -> tuple[Blocks, Rotation | None]:
        """Return the pooled blocks and the rotation of the slow path, which are the same in all rounds."""
        period, (batch, length) = self.config.pool_factor, x.shape[:2]
        if past is not None and placement.real is not None and self.slow_reads_more:
            rule = "False for padded texts where the slow path reads earlier blocks, which rows complete at other times"
            require(bool(placement.real.all()), "use_cache", rule, True, "leave out the cache, or the padding")
        blocks: Blocks
        if past is None and placement.real is None:
            blocks = AlignedBlocks(period, length, x.device)
        elif past is not None and placement.real is None and length == 1:
            blocks = NextTokenBlocks(period, past.length, x.device)
        else:
            positions, now = placement.positions.expand(batch, -1), None
            before: Tensor | int = 0 if past is None else past.length
            if placement.real is not None:
                now = placement.real[:, -length:]
                before = 0 if past is None else placement.real[:, :-length].sum(1, keepdim=True)
            seen = None if past is None else past.seen_blocks
            if past is not None and seen is None and now is not None:  # all blocks of a past without padding count
                seen = positions.new_ones(batch, past.length // period, dtype=torch.bool)
            blocks = ContinuedBlocks(period, positions, now, before, seen)
            if past is not None:
                past.seen_blocks = blocks.seen
        turned = None if self.slow_rope is None or not blocks.n_blocks else self.slow_rope.at(blocks.positions)
        return blocks, turned

    def injected(
        self, x: Tensor, blocks: Blocks, rotation: Rotation | None, past: RoundCache | None
    ) -> tuple[Tensor, list[Tensor]]:
        """Return tanh(gamma) Norm(phi(up(y))) and the auxiliary losses of the slow path."""
        memory, caches = (BlockMemory(), None) if past is None else (past.blocks, past.slow)
        y = blocks.pool(x, memory)
        if self.config.slow_input == "constant":
            y = torch.ones_like(y)
        losses: list[Tensor] = []
        if blocks.n_blocks:
            y, losses = self.stacked(self.slow, self.spread(y), blocks.mask, rotation, caches)
            y = self.injection(tap("slow", self.joined(y)))
        return blocks.upsample(y, memory), losses

    def relaxed(
        self, x: Tensor, injection: Tensor | None, placement: TokenPlacement, past: RoundCache | None
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the result of relax(Post, x + injection), and the auxiliary losses of Post."""
        losses: list[list[Tensor]] = []  # of every evaluation

        def step(z: Tensor, evaluation: int) -> Tensor:
            caches = None if past is None else past.post[evaluation]
            image, aux_losses = self.stacked(self.post, z, placement.mask, placement.rotation, caches)
            if evaluation == 0 and self.training and self.config.fixed_point_loss:
                aux_losses = [*aux_losses, self.config.fixed_point_loss * (image - z).float().square().mean()]
            losses.append(aux_losses)
            return image

        forcing = injection if self.solver.method in FORCED and self.config.n_post else None
        u = x if injection is None or forcing is not None else x + injection
        if not self.config.n_post:
            return u, []
        if self.solver.method == "single" and not listening("residual"):
            return step(u, 0), losses[0]
        solution = self.solver.solve(step, u, forcing)
        tap("residual", solution.trace)
        tap("token_residual", solution.residual)
        with_graph = losses[-1:] if self.solver.method in IMPLICIT else losses
        return solution.state, [loss for aux_losses in with_graph for loss in aux_losses]

    def stacked(
        self,
        stack: nn.ModuleList,
        x: Tensor,
        mask: bool | Tensor,
        rotation: Rotation | None,
        caches: Sequence[Cache] | None,
    ) -> tuple[Tensor, list[Tensor]]:
        losses = []
        for block, cache in zip(self.blocks_of(stack), caches or repeat(None), strict=False):
            x, aux_loss = self.run(block, x, mask, rotation, cache)
            losses.append(aux_loss)
        return x, losses

    def spread(self, x: Tensor) -> Tensor:
        """Copy x to all residual streams."""
        return x if self.config.streams == 1 else x.unsqueeze(2).expand(-1, -1, self.config.streams, -1)

    def joined(self, x: Tensor) -> Tensor:
        return x if self.config.streams == 1 else x.mean(2)

    def empty_cache(self) -> FastSlowCache:
        return FastSlowCache(self.config)


class Injection(nn.Module):
    """tanh(gamma) Norm(phi(y)) of (2)."""

    def __init__(self, config: FastSlowConfig) -> None:
        super().__init__()
        self.on_sphere = config.unit_slow_state
        self.gate = nn.Parameter(torch.empty(1))  # one-dimensional, since FSDP cannot shard a scalar
        d_model, width = config.d_model, config.projector_width
        self.project = nn.Linear(d_model, d_model, bias=False) if width is None else PlainMLP(d_model, width)
        self.norm = nn.RMSNorm(config.d_model, eps=config.norm_eps)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.gate)

    def forward(self, y: Tensor) -> Tensor:
        projected = self.project(unit_sphere(y) if self.on_sphere else y)
        # Under autocast the product has half precision.
        return self.gate.tanh().to(y.dtype) * self.norm(projected.to(self.norm.weight.dtype))
