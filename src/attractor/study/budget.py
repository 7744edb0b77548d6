"""Budgets hold one resource equal between the rows of a study.

    tokens       every row trains for the same steps of the same batches
    flops        n_steps = n_steps of the baseline x its FLOPs a token / the row's                          (1)
    wall         n_steps = n_steps of the baseline x its seconds a step / the row's, as measured            (2)
    parameters   equal tokens, and one field of the model resized until the counts agree                    (3)
    free         the axes decide, and every table says that budgets differ

A row with another number of steps keeps its share of warm-up and of evaluations, so its schedule has the same shape.
"""

from collections.abc import Callable, Mapping

from attractor.console import with_prefix
from attractor.errors import InputError, require
from attractor.models.config import ModelConfig
from attractor.train.config import TrainConfig
from attractor.train.parts import BY_PARAMETERS, counted_by_parameters, training_flops_per_token, without_data

TOLERANCE = 0.001  # the largest relative difference between two counts of parameters
ROUNDING = 0.05  # the largest share of a budget that rounding to whole steps may change


def balanced(
    configs: Mapping[str, TrainConfig],
    baseline: str,
    budget: str,
    seconds_per_step: Callable[[str], float],
    resize: str = "d_ff",
    sized_by: str = "",
) -> dict[str, TrainConfig]:
    """Return the rows of one column under the budget. `seconds_per_step` is called only where time is matched."""
    reference = configs[baseline]
    if budget == "parameters":
        sized_by = sized_by or baseline
        target = n_parameters(configs[sized_by].model)
        return {
            row: config if row == sized_by else config.replace(model=match_parameters(config.model, target, resize))
            for row, config in configs.items()
        }
    if budget == "flops":
        for row, config in configs.items():
            rule = "tokens, parameters or wall where FLOPs cannot be counted without data"
            require(not counted_by_parameters(config.model, config.seq_len), "budget", rule, f"flops for '{row}'")
        cost = {row: flops_per_step(config) for row, config in configs.items()}  # (1)
    elif budget == "wall":
        cost = {row: seconds_per_step(row) for row in configs}  # (2)
    else:
        return dict(configs)
    steps = {row: reference.n_steps * cost[baseline] / cost[row] for row in configs}
    for row, wanted in steps.items():
        apart = max(1, round(wanted)) / wanted - 1
        if abs(apart) > ROUNDING:
            raise InputError(
                f"n_steps must let '{row}' meet the budget '{budget}' within {ROUNDING:.0%}, and a whole number of "
                f"steps near {wanted:.3g} is {apart:+.0%} off; give the baseline more than n_steps={reference.n_steps}"
            )
    return {row: with_steps(config, steps[row]) for row, config in configs.items()}


def with_steps(config: TrainConfig, n_steps: float) -> TrainConfig:
    """Return the config with another number of steps, its warm-up and evaluations at the same shares of the run."""
    steps = max(1, round(n_steps))
    share = steps / config.n_steps
    return config.replace(
        n_steps=steps,
        warmup_steps=min(round(config.warmup_steps * share), steps - 1),
        eval_every=max(1, round(config.eval_every * share)),
    )


def flops_per_step(config: TrainConfig) -> float:
    return training_flops_per_token(config.model, config.seq_len) * config.tokens_per_step


def costs_in_words(config: TrainConfig) -> str:
    flops = with_prefix(training_flops_per_token(config.model, config.seq_len))
    how = f" ({BY_PARAMETERS})" if counted_by_parameters(config.model, config.seq_len) else ""
    return f"{n_parameters(config.model):,} parameters, {flops} FLOPs a token{how}"


def n_parameters(model: ModelConfig) -> int:
    return sum(parameter.numel() for parameter in without_data(model).parameters())


def match_parameters(model: ModelConfig, target: int, field: str = "d_ff") -> ModelConfig:
    """Return the model with `field` (d_ff or d_model) resized so that its parameters agree with `target` (3).

    Both fields are searched in the steps that the model allows: any d_ff, and a d_model that its heads divide evenly
    enough for RoPE and for two sub-heads.
    """
    require(field in ("d_ff", "d_model"), "field", "d_ff or d_model", field)
    require(target >= 1, "target", "at least 1", target)
    step = 1 if field == "d_ff" else 4 * model.n_heads

    def count(n: int) -> int:
        return n_parameters(model.replace(**{field: n * step}))

    if n_parameters(model) == target:
        return model
    if count(1) == count(2):
        other = "d_ff" if field == "d_model" else "d_model"
        rule = f"{other} for a model of family '{model.family}', whose parameters do not depend on {field}"
        require(False, "resize", rule, field)
    low, high = 1, 1
    while count(high) < target:
        low, high = high, 2 * high
    while high - low > 1:  # the count grows with n
        middle = (low + high) // 2
        low, high = (middle, high) if count(middle) <= target else (low, middle)
    nearest = min((low, high), key=lambda n: abs(count(n) - target))
    resized = model.replace(**{field: nearest * step})
    apart = n_parameters(resized) / target - 1
    if abs(apart) > TOLERANCE:
        other = "d_ff" if field == "d_model" else "d_model"
        raise InputError(
            f"{field} must make {target:,} parameters within {TOLERANCE:.1%}, and the nearest, {field}="
            f"{nearest * step}, makes {n_parameters(resized):,} ({apart:+.2%}); resize {other}, or change the baseline"
        )
    return resized
