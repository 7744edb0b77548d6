"""A finished run on text stores samples of its model, and they change nothing else in the run."""

from pathlib import Path

import torch

from attractor.corpus.tokenizer import ByteTokenizer
from attractor.models.itrsa import ItrSAConfig
from attractor.runs.run_folder import RunFolder
from attractor.train.config import RECIPES, Runtime, TrainConfig
from attractor.train.loop import train
from attractor.train.samples import LENGTH, continuation, keep_samples

CPU = torch.device("cpu")


def finished(config: TrainConfig, path: Path) -> RunFolder:
    train(config.replace(n_steps=3, warmup_steps=1, eval_batches=1), path, Runtime(device="cpu", threads=1))
    return RunFolder.open(path)


def test_samples_are_the_same_for_the_same_run_and_change_no_other_file(tmp_path: Path) -> None:
    run = finished(RECIPES["laptop"].replace(d_model=16, n_heads=2, n_layers=1, d_ff=32), tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    state = torch.get_rng_state()
    keep_samples(run, CPU)
    samples = run.samples
    assert [sample["temperature"] for sample in samples] == [0.0, 0.8]
    assert all(len(sample["text"]) <= LENGTH for sample in samples)
    assert {path: path.read_bytes() for path in before} == before
    assert torch.equal(torch.get_rng_state(), state)

    (tmp_path / "samples.json").unlink()
    keep_samples(run, CPU)
    assert run.samples == samples
    run.write_samples([])
    run.write_samples(samples[:1])
    keep_samples(run, CPU)
    assert run.samples == samples[:1]  # existing samples are kept


def test_a_recurrent_model_of_text_is_sampled_without_a_cache() -> None:
    config = ItrSAConfig(d_model=16, n_heads=2, max_seq_len=32, causal=True, positions="rope", blank=None)
    model, tokenizer = config.replace(vocab_size=320, n_iterations=2).build(0).eval(), ByteTokenizer()
    generated = model.generate([tokenizer.encode("ab").tolist()], 5, 0.0, use_cache=False)[0, 2:].tolist()
    spelled = [token for token in generated if token < tokenizer.n_spelled and token != tokenizer.pad]
    assert continuation(model, tokenizer, "ab", 5, 0.0, 0) == tokenizer.decode(spelled)


def test_a_run_of_another_task_has_no_samples(tmp_path: Path) -> None:
    """This run has neither a checkpoint nor a tokenizer, so neither may be read."""
    run = RunFolder.create(tmp_path, {"task": {"kind": "sudoku"}})
    keep_samples(run, CPU)
    assert run.samples == []
