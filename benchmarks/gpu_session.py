"""Find where the time of training goes on one GPU, in one call of at most 13 minutes; each part prints as it ends.

    t >= max(FLOPs / measured FLOP rate, bytes / measured bandwidth)                                        (1)

    rates       what the device reaches: a large product of matrices, and a large copy
    operations  each operation of a step, forward and backward: its time beside the least time (1)
    step        a training step at several numbers of tokens: eager, compiled, and with CUDA graphs
    waits       how often a step makes the host wait for the device
    attention   each backend of torch's attention, and a window of 1,024 at 16,384 tokens: in blocks, by FlexAttention
    decoding    cached generation, one sequence and 32
    loops       200 steps of `attractor train` beside the same shape in a short loop and in Hugging Face's model

Each part runs in a process of its own, with a limit of its own, so that one that fails or runs out of memory costs no
other. Lines are JSON; OUT gets them too.

    python benchmarks/gpu_session.py OUT.jsonl            (--toy: at a size for a CPU, in about a minute)
"""

import argparse
import json
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from attractor.attention.mask import lower_triangle
from attractor.attention.score.softmax import attend
from attractor.attention.score.window import by_flex, in_blocks
from attractor.bench.cases import decoding, random_tokens, training_step
from attractor.bench.matrix_rate import matrix_rate
from attractor.bench.stopwatch import Stopwatch, seconds_of
from attractor.kernels.precision import autocast
from attractor.models import SIZES
from attractor.models.transformer import TransformerConfig
from attractor.train.parts import forward_flops

Line = dict[str, Any]
WHOLE = cast(  # 59M parameters
    TransformerConfig, SIZES["small"].replace(vocab_size=50304, max_seq_len=512, positions="rope")
)
TOY = WHOLE.replace(d_model=64, n_heads=2, n_layers=2, d_ff=128, vocab_size=320, max_seq_len=64, positions="rope")
LIMITS = {  # seconds: 13 minutes
    "rates": 40,
    "operations": 80,
    "step": 270,
    "waits": 40,
    "attention": 70,
    "decoding": 80,
    "loops": 200,
}
N_ROUNDS = 5


class Session:
    """The device, the shape and the sizes of the parts."""

    def __init__(self, toy: bool) -> None:
        self.toy = toy
        self.device = torch.device("cpu" if toy else "cuda")
        self.precision = "fp32" if toy else "bf16"
        self.config = TOY if toy else WHOLE
        self.tokens = (128, 256) if toy else (2**14, 2**15, 2**16, 2**17)
        self.dtype = torch.float32 if toy else torch.bfloat16
        self.n_steps = 4 if toy else 200

    def batch(self, n_tokens: int) -> Tensor:
        length = self.config.max_seq_len
        return random_tokens(self.config.vocab_size, n_tokens // length, length).to(self.device)

    def model(self) -> Any:
        return self.config.build(seed=0).to(self.device).train()

    def seconds(self, run: Callable[[], object]) -> float:
        """Return the median seconds of a call, after two calls that warm up."""
        run(), run()
        return median(seconds_of(run, self.device) for _ in range(N_ROUNDS))

    def step_flops(self, n_tokens: int) -> float:
        """Return the FLOPs of a step: the backward pass takes twice those of the forward pass."""
        return 3 * sum(forward_flops(self.config, self.config.max_seq_len).values()) * n_tokens

    def bandwidth(self) -> float:
        """Return the bytes a second of a large copy, each read and written."""
        source = torch.empty(2**22 if self.toy else 2**30, dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        return 2 * source.numel() / self.seconds(lambda: target.copy_(source))


def loss_of(model: Any) -> Callable[[Tensor], Tensor]:
    def loss(tokens: Tensor) -> Tensor:
        value: Tensor = model.loss(tokens[:, :-1], tokens[:, 1:])[0]
        return value

    return loss


def rates(session: Session) -> Iterator[Line]:
    name = torch.cuda.get_device_name() if session.device.type == "cuda" else "cpu"
    yield {"device": name, "flops": matrix_rate(session.precision, session.device), "bandwidth": session.bandwidth()}


def operations(session: Session) -> Iterator[Line]:
    """Time each operation of a step at one number of tokens, and say how often a step has it."""
    config, n = session.config, session.tokens[-2]
    d, ff, v, length = config.d_model, config.d_ff, config.vocab_size, config.max_seq_len
    heads, width, layers, size = (
        config.n_heads,
        config.d_model // config.n_heads,
        config.n_layers,
        session.dtype.itemsize,
    )
    peak, bandwidth = matrix_rate(session.precision, session.device), session.bandwidth()

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, device=session.device, dtype=session.dtype, requires_grad=True)

    def both(run: Callable[..., Tensor], *inputs: Tensor) -> Callable[[], None]:
        def passes() -> None:
            out = run(*inputs)
            torch.autograd.grad(out, inputs, torch.ones_like(out))

        return passes

    x, wide, stream = drawn(n, d), drawn(n, ff), drawn(n, d)
    q = [drawn(n // length, heads, length, width) for _ in range(3)]
    targets = torch.randint(v, (n // 4,), device=session.device)  # a quarter: all logits at once would not fit
    square, up, down, readout = drawn(d, d), drawn(ff, d), drawn(d, ff), drawn(v, d)
    cases: dict[str, tuple[int, float, float, Callable[[], object]]] = {
        "projection": (4 * layers, 6 * n * d * d, 3 * size * (2 * n * d + d * d), both(F.linear, x, square)),
        "MLP up": (2 * layers, 6 * n * d * ff, 3 * size * (n * (d + ff) + d * ff), both(F.linear, x, up)),
        "MLP down": (layers, 6 * n * d * ff, 3 * size * (n * (d + ff) + d * ff), both(F.linear, wide, down)),
        "attention": (
            layers,
            7 * n * length * d,  # causal: half of 4, and 5 backward, since scores are computed again
            12 * size * n * d,
            both(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), *q),
        ),
        "norm": (2 * layers + 1, 0, 5 * size * n * d, both(lambda x: F.rms_norm(x, (d,)), stream)),
        "SwiGLU": (layers, 0, 8 * size * n * ff, both(lambda a, b: F.silu(a) * b, wide, drawn(n, ff))),
        "addition": (2 * layers, 0, 3 * size * n * d, lambda: stream + x),
        "readout and loss": (
            4,
            6 * (n // 4) * d * v,
            size * (5 * (n // 4) * v + 3 * d * v),
            both(lambda x, w: F.cross_entropy(F.linear(x, w).float(), targets), drawn(n // 4, d), readout),
        ),
    }
    for name, (count, flops, moved, run) in cases.items():
        seconds = session.seconds(run)
        least = max(flops / peak, moved / bandwidth)  # (1)
        yield {"operation": name, "count": count, "seconds": seconds, "least": least, "per step": count * seconds}
    parameters = list(session.model().parameters())
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer = torch.optim.AdamW(parameters, lr=0.0, fused=True)
    seconds, n_parameters = session.seconds(optimizer.step), sum(p.numel() for p in parameters)
    yield {"operation": "AdamW", "count": 1, "seconds": seconds, "least": 28 * n_parameters / bandwidth}


def step(session: Session) -> Iterator[Line]:
    peak = matrix_rate(session.precision, session.device)
    modes: dict[str, dict[str, Any] | None] = {
        "eager": None,
        "compiled": {},
        "CUDA graphs": {"mode": "reduce-overhead"},
    }
    if session.toy:
        modes = {"eager": None, "compiled": {"backend": "aot_eager"}}
    for n_tokens in session.tokens:
        for mode, options in modes.items():
            if session.device.type == "cuda":
                torch.cuda.reset_peak_memory_stats()
            torch._dynamo.reset()
            model, batch = session.model(), session.batch(n_tokens)
            loss = loss_of(model)
            try:
                run = loss if options is None else torch.compile(loss, **options)
                seconds = session.seconds(training_step(model, run, batch, session.precision))
            except torch.OutOfMemoryError:
                yield {"tokens": n_tokens, "mode": mode, "left out": "out of memory"}
                continue
            share = session.step_flops(n_tokens) / seconds / peak
            memory = torch.cuda.max_memory_allocated() if session.device.type == "cuda" else None
            yield {
                "tokens": n_tokens,
                "mode": mode,
                "seconds": seconds,
                "tokens/s": n_tokens / seconds,
                "share": share,
            } | ({} if memory is None else {"peak bytes": memory})


def waits(session: Session) -> Iterator[Line]:
    """Count by torch's own debug mode, which leaves out the one wait that ends a timed step."""
    model, batch = session.model(), session.batch(session.tokens[0])
    run = training_step(model, loss_of(model), batch, session.precision)
    run()
    if session.device.type != "cuda":
        yield {"waits": 0, "left out": "no GPU"}
        return
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        run()
        torch.cuda.set_sync_debug_mode("default")
    yield {"waits": sum("synchroniz" in str(warning.message) for warning in said)}


def attention(session: Session) -> Iterator[Line]:
    """Time forward and backward passes, and say how far contexts and gradients are from those of all keys, masked."""
    length, window = (512, 64) if session.toy else (2**14, 1024)
    width = session.config.d_model // session.config.n_heads

    def drawn(length: int) -> list[Tensor]:
        shape = (max(session.tokens[-2] // length, 1), session.config.n_heads, length, width)
        return [torch.randn(shape, device=session.device, dtype=session.dtype, requires_grad=True) for _ in range(3)]

    def passes(attend: Callable[..., Tensor], inputs: list[Tensor]) -> list[Tensor]:
        context = attend(*inputs)
        return [context, *torch.autograd.grad(context, inputs, inputs[0])]

    full = partial(F.scaled_dot_product_attention, is_causal=True)
    short, long = drawn(session.config.max_seq_len), drawn(length)
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, None):
        name = "torch's choice" if backend is None else backend.name
        try:
            with nullcontext() if backend is None else sdpa_kernel(backend):
                yield {"attention": name, "seconds": session.seconds(lambda: passes(full, short))}
        except RuntimeError as error:
            yield {"attention": name, "left out": str(error).splitlines()[0]}
    masked = [x[:1, :1] for x in long]  # the mask of one head fits
    mask = lower_triangle(length, length, session.device, window)
    expected = passes(partial(F.scaled_dot_product_attention, attn_mask=mask), masked)
    scale = width**-0.5
    in_window: dict[str, Callable[..., Tensor]] = {
        "blocks": lambda q, k, v: in_blocks(partial(attend, scale=scale), q, k, v, window),
        "FlexAttention": lambda q, k, v: by_flex(q, k, v, window, scale),
    }
    all_keys = session.seconds(lambda: passes(full, long))
    for name, run in in_window.items():
        if session.device.type != "cuda" and name == "FlexAttention":
            yield {"window": name, "left out": "no GPU"}
            continue
        found = [x[:1, :1] for x in passes(run, long)]
        largest = max(float((a - b).detach().abs().max()) for a, b in zip(found, expected, strict=True))
        speed = all_keys / session.seconds(partial(passes, run, long))
        yield {"window": name, "speed against all keys": speed, "largest error": largest}


def decode(session: Session) -> Iterator[Line]:
    n_tokens, model = 4 if session.toy else 256, session.model().eval().to(session.dtype)
    for rows in (1, 32):
        seconds = session.seconds(decoding(model, n_tokens, batch_size=rows))
        yield {"sequences": rows, "tokens/s": rows * n_tokens / seconds}


class Block(nn.Module):
    """A pre-norm block with one fused projection, as short public training scripts have it."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        d = config.d_model
        self.n_heads = config.n_heads
        self.norms = nn.ModuleList([nn.LayerNorm(d), nn.LayerNorm(d)])
        self.qkv, self.out = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.up, self.down = nn.Linear(d, 4 * d, bias=False), nn.Linear(4 * d, d, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Short(nn.Module):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocab_size, config.d_model)
        self.places = nn.Embedding(config.max_seq_len, config.d_model)
        self.blocks = nn.Sequential(*(Block(config) for _ in range(config.n_layers)), nn.LayerNorm(config.d_model))

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return F.linear(self.blocks(self.tokens(tokens) + self.places(places)), self.tokens.weight)


def loops(session: Session) -> Iterator[Line]:
    """Take the same number of steps, of the same shape, in three loops; the first fifth warms up."""
    config, n_tokens = session.config, session.tokens[0]
    batch = session.batch(n_tokens)
    backend = "aot_eager" if session.toy else "inductor"

    def timed(name: str, model: nn.Module, logits: Callable[[nn.Module, Tensor], Tensor]) -> Line:
        model = model.to(session.device).train()

        def loss(tokens: Tensor) -> Tensor:
            return F.cross_entropy(logits(model, tokens[:, :-1]).flatten(0, 1).float(), tokens[:, 1:].flatten())

        run, optimizer = (
            torch.compile(loss, backend=backend),
            torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True),
        )
        watch, n_warm = Stopwatch(session.device), max(1, session.n_steps // 5)
        for index in range(session.n_steps):
            if index == n_warm:
                watch.mark()
            with autocast(session.device, session.precision):
                value = run(batch)
            value.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        watch.mark()
        (seconds,) = watch.seconds()
        n_timed = session.n_steps - n_warm
        n_parameters = sum(p.numel() for p in model.parameters())
        return {"loop": name, "parameters": n_parameters, "tokens/s": n_timed * n_tokens / seconds}

    yield timed("short", Short(config), lambda model, tokens: model(tokens))
    try:
        transformers: Any = import_module("transformers")
        shape = {"hidden_size": config.d_model, "intermediate_size": config.d_ff, "vocab_size": config.vocab_size}
        shape |= {"num_hidden_layers": config.n_layers, "num_attention_heads": config.n_heads}
        llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape, tie_word_embeddings=True))
        yield timed("Hugging Face", llama, lambda model, tokens: model(input_ids=tokens, use_cache=False).logits)
    except ImportError:
        yield {"loop": "Hugging Face", "left out": "transformers is not installed"}
    yield {"loop": "attractor train", **trained(session, n_tokens)}


def trained(session: Session, n_tokens: int) -> Line:
    from attractor.tasks.text import Text
    from attractor.train.config import Runtime, TrainConfig
    from attractor.train.loop import train

    length = session.config.max_seq_len
    with TemporaryDirectory() as place:
        text = Path(place) / "text.txt"
        text.write_text("".join(f"{i} squared is {i * i}\n" for i in range(60_000 if session.toy else 600_000)))
        config = TrainConfig(
            model=session.config,
            task=Text(str(text)),
            n_steps=session.n_steps,
            warmup_steps=1,
            batch_size=n_tokens // length,
            seq_len=length,
            precision=session.precision,
            compile=not session.toy,
            eval_every=session.n_steps,
            eval_batches=1,
        )
        run = train(config, Path(place) / "run", Runtime(device=session.device.type))
        return {"tokens/s": run["tokens_per_second"], "parameters": run["n_parameters"]}


PARTS = {
    "rates": rates,
    "operations": operations,
    "step": step,
    "waits": waits,
    "attention": attention,
    "decoding": decode,
    "loops": loops,
}


def main(out: Path, toy: bool = False, limits: dict[str, int] = LIMITS) -> None:
    with out.open("w", encoding="utf-8") as file:
        for part, limit in limits.items():
            words = [sys.executable, __file__, str(out), "--part", part, *(["--toy"] if toy else [])]
            with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
                timer = threading.Timer(limit, process.kill)
                timer.start()
                for line in process.stdout or ():
                    print(f"{part}: {line}", end="", flush=True)
                    file.write(json.dumps({"part": part} | json.loads(line)) + "\n")
                    file.flush()
                timer.cancel()
            if process.returncode:
                file.write(json.dumps({"part": part, "left out": f"it ended with {process.returncode}"}) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--toy", action="store_true", help="a size for a CPU")
    parser.add_argument("--part", choices=PARTS)
    given = parser.parse_args()
    if given.part is None:
        main(given.out, given.toy)
    else:
        for line in PARTS[given.part](Session(given.toy)):
            print(json.dumps(line), flush=True)
