"""The pictures of the site: each is drawn by the library itself, in seconds, when the site is built.

The README shows one of them, too. After its record has changed, `PYTHONPATH=docs/_ext:. python docs/figures.py` draws
it anew as docs/ablation.svg.
"""

import json
from collections.abc import Callable
from statistics import fmean, stdev
from typing import TYPE_CHECKING

import torch
from matplotlib import rc_context
from matplotlib.colors import to_rgb
from measured import RESULTS, stored
from torch import Tensor
from torch.nn.functional import normalize

import attractor
from attractor import analysis
from attractor.attention import Cache, build
from attractor.attention.stage import HeadLayout
from attractor.models import SIZES
from attractor.models.block_pooling import AlignedBlocks
from attractor.report.canvas import GREY, INK, PALETTE, WIDTH, blank, framed, styles
from attractor.report.charts import over_seeds
from attractor.report.judged_study import JudgedStudy
from attractor.report.panels import lines
from attractor.report.study_figure import pictures
from attractor.runs.study_record import Outcome, read_record
from attractor.train.parts import forward_flops
from attractor.verdict.intervals import paired_difference
from benchmarks.draw_record import figure_of
from papers.jacobians.probes.iteration_maps import MUCH_LATER, N_TURNING, after, skew_symmetric

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure


def side_by_side(n: int, height: float, width: float = 7.4) -> tuple["Figure", list["Axes"]]:
    figure = blank(width, height)
    return figure, [framed(axes) for axes in figure.subplots(1, n, squeeze=False)[0]]


def titled(axes: "Axes", title: str, x: str = "", y: str = "") -> None:
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)


def keyed(axes: "Axes", **options: object) -> None:
    axes.legend(frameon=False, fontsize=8, labelcolor=INK, **options)


def bare(axes: "Axes") -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(False)


def in_factors(*axes: "Axis") -> None:
    """Labels of a logarithmic scale as plain numbers: pictures of the house have no formulas in them."""
    for axis in axes:
        axis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.set_minor_formatter(lambda value, _: "")


def shaded(weights: Tensor) -> Tensor:
    """Rows of pixels, blue above zero and orange below, as dense as they are large: on light and on dark pages."""
    pixels = torch.tensor(to_rgb(PALETTE[0])).expand(*weights.shape, 3).clone()
    pixels[weights < 0] = torch.tensor(to_rgb(PALETTE[1]))
    return torch.cat([pixels, (weights.abs() / weights.abs().max()).unsqueeze(-1)], dim=-1)


def of_study(name: str, scale: str, picture: str) -> "Figure":
    """A picture of a stored study, as its report has it."""
    judged = JudgedStudy(read_record(stored(name, scale)))
    return next(entry.figure for entry in pictures(judged) if entry.name == picture)


# --- coupled --------------------------------------------------------------------------------------------------------

INTEGRATORS = {
    "Euler": "coupled-euler",
    "leapfrog, free force": "coupled-hamiltonian",
    "leapfrog, gradient force": "coupled-symplectic",
}


def coupling_map(preset: str, width: int, strength: float, **changes: object) -> Callable[[Tensor], Tensor]:
    """(q, k) of one position, one after the other in one vector, to what is scored."""
    torch.manual_seed(0)
    config = attractor.attention.PRESETS[preset].replace(**changes)
    couple = config.couple.build(HeadLayout(1, 1, 1, free=width, value=width)).double()
    with torch.no_grad():
        for weight in couple.force.parameters():
            weight.mul_(strength / weight.norm())

    def moved(state: Tensor) -> Tensor:
        q, k = couple(*(part.reshape(1, 1, 1, width) for part in state.chunk(2)))
        return torch.cat([q.flatten(), k.flatten()])

    return moved


def coupling() -> "Figure":
    """Left: q and k of one coordinate in 60 steps. Right: what three steps do to the symplectic form."""
    figure, (paths, defects) = side_by_side(2, 3.3)
    colors = dict(zip(INTEGRATORS, PALETTE, strict=False))
    for label in ("Euler", "leapfrog, gradient force"):
        step = coupling_map(INTEGRATORS[label], 1, 1.5, n_steps=1, dt=0.2, force="gradient")
        state, orbit = torch.tensor([0.6, 0.0], dtype=torch.float64), []
        for _ in range(60):
            orbit.append(state)
            state = step(state).detach()
        paths.plot(*torch.stack(orbit).T, color=colors[label], linewidth=1, marker=".", markersize=3)
    titled(paths, "paths under one conservative force", "q", "k")

    sizes = [0.02 * 1.6**i for i in range(8)]
    form = torch.zeros(8, 8, dtype=torch.float64)
    form[:4, 4:], form[4:, :4] = torch.eye(4), -torch.eye(4)
    start = torch.randn(8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for (label, preset), kind in zip(INTEGRATORS.items(), ("o-", "x--", "^-"), strict=True):
        found = []
        for dt in sizes:
            j = torch.autograd.functional.jacobian(coupling_map(preset, 4, 3.0, n_steps=3, dt=dt), start)
            found.append(max(float((j.T @ form @ j - form).abs().max()), 1e-17))
        defects.loglog(sizes, found, kind, color=colors[label], markersize=4.5, linewidth=1.2, label=label)
    in_factors(defects.xaxis, defects.yaxis)
    titled(defects, "defect of the symplectic form", "dt", "max |J'ΩJ - Ω|")
    keyed(defects, loc="center right")
    return figure


def lead() -> "Figure":
    """How far coupled attention is ahead of standard attention during training: in nats a byte, and in steps."""
    figure, (in_loss, in_steps) = side_by_side(2, 3.3, WIDTH)
    kinds = {
        "encyclopedic": ("coupling-ablation", ""),
        "encyclopedic, rotary": ("positions", "rope"),
        "scientific": ("corpus-sensitivity", "scientific"),
        "heterogeneous": ("corpus-sensitivity", "heterogeneous"),
    }
    for (label, (study, column)), color in zip(kinds.items(), PALETTE, strict=False):
        record = read_record(stored(study, "desk"))
        ours, theirs = (record.cell(row, column).outcomes for row in ("coupled-hamiltonian", "standard"))
        of, against = ({run.seed: dict(run.curve) for run in runs} for runs in (ours, theirs))  # in nats a byte
        points = sorted(set.intersection(*(set(curve) for curve in (*of.values(), *against.values()))))
        leads = [
            paired_difference(*({seed: curve[at] for seed, curve in rows.items()} for rows in (against, of)))
            for at in points
        ]
        x, middle = [at / 1e6 for at in points], [found.mean for found in leads]
        band = [found.low for found in leads], [found.high for found in leads]
        in_loss.plot(x, middle, color=color, linewidth=1.4, label=f"{label} ({leads[0].n})")
        in_loss.fill_between(x, *band, color=color, alpha=0.15, linewidth=0)
        config = record.cell("standard", column).config
        steps = [at / (config["batch_size"] * config["seq_len"]) for at in points]
        falls = torch.gradient(
            torch.tensor([fmean(curve[at] for curve in against.values()) for at in points]),
            spacing=(torch.tensor(steps),),
        )[0]
        gained = [gain / -fall for gain, fall in zip(middle, falls.tolist(), strict=True)]
        n_early = sum(at <= points[-1] / 2 for at in points)  # later the rate falls, and with it what a step gains
        in_steps.plot(x[:n_early], gained[:n_early], color=color, linewidth=1.4)
    for axes in (in_loss, in_steps):
        axes.axhline(0, color=INK, linewidth=0.8)
    titled(in_loss, "lead", "million bytes", "nats a byte")
    titled(in_steps, "lead in steps, first half", "million bytes", "steps of 1,000")
    keyed(in_loss, loc="upper right")
    return figure


# --- differential ---------------------------------------------------------------------------------------------------


def differential() -> "Figure":
    """The two maps of a head that look at one target through the same noise, and their difference."""
    figure = blank(7.4, 2.7)
    n, width = 24, 16
    layer = build("differential", d_model=2 * width, n_heads=1)
    generator = torch.Generator().manual_seed(2)
    noise, target = torch.randn(n, generator=generator), torch.zeros(n, n)
    target[torch.arange(4, n), torch.arange(4, n) - 4] = 2.5  # four back
    logits = torch.stack([noise + target, noise.expand(n, n)]) + 0.15 * torch.randn(2, n, n, generator=generator)
    causal = torch.ones(n, n).tril().bool()
    first, second = logits.masked_fill(~causal, -torch.inf).softmax(-1)
    by = layer.score.lambda_init
    shown = {"A₁": first, "A₂": second, f"A₁ - {by:.1f} A₂": first - by * second}
    for axes, (title, weights) in zip(figure.subplots(1, 3), shown.items(), strict=True):
        bare(framed(axes))
        axes.imshow(shaded(weights))
        titled(axes, title)
    return figure


# --- latent ---------------------------------------------------------------------------------------------------------


def cached() -> "Figure":
    """Numbers that a layer of width 512 with eight heads keeps for each position, read off its cache."""
    figure, (axes,) = side_by_side(1, 2.7, 6.4)
    names = ("standard", "coupled-mla", "gqa", "coupled-gqa", "mqa", "mla")
    numbers = []
    for name in names:
        layer, cache = build(name, d_model=512, n_heads=8), Cache()
        with torch.no_grad():
            layer(torch.randn(1, 4, 512), cache=cache)
        numbers.append(cache.n_numbers // 4)
    bars = axes.barh(names, numbers, color=[GREY if name == "standard" else PALETTE[0] for name in names], height=0.6)
    axes.bar_label(bars, [f"{number:,}" for number in numbers], padding=4, fontsize=9, color=INK)
    axes.set_xlim(0, 1.15 * max(numbers))
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    titled(axes, "", "numbers cached per layer and position")
    return figure


# --- gated ----------------------------------------------------------------------------------------------------------


def gate() -> "Figure":
    """A head asked to say the last mark's value, or nothing where no mark has been: where its weights go."""
    figure, (losses, sinks) = side_by_side(2, 2.9)
    for name, color in (("standard", INK), ("gated", PALETTE[0])):
        curve, mass = fitted_to_say_nothing(name)
        losses.semilogy(range(1, len(curve) + 1), curve, color=color, linewidth=1.4, label=name)
        sinks.plot(range(len(mass)), mass, color=color, linewidth=1.4, label=name)
    titled(losses, "squared error", "steps")
    titled(sinks, "error where there is nothing to say", "position")
    in_factors(losses.yaxis)
    keyed(losses)
    return figure


def fitted_to_say_nothing(name: str, n: int = 16, width: int = 16) -> tuple[list[float], Tensor]:
    """Half of the queries ask for the value of a mark, half ask for nothing, and should get nothing."""
    torch.manual_seed(0)
    layer = build(name, d_model=width, n_heads=1)
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-2)
    generator, curve = torch.Generator().manual_seed(0), []
    for _ in range(300):
        x, wanted = asked(64, n, width, generator)
        loss = (layer(x)[0] - wanted).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        curve.append(loss.item())
    with torch.no_grad():
        x, wanted = asked(512, n, width, generator)
        silent = (wanted == 0).all(-1)
        error = (layer(x)[0] - wanted).square().mean(-1)
    return curve, torch.where(silent, error, torch.nan).nanmean(0)


def asked(n_examples: int, n: int, width: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    content = torch.randn(n_examples, n, width, generator=generator)
    content[..., :2] = 0
    asks = torch.rand(n_examples, n, generator=generator) < 0.5
    content[..., 0] = asks.float() * 3
    content[:, 0, 1] = 3  # the mark
    wanted = torch.where(asks.unsqueeze(-1), content[:, :1], torch.zeros(()))
    return content, wanted


# --- phase ----------------------------------------------------------------------------------------------------------


def phase() -> "Figure":
    """One coordinate. Left: Psi(q) in the complex plane. Right: the score of q = 1 against keys."""
    figure, (plane, scores) = side_by_side(2, 3.0)
    activation = attractor.attention.PRESETS["phase"].couple.build(HeadLayout(1, 1, 1, free=1, value=1))
    r = torch.linspace(-4, 4, 401).reshape(1, 1, -1, 1)
    for w, color in zip((0.0, 0.5, 1.0, 2.0), (INK, *PALETTE), strict=False):
        with torch.no_grad():
            activation.phase.weight.fill_(w)
            q, k = activation(torch.ones(1, 1, 1, 1), r)
        plane.plot(k[0, 0, :, 0], k[0, 0, :, 1], color=color, linewidth=1.3, label=f"w = {w:g}")
        scores.plot(r.flatten(), (q @ k.mT).flatten(), color=color, linewidth=1.3)
    plane.set_aspect("equal")
    titled(plane, "Ψ(r) for r from -4 to 4", "real part", "imaginary part")
    titled(scores, "score of q = 1", "r")
    keyed(plane)
    return figure


# --- two timescales -------------------------------------------------------------------------------------------------


def timescales() -> "Figure":
    """Left: what each token hears through the slow path. Right: the cost of a pass against four dense layers."""
    figure, (reach, cost) = side_by_side(2, 3.2)
    n = 16
    reach.imshow(shaded(heard_through_the_slow_path(n)))
    reach.set_xticks(range(0, n, 4))
    reach.set_yticks(range(0, n, 4))
    titled(reach, "heard through the slow path", "of token", "by token")

    lengths = [2**i for i in range(7, 16, 2)]
    dense = SIZES["dense-minimind"].replace(mlp="gelu")
    for pool, color in zip((2, 4, 8), PALETTE, strict=False):
        config = SIZES["fast-slow"].replace(pool_factor=pool)
        ratios = [sum(forward_flops(config, n).values()) / sum(forward_flops(dense, n).values()) for n in lengths]
        cost.semilogx(lengths, ratios, color=color, linewidth=1.4, base=2, label=f"P = {pool}")
        cost.axhline(config.layer_equivalents / 4, color=color, linewidth=0.8, linestyle=(0, (2, 2)))
    titled(cost, "FLOPs of four dense layers; dashed: L_eq / 4", "length")
    cost.set_xticks(lengths)
    in_factors(cost.xaxis)
    keyed(cost)
    return figure


def heard_through_the_slow_path(n: int) -> Tensor:
    """|d injected_t / d x_s|, the largest of a row as 1; zero where token t hears nothing of token s."""
    model = attractor.models.FastSlowConfig().build(seed=0).eval()
    torch.nn.init.ones_(model.injection.gate)
    blocks = AlignedBlocks(model.config.pool_factor, n, torch.device("cpu"))
    rotation = None if model.slow_rope is None else model.slow_rope.at(blocks.positions)
    x = torch.randn(1, n, model.config.d_model, generator=torch.Generator().manual_seed(0), requires_grad=True)
    injected, _ = model.injected(x, blocks, rotation, None)
    direction = torch.randn_like(injected[0, 0])
    rows = [torch.autograd.grad(row @ direction, x, retain_graph=True)[0][0].norm(dim=-1) for row in injected[0]]
    heard = torch.stack(rows)
    return heard / heard.amax(-1, keepdim=True).clamp_min(1e-12)


# --- recurrent ------------------------------------------------------------------------------------------------------


def circle() -> "Figure":
    """Eigenvalues of x + eta A x with A' = -A, before a norm and under it."""
    figure, (plane, growth) = side_by_side(2, 3.3)
    generator = torch.Generator().manual_seed(0)
    a = skew_symmetric(N_TURNING, generator)
    start = normalize(torch.randn(N_TURNING, 1, dtype=a.dtype, generator=generator), dim=0)

    def moved(x: Tensor) -> Tensor:
        return x + a @ x

    def normed(x: Tensor) -> Tensor:
        return moved(x) / moved(x).norm()

    shown = {
        "without a norm": (moved, start, PALETTE[1], "^"),
        "with a norm, at the start": (normed, start, GREY, "s"),
        "with a norm, 256 steps later": (normed, after(normed, start, MUCH_LATER), PALETTE[0], "o"),
    }
    turn = torch.linspace(0, 2 * torch.pi, 200)
    plane.plot(turn.cos(), turn.sin(), color=INK, linewidth=0.9)
    for label, (step, x, color, kind) in shown.items():
        values = analysis.eigenvalues(step, x)
        plane.plot(
            values.real, values.imag, linestyle="none", marker=kind, markersize=3.2, color=color, label=label, alpha=0.8
        )
    plane.set_aspect("equal")
    titled(plane, "eigenvalues and the unit circle", "real part", "imaginary part")
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8, labelcolor=INK)
    maps = read_record(stored("recurrent-norms", "laptop")).cells[0].outcomes[0].probes["iteration_maps"]
    for (gain, of_gain), color, kind in zip(maps["tokens"].items(), PALETTE, "o^s", strict=False):
        under = of_gain["unit"]
        label = f"{gain.replace('-', ' ')}, entropy {under['mean_entropy']:.2f}"
        n_tokens, norms = [int(n) for n in under["norm"]], [*under["norm"].values()]
        growth.loglog(n_tokens, norms, color=color, marker=kind, markersize=4, linewidth=1.3, base=2, label=label)
    in_factors(growth.xaxis, growth.yaxis)
    titled(growth, "norm of an iteration's Jacobian", "tokens")
    keyed(growth, loc=(0.42, 0.2))
    return figure


# --- reading exponents ----------------------------------------------------------------------------------------------


def exponents() -> "Figure":
    """A random matrix of radius one: growth of the best direction over T steps, and of a frame drawn at random."""
    figure, (axes,) = side_by_side(1, 2.9, WIDTH)
    n = 200
    m = torch.randn(n, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64) / n**0.5
    m = m / torch.linalg.eigvals(m).abs().max()
    start, steps = torch.zeros(n, dtype=torch.float64), (1, 2, 4, 8, 16, 32, 64)

    def turn(x: Tensor) -> Tensor:
        return m @ x

    effort = analysis.Effort(tolerance=0.05)  # of the stated error; the true one is far smaller
    product = [analysis.finite_time_exponents(turn, start, n_steps=t, k=1, effort=effort).item() for t in steps]
    exact = [float(torch.linalg.matrix_norm(torch.linalg.matrix_power(m, t), 2).log()) / t for t in steps]
    frame = [analysis.lyapunov_spectrum(turn, start, n_steps=t, k=1, n_transient=0).item() for t in steps]
    axes.semilogx(steps, exact, color=INK, linewidth=1, base=2, label="from the matrix: log |M^T| / T")
    axes.plot(steps, product, "o", color=PALETTE[0], markersize=4.5, label="finite_time_exponents")
    axes.plot(steps, frame, "s-", color=PALETTE[1], markersize=4, linewidth=1, label="QR from a random frame")
    axes.axhline(0, color=GREY, linewidth=0.8)
    in_factors(axes.xaxis)
    titled(axes, "", "steps T", "largest exponent")
    keyed(axes)
    return figure


# --- studies --------------------------------------------------------------------------------------------------------


def ablation() -> "Figure":
    return of_study("coupling-ablation", "desk", "differences")


def control() -> "Figure":
    """What each intervention on logits changes at each learning rate, against none; 95% intervals over pairs."""
    record = read_record(stored("logit-control", "laptop"))
    figure, panels = side_by_side(2, 3.0, WIDTH)
    for axes, kind in zip(panels, ("MHA", "MLA"), strict=True):
        for place, name in enumerate(("QK-norm", "QuacK", "QK-clip", "soft-cap", "fixed rates")):
            gains = [
                paired_difference(record.cell(f"{kind} {name}", rate).losses, record.cell(kind, rate).losses)
                for rate in record.design.columns
            ]
            x = [number + (place - 2) * 0.14 for number in range(len(gains))]
            means, errors = [gain.mean for gain in gains], [gain.half_width or 0.0 for gain in gains]
            axes.errorbar(x, means, errors, fmt="o", markersize=4, linewidth=1.4, color=PALETTE[place], label=name)
        axes.axhline(0, color=INK, linewidth=0.8)
        axes.set_xticks(range(len(gains)), [rate.removesuffix(" rate") for rate in record.design.columns])
        titled(axes, kind, "learning rate", "loss minus that without intervention" if kind == "MHA" else "")
    keyed(panels[0], loc="lower right", ncols=2)
    low, high = (end(axes.get_ylim()[side] for axes in panels) for side, end in enumerate((min, max)))
    for axes in panels:
        axes.set_ylim(low, high)
    return figure


def beyond_window() -> "Figure":
    """The share of right answers of each model, where the answer stands beyond the window of the fast path."""
    record = read_record(stored("fast-slow-window", "desk"))
    figure, (axes,) = side_by_side(1, 4.2, WIDTH)
    for place, row in enumerate(reversed(record.design.rows)):
        answered = [outcome.summary["metric"]["value"] for outcome in record.cell(row, "").outcomes]
        axes.barh(place, fmean(answered), xerr=stdev(answered), color=PALETTE[0], height=0.7, ecolor=INK)
    axes.set_yticks(range(len(record.design.rows)), list(reversed(record.design.rows)))
    axes.axvline(1 / 16, color=GREY, linewidth=0.8)
    titled(axes, "", "share of right answers", "")
    return figure


def longer() -> "Figure":
    """The accuracy on boards out of distribution by the number of iterations, with the range of the seeds."""
    record = read_record(stored("recurrent-models", "desk"))
    looks = styles(record.design.rows, record.design.baseline, record.design.control)
    figure, (axes,) = side_by_side(1, 3.4, WIDTH)

    def by_time(outcome: Outcome) -> list[tuple[int, float]]:
        measured = outcome.probes.get("dynamics", {}).get("accuracy", {}).get("ood", {}).get("board_accuracy", {})
        return [(int(n_iterations), share) for n_iterations, share in measured.items()]

    curves = over_seeds(JudgedStudy(record), "", by_time)
    lines(axes, curves, looks, "")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    keyed(axes)
    titled(axes, "", "iterations", "share of boards solved")
    return figure


# --- speed ----------------------------------------------------------------------------------------------------------


def bench() -> "Figure":
    return figure_of(json.loads((RESULTS / "bench-cpu.json").read_text()))


def bench_on_a_gpu() -> "Figure":
    return figure_of(json.loads((RESULTS / "bench-h200.json").read_text()))


if __name__ == "__main__":
    source = json.loads(stored("coupling-ablation", "desk").read_text())["checksum"]  # a test looks for it
    with rc_context({"svg.hashsalt": source}):  # the same record gives the same file
        ablation().savefig(RESULTS.parent / "docs" / "ablation.svg", metadata={"Description": source, "Date": None})
