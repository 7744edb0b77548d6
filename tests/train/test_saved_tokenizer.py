"""A run stores the tokenizer of its text, so reading its text does not need the corpus."""

import shutil
from pathlib import Path

import pytest

from attractor.corpus.prepare import Preparation, prepare
from attractor.errors import InputError
from attractor.runs.run_folder import RunFolder
from attractor.tasks.sudoku import Sudoku
from attractor.tasks.text import Text
from attractor.train.config import Runtime, TrainConfig
from attractor.train.loop import train
from attractor.train.saved_tokenizer import TOKENIZER_FILE, tokenizer_of_run, tokenizer_to_export
from papers.coupled_qk.glue import Glue

TEXT = "the same words come again and again in a text of the same few words\n" * 60
SHORT = TrainConfig(n_steps=1, warmup_steps=0, batch_size=2, seq_len=16, eval_batches=1)


@pytest.fixture
def prepared(tmp_path: Path) -> str:
    (tmp_path / "text.txt").write_text(TEXT)
    prepare(Preparation(str(tmp_path / "text.txt"), tmp_path / "corpus", tokenizer="bpe:300"))
    return str(tmp_path / "corpus")


def test_a_run_on_prepared_tokens_decodes_without_the_corpus(prepared: str, tmp_path: Path) -> None:
    train(SHORT.replace(task=Text(prepared), vocab_size=384), tmp_path / "run", Runtime(device="cpu"))
    shutil.rmtree(prepared)
    tokenizer = tokenizer_of_run(RunFolder.open(tmp_path / "run"))
    assert len(tokenizer.encode("the same words")) < len("the same words")
    assert tokenizer.decode(tokenizer.encode("the same words")) == "the same words"


def test_an_older_run_takes_the_tokenizer_of_its_corpus(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", SHORT.to_dict())
    assert not (folder.path / TOKENIZER_FILE).exists()
    assert tokenizer_of_run(folder).name == "bytes"


def test_a_run_on_boards_has_no_tokenizer(tmp_path: Path) -> None:
    task = Sudoku(board_size=4)
    config = SHORT.replace(task=task, seq_len=task.seq_len, vocab_size=5, causal=False)
    with pytest.raises(InputError, match="task 'text'"):
        tokenizer_of_run(RunFolder.create(tmp_path / "run", config.to_dict()))


def test_a_run_that_classifies_text_stores_its_tokenizer_and_is_no_text_run(prepared: str, tmp_path: Path) -> None:
    (tmp_path / "QNLI").mkdir()
    rows = "".join(f"{i}\tthe same words\tcome again\t{'not_' * (i % 2)}entailment\n" for i in range(20))
    for part in ("train", "dev"):
        (tmp_path / "QNLI" / f"{part}.tsv").write_text("index\tquestion\tsentence\tlabel\n" + rows)
    task = Glue(glue_task="qnli", glue_data=str(tmp_path), glue_tokenizer=prepared)
    demands = task.build(16, 0).demands
    train(SHORT.replace(task=task, **demands), tmp_path / "run", Runtime(device="cpu"))
    shutil.rmtree(prepared)
    folder = RunFolder.open(tmp_path / "run")
    kept = tokenizer_to_export(folder, TrainConfig.from_dict(folder.config))
    assert kept is not None
    assert kept.vocab_size == demands["vocab_size"]
    with pytest.raises(InputError, match="task 'text'"):
        tokenizer_of_run(folder)
