"""Set up every test process: one thread, interpreted kernels, a cache folder that is removed, and no deadlines.

The shapes in attention's signatures are checked at run time in the tests of attention, of its kernels and of the
contract alone, because the checks take four fifths of the time of a small attention layer.

The page of a run has eight charts, which take longer than a short run. The tests of reports and all slow tests draw
every chart. In other tests a chart is drawn once for each process, and later pages show it again.
"""

import gc
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault(
    "TRITON_INTERPRET", "1"
)  # kernels run on a CPU; triton reads this variable when it is first imported

import hypothesis
import jaxtyping
import pytest
import torch

CACHE = tempfile.TemporaryDirectory(prefix="attractor-tests-")
os.environ["ATTRACTOR_CACHE"] = CACHE.name  # the folder is removed when the worker ends

# A slow machine must not fail a test. With CI set, as in .ci/run, the same code draws the same examples.
hypothesis.settings.register_profile("attractor", deadline=None, derandomize="CI" in os.environ)
hypothesis.settings.load_profile("attractor")

# A shell ignores SIGINT for what it starts in the background, and nohup ignores SIGHUP, for processes of tests as well.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

torch.set_num_threads(1)  # workers run side by side: more threads would only wait for one another

# Imports and tests make many objects and few cycles. At Python's thresholds (700, 10, 10) the garbage collector takes a
# tenth of the time of all tests.
gc.set_threshold(50_000, 20, 50)

# Each `torch.manual_seed` queues a call for every kind of accelerator, with a stack trace: a hundred times the cost.
if not torch.accelerator.is_available():
    for accelerator in (torch.cuda, torch.mtia, torch.xpu):
        accelerator.manual_seed_all = lambda seed: None

# The hook rewrites modules as they are imported, so it must stand before the first import of attractor.
jaxtyping.install_import_hook("attractor.attention", "shape_checker.check")
jaxtyping.config.update("jaxtyping_disable", True)  # while tests are collected

# On a busy machine reading takes long, and a line about it would appear in output that a test expects to be empty.
from attractor import console  # noqa: E402
from attractor.models import TransformerConfig  # noqa: E402
from attractor.report import run_page  # noqa: E402
from attractor.tasks.text import Text  # noqa: E402
from attractor.train.config import TrainConfig  # noqa: E402
from in_process import Command, command_in_process  # noqa: E402

console.FIRST_SECONDS = 600.0

TESTS = Path(__file__).parent
# Workers take files in order. These take minutes, so they come first, and no worker is left alone with one at the end.
LONG = [
    TESTS / path
    for path in (
        "hf/test_compile_and_export.py",
        "test_docs.py",
        "study/test_torchrun.py",
        "test_damaged_files.py",
        "models/test_compile.py",
        "train/test_kill.py",
        "study/test_stacked.py",
        "train/test_loop.py",
        "train/test_distributed.py",
        "claims/test_planning.py",
    )
]
CHECKED = (TESTS / "attention", TESTS / "kernels", TESTS / "test_contract.py")

draw_chart = run_page._chart
charts: dict[str, dict[str, Any]] = {}  # by name


def chart_of_this_process(name: str, *arguments: Any) -> dict[str, Any]:
    if name not in charts:
        charts[name] = draw_chart(name, *arguments)
    return charts[name]


def pytest_collection_finish() -> None:
    gc.freeze()  # imported modules stay alive, so later garbage collections need not visit them


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put long files first, and skip tests marked `gpu` unless this is a machine for them.

    Such a machine runs them by `TRITON_INTERPRET=0 pytest -m gpu`.
    """
    items.sort(key=lambda item: item.path not in LONG)
    if os.environ["TRITON_INTERPRET"] == "1" or not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a GPU, and TRITON_INTERPRET=0"))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    is_checked = any(item.path.is_relative_to(path) for path in CHECKED)
    jaxtyping.config.update("jaxtyping_disable", not is_checked)
    is_drawn = item.get_closest_marker("slow") is not None or item.path.is_relative_to(TESTS / "report")
    run_page._chart = draw_chart if is_drawn else chart_of_this_process


@pytest.fixture
def attractor(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """Run the command as a shell would, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return command_in_process(monkeypatch, capsys)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    """A tiny model that learns squares in a second."""
    path = tmp_path_factory.mktemp("corpus") / "text.txt"
    path.write_text("".join(f"{i} squared is {i * i}\n" for i in range(400)))
    model = TransformerConfig(
        vocab_size=320, d_model=16, n_heads=2, n_layers=1, d_ff=32, max_seq_len=64, positions="rope"
    )
    return TrainConfig(
        model=model,
        task=Text(str(path)),
        n_steps=12,
        batch_size=4,
        seq_len=32,
        warmup_steps=1,
        eval_every=6,
        eval_batches=2,
    )
