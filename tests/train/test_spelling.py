"""A run carries the tokenizer of its text with it, and needs its corpus no more to be read."""

import shutil
from pathlib import Path

import pytest

from attractor.errors import InputError
from attractor.evidence.run import RunFolder
from attractor.tasks.sudoku import Sudoku
from attractor.tasks.text import Text
from attractor.train.config import Runtime, TrainConfig
from attractor.train.loop import train
from attractor.train.spelling import FILE, tokenizer_of_run

TEXT = "the same words come again and again in a text of the same few words\n" * 60
SHORT = TrainConfig(n_steps=1, warmup_steps=0, batch_size=2, seq_len=16, eval_batches=1)


def test_a_run_on_prepared_tokens_spells_where_the_corpus_is_gone(tmp_path: Path) -> None:
    from attractor.corpus.prepare import Preparation, prepare

    (tmp_path / "text.txt").write_text(TEXT)
    prepare(Preparation(str(tmp_path / "text.txt"), tmp_path / "corpus", tokenizer="bpe:300"))
    config = SHORT.replace(task=Text(str(tmp_path / "corpus")), vocab_size=384)
    train(config, tmp_path / "run", Runtime(device="cpu"))
    shutil.rmtree(tmp_path / "corpus")
    tokenizer = tokenizer_of_run(RunFolder.open(tmp_path / "run"))
    assert len(tokenizer.encode("the same words")) < len("the same words")
    assert tokenizer.decode(tokenizer.encode("the same words")) == "the same words"


def test_a_run_from_before_is_read_by_its_corpus(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", SHORT.to_dict())
    assert not (folder.path / FILE).exists()
    assert tokenizer_of_run(folder).name == "bytes"


def test_boards_spell_nothing(tmp_path: Path) -> None:
    task = Sudoku(board_size=4)
    config = SHORT.replace(task=task, seq_len=task.seq_len, vocab_size=5, causal=False)
    with pytest.raises(InputError, match="task 'text'"):
        tokenizer_of_run(RunFolder.create(tmp_path / "run", config.to_dict()))
