"""Mechanisms of one's own: every way to name one, modules that join whole, and what is refused of them."""

import pickle
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import attractor
from attractor.attention import PRESETS, AttentionConfig, Whole, build, defined_by, mechanism
from attractor.attention.check import check
from attractor.attention.couple.euler import Euler
from attractor.errors import InputError
from attractor.models import TransformerConfig
from in_process import SHORT, TINY, Command, command_in_process

SIZES = {"vocab_size": 11, "d_model": 16, "n_heads": 2, "d_ff": 16, "n_layers": 2, "max_seq_len": 32}


class Heads(nn.Module):
    """Causal softmax attention, with places where a leak may be put."""

    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)
        self.gate = nn.Parameter(torch.zeros(()))

    def before(self, x: Tensor) -> Tensor:
        return x

    def after(self, y: Tensor, x: Tensor) -> Tensor:
        return y

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.before(x)).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.after(self.out(y.transpose(1, 2).flatten(-2)), x)


class ZeroGate(Heads):
    def after(self, y: Tensor, x: Tensor) -> Tensor:
        return y + self.gate * x.mean(1, keepdim=True)


class DetachedStatistic(Heads):
    def after(self, y: Tensor, x: Tensor) -> Tensor:
        return y * (1 + x.detach().std(1, keepdim=True))


class BatchStatistic(Heads):
    def after(self, y: Tensor, x: Tensor) -> Tensor:
        return y - y.mean(0, keepdim=True)


class BatchNorm(Heads):
    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__(d_model, n_heads)
        self.norm = nn.BatchNorm1d(d_model)

    def after(self, y: Tensor, x: Tensor) -> Tensor:
        return self.norm(y.mT).mT


class NormOverTime(Heads):
    def before(self, x: Tensor) -> Tensor:
        return nn.functional.layer_norm(x.mT, x.shape[1:2]).mT


class ReversedScan(Heads):
    def after(self, y: Tensor, x: Tensor) -> Tensor:
        return y + x.flip(1).cumsum(1).flip(1)


class NextToken(Heads):
    def after(self, y: Tensor, x: Tensor) -> Tensor:
        return y + 1e-3 * x.roll(-1, 1)


class Unmasked(nn.Module):
    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(d_model, n_heads, batch_first=True)

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        return self.inner(x, x, x, need_weights=False)


class OnlyInTraining(Heads):
    def after(self, y: Tensor, x: Tensor) -> Tensor:
        return y + x.mean(1, keepdim=True) if self.training else y


class TellsTheLength(Heads):
    def after(self, y: Tensor, x: Tensor) -> Tensor:
        return y * x.shape[1]


class OwnBlock(Heads):
    """Adds the mean of a token's block of 64, which is there once the block is full."""

    def after(self, y: Tensor, x: Tensor) -> Tensor:
        full = x.shape[1] // 64 * 64
        means = x[:, :full].unflatten(1, (-1, 64)).mean(2).repeat_interleave(64, 1) if full else x[:, :0]
        return y + nn.functional.pad(means, (0, 0, 0, x.shape[1] - full))


class OtherChance(Heads):
    def after(self, y: Tensor, x: Tensor) -> Tensor:
        return y * random.random()


LEAKS = (
    *(ZeroGate, DetachedStatistic, BatchStatistic, BatchNorm, NormOverTime, ReversedScan, NextToken, Unmasked),
    *(OnlyInTraining, TellsTheLength, OwnBlock, OtherChance),
)


class Convolution(nn.Module):
    """A long convolution by Fourier transforms, which rounds."""

    def __init__(self, dim: int, n_head: int = 1) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.randn(64, dim) / 8)

    def forward(self, x: Tensor) -> Tensor:
        n = 2 * x.shape[1]
        return torch.fft.irfft(
            torch.fft.rfft(x, n, dim=1) * torch.fft.rfft(self.filter[: x.shape[1]], n, dim=0), n, dim=1
        )[:, : x.shape[1]]


class Recurrence(nn.Module):
    """The signature of flash-linear-attention's layers: hidden_size, num_heads, layer_idx; returns a tuple."""

    def __init__(self, mode: str = "chunk", hidden_size: int = 8, num_heads: int = 1, layer_idx: int | None = None):
        super().__init__()
        assert layer_idx is not None
        self.decay, self.o_proj = nn.Parameter(torch.zeros(num_heads)), nn.Linear(hidden_size, hidden_size)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None) -> tuple[Tensor, None, None]:
        decay = self.decay.sigmoid().repeat_interleave(hidden_states.shape[-1] // len(self.decay))
        state, states = torch.zeros_like(hidden_states[:, 0]), []
        for x in hidden_states.unbind(1):
            state = decay * state + x
            states.append(state)
        return self.o_proj(torch.stack(states, 1)), None, None


class ShortConvolution(Recurrence):
    def forward(self, hidden_states: Tensor, **_: object) -> tuple[Tensor, None, None]:  # type: ignore[override]
        padded = nn.functional.pad(hidden_states, (0, 0, 2, 0))
        return self.o_proj(padded.unfold(1, 3, 1).mean(-1)), None, None


class Dropped(Heads):
    def after(self, y: Tensor, x: Tensor) -> Tensor:
        return nn.functional.dropout(y, 0.5, self.training)


class Prefix(Recurrence):
    def forward(self, hidden_states: Tensor, **_: object) -> tuple[Tensor, None, None]:  # type: ignore[override]
        return self.o_proj(hidden_states.cumsum(1) / torch.arange(1, 1 + hidden_states.shape[1])[:, None]), None, None


class DependsOnValues(Heads):
    """What it does depends on a value, which the meta device does not have."""

    def after(self, y: Tensor, x: Tensor) -> Tensor:
        return y if float(self.out.weight.detach()[0, 0]) < 9 else 2 * y


class KeptAngles(Heads):
    """Keeps what it computed once in a buffer, and a mark of it elsewhere, as tables of rotations do."""

    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__(d_model, n_heads)
        self.register_buffer("angles", torch.zeros(256), persistent=False)
        self.register_buffer("turn", torch.tensor(1j))
        self.frequency = nn.Parameter(torch.ones(()), requires_grad=False)
        self.kept = 0

    def before(self, x: Tensor) -> Tensor:
        if self.kept < x.shape[1]:
            self.kept = x.shape[1]
            self.angles[: self.kept] = torch.arange(self.kept) * self.frequency
        return x * self.angles[: x.shape[1], None].cos() * self.turn.imag


class InSinglePrecision(nn.Module):
    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.out = nn.Linear(d_model, d_model)
        self.uncopied = self.out.weight.sum()  # which refuses to be copied

    def forward(self, x: Tensor) -> Tensor:
        logits = (x @ x.mT).masked_fill(torch.ones(x.shape[1], x.shape[1]).triu(1).bool(), -torch.inf)
        return self.out(logits.softmax(-1, dtype=torch.float32).to(x.dtype) @ x)


SOUND = (
    *(Heads, Convolution, Recurrence, ShortConvolution, Dropped, Prefix, DependsOnValues),
    *(KeptAngles, InSinglePrecision),
)


def model_of(factory: Callable[..., nn.Module], **changes: object) -> nn.Module:
    return TransformerConfig(attention=Whole(factory), **SIZES | changes).build(seed=0)


@pytest.mark.parametrize("leaking", LEAKS, ids=lambda kind: kind.__name__)
def test_a_module_that_sees_what_it_must_not_is_refused(leaking: type) -> None:
    with pytest.raises(InputError, match=f"{leaking.__name__} must see the past alone, and its output at position"):
        model_of(leaking)
    assert [finding.holds for finding in check(leaking)] == [False]


@pytest.mark.parametrize("sound", SOUND, ids=lambda kind: kind.__name__)
def test_other_modules_take_part_and_their_generation_equals_the_full_pass(sound: type) -> None:
    assert all(finding.holds is not False for finding in check(sound))
    model = model_of(sound).eval()
    tokens = torch.randint(11, (2, 9))
    cache = model.new_cache()
    steps = torch.cat([model(part, cache)[0] for part in tokens.split([4, 1, 3, 1], dim=1)], dim=1)
    torch.testing.assert_close(steps, model(tokens)[0], atol=1e-5, rtol=1e-5)


def test_a_model_that_sees_both_sides_takes_a_module_that_does() -> None:
    model = model_of(Unmasked, causal=False)
    assert model(torch.zeros(1, 5, dtype=torch.long))[0].shape == (1, 5, 11)


def test_models_share_all_other_weights_and_the_module_starts_as_its_factory_says() -> None:
    own, standard = model_of(ZeroGateOfZero), TransformerConfig(**SIZES).build(seed=0)
    shared = {name: p for name, p in standard.named_parameters() if ".attention." not in name}
    mine = dict(own.named_parameters())
    assert all(torch.equal(mine[name], p) for name, p in shared.items())
    assert mine["blocks.1.attention.module.gate"] == 0
    assert torch.equal(model_of(ZeroGateOfZero).embedding.weight, own.embedding.weight)
    first, second = (dict(model_of(Heads).named_parameters()) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(*(first[f"blocks.{i}.attention.module.qkv.weight"] for i in (0, 1)))
    drawn, scaled = (first[f"blocks.0.attention.module.{name}.weight"].abs().max() for name in ("qkv", "out"))
    assert 0.9 * drawn / 2 < scaled < 1.1 * drawn / 2  # the map into the stream, of two layers with an MLP each


class ZeroGateOfZero(Heads):
    pass


FILE = """
from attractor.attention import AttentionConfig, Whole
from attractor.attention.couple.euler import Euler
from torch import nn

class Sum(nn.Module):
    def __init__(self, d_model, n_heads, scale=1.0):
        super().__init__()
        self.scale, self.out = scale, nn.Linear(d_model, d_model)

    def forward(self, x):
        return self.out(self.scale * x.cumsum(1))

def half(d_model, n_heads):
    return Sum(d_model, n_heads, 0.5)
"""
CONFIGS = "\nSTEPS = AttentionConfig(couple=Euler(n_steps=3))\n"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    file = tmp_path / "own.py"
    file.write_text(FILE)
    return file


def test_every_way_of_naming_leads_to_the_mechanism(file: Path, tmp_path: Path, monkeypatch) -> None:
    assert mechanism("gated") == "gated"
    assert build("coupled-euler:n_steps=2,dt=0.5", 16, 2).config.couple == Euler(n_steps=2, dt=0.5)
    assert mechanism(Euler) == mechanism(Euler()) == AttentionConfig(couple=Euler()) == PRESETS["coupled-euler"]
    assert mechanism(Heads) == Whole(Heads)
    only, named, scaled = (mechanism(f"{file}{rest}") for rest in ("", ":Sum", ":Sum:scale=2.0"))
    assert only == named == mechanism(f"{file}:Sum")
    assert (named.label, scaled.label) == ("Sum", "Sum:scale=2.0")
    assert scaled.build(16, 2).module.scale == 2
    assert mechanism(f"{file}:half").build(16, 2).module.scale == 0.5
    assert mechanism("torch.nn.modules.linear:Identity").factory is nn.Identity
    folder = tmp_path / "installed" / "mine-1.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1\n")
    (folder / "entry_points.txt").write_text("[attractor.mechanisms]\nmine = torch.nn.modules.linear:Identity\n")
    monkeypatch.syspath_prepend(folder.parent)
    assert mechanism("mine").factory is nn.Identity
    file.write_text(FILE + CONFIGS)
    other = file.rename(tmp_path / "configs.py")
    assert mechanism(str(other)) == AttentionConfig(couple=Euler(n_steps=3))


def test_a_dotted_path_does_not_look_into_the_current_folder(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    monkeypatch.syspath_prepend("")
    file.with_name("lying.py").write_text("raise SystemExit('executed')")
    with pytest.raises(InputError, match=r"'lying' cannot be imported.*named by its path, as lying\.py"):
        defined_by("lying")


@pytest.fixture
def attractor_command(file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    monkeypatch.chdir(file.parent)
    Path("text.txt").write_text("".join(f"{i} squared is {i * i}\n" for i in range(300)))
    return command_in_process(monkeypatch, capsys)


REFUSED = {
    "raises.py": ("1 / 0", "raises.py' line 1 cannot be executed: ZeroDivisionError"),
    "two.py": (
        FILE.replace("def half", "class Other(nn.Module): pass\n\ndef half"),
        "defines Sum and Other; give two.py:Sum",
    ),
    "shape.py": (FILE.replace("self.out(self.scale * x.cumsum(1))", "x[:, :1]"), "must return a tensor of the shape"),
    "fails.py": (FILE.replace("x.cumsum(1)", "x.cumsun(1)"), "fails at 2 x 12 x 16: AttributeError"),
    "leaks.py": (FILE.replace("x.cumsum(1)", "x.flip(1)"), "must see the past alone, and"),
    "sizes.py": (FILE.replace("n_heads, scale=1.0", "n_heads, groups"), "must take its sizes as d_model and n_heads"),
    "nothing.py": ("x = 1", "it defines none; give nothing.py:NAME"),
    "complex.py": (
        FILE.replace("= scale,", "= nn.Parameter(nn.Linear(1, 1).weight.data.cfloat()),"),
        "must have real parameters, and 'scale' is complex; keep torch.view_as_real",
    ),
    "exits.py": (FILE.replace("super()", "exit()"), "line 8 fails: SystemExit"),
    "nan.py": (FILE.replace("x.cumsum(1)", "x.cumsum(1) / 0"), "must return finite numbers"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_with_a_file_is_one_line(attractor_command: Command, name: str) -> None:
    source, part = REFUSED[name]
    Path(name).write_text(source)
    for command in (["compare", "standard", name], ["train", f"--attention={name}"]):
        code, _, err = attractor_command(*command, *TINY, *SHORT, "--corpus=text.txt")
        (said,) = err.splitlines()
        assert code == 2
        assert part in said
    assert not Path("runs").exists()


def test_a_file_that_never_ends_is_stopped(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attractor.files.code.LONGEST_SECONDS", 0.2)
    file.with_name("endless.py").write_text("while True: pass")
    with pytest.raises(
        InputError,
        match=r"endless\.py' line 1 cannot be executed: TimeoutError: it takes more than 0\.2 s; mend that line",
    ):
        mechanism(str(file.with_name("endless.py")))


def test_a_run_of_a_file_is_read_with_the_file_alone_and_keeps_its_source(attractor_command: Command) -> None:
    said = attractor_command("train", "--attention=own.py:Sum", *TINY, *SHORT, "--corpus=text.txt", "--out=run")
    assert (said.code, said.err) == (0, "")
    assert said.out.count("Sum joined whole: it lacks a cache") == 1
    assert said.out.splitlines()[-2] == "generate: attractor generate run --code own.py"
    assert Path("run/mechanism.py").read_text() == FILE
    assert attractor_command("generate", "run", "--code=own.py", "--max-new-tokens=3").code == 0
    Path("run").rename("other")
    for command in (["generate", "other"], ["train", "--resume=other"], ["evaluate", "other"]):
        done = subprocess.run(
            [sys.executable, "-m", "attractor", *command], capture_output=True, text=True, timeout=100
        )
        assert done.returncode == 2
        assert "'own.py:Sum' is code, which is executed only from a path that the command names; add --c" in done.stderr
    assert attractor_command("report", "other").code == 0


def test_a_process_does_not_test_again_what_was_tested_where_it_was_started(file: Path, tmp_path: Path) -> None:
    made = tmp_path / "made"
    noted = f"        with open({str(made)!r}, 'a') as made:\n            made.write('.')\n        super()"
    file.write_text(FILE.replace("        super()", noted))
    whole = mechanism(f"{file}:Sum")
    whole.require_suited(16, 2, True)
    n_made = len(made.read_text())
    code = f"import pickle; pickle.loads({pickle.dumps(whole)!r}).require_suited(16, 2, True)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)
    assert len(made.read_text()) == n_made > 0


@pytest.mark.parametrize("name", ["os:system", "posix:system", "own.py:system", "own.py:remove", "builtins:eval"])
def test_a_stored_name_reaches_no_other_code(file: Path, name: str) -> None:
    """Criterion: neither what a module imports nor what takes no width is called, whatever a stored run says."""
    file.write_text(FILE + "\nfrom os import system\n\ndef remove(command):\n    open('made', 'w')\n")
    defined_by(str(file))
    stored = TransformerConfig(**SIZES).to_dict()
    stored |= {"attention": {"kind": "Whole", "name": name, "options": {"command": "touch made", "source": "1"}}}
    with pytest.raises(InputError, match=r"is code, which is executed only from a path|must take a width"):
        TransformerConfig.from_dict(stored)
    assert not Path("made").exists()


def test_init_writes_a_mechanism_that_the_check_passes_and_refuses_a_file_that_exists(attractor_command) -> None:
    assert attractor_command("init", "mine.py").out.splitlines()[-1] == "mine.py"
    said = attractor_command("check", "mine.py:Mine")
    assert (said.code, said.err) == (0, "")
    assert "NO" not in said.out
    assert attractor_command("init", "mine.py").code == 2


def test_python_trains_and_compares_own_mechanisms(attractor_command: Command) -> None:
    settings = {"corpus": "text.txt", "n_steps": 2, "eval_batches": 1, "device": "cpu", "d_model": 16, "n_layers": 1}
    run = attractor.train_model("own.py:Sum", out="one", **settings)
    assert run.state == "finished"
    assert run.config.label == "Sum"
    study = attractor.compare("standard", mechanism("own.py:half"), seeds=2, workers=1, **settings)
    assert [row["label"] for row in study.rows] == ["standard", "half", "uniform"]
    assert all(row["seeds"] == 2 for row in study.rows)
    assert {run.config.model.positions for run in [run, *study.runs]} == {"learned"}  # the recipe's are rotations
    (rotated,) = attractor.compare("standard", Whole(Heads), seeds=1, workers=1, positions="rope", **settings).runs[:1]
    assert rotated.config.model.positions == "rope"


COMPARE = (
    "attractor.compare('standard', Sum, seeds=1, workers=1, corpus='text.txt', n_steps=1, device='cpu', d_model=16)"
)


@pytest.mark.parametrize(
    ("from_file", "said"),
    [
        (True, 'a script must train below `if __name__ == "__main__":`'),
        (False, "'Sum' must stand at the top of a file"),
    ],
)
@pytest.mark.slow
@pytest.mark.usefixtures("attractor_command")
def test_a_script_whose_processes_cannot_load_its_mechanism_is_told_what_to_write(from_file: bool, said: str) -> None:
    """Criterion: the process of a run does not begin the whole comparison anew, and no traceback of it is shown."""
    script = f"import attractor\n{FILE}\n{COMPARE}\n"
    Path("script.py").write_text(script)
    command = [sys.executable, *(["script.py"] if from_file else ["-c", script])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 1
    assert said in done.stderr
    assert done.stderr.count("Traceback") == 1
