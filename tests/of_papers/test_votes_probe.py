"""The probe of votes counts the boards that the best of K answers solves."""

import torch

from attractor.evaluate.boards import accuracy_over_time
from attractor.models import ItrSAConfig, TransformerConfig
from attractor.tasks.sudoku import Sudoku
from attractor.train.config import TrainConfig
from papers.jacobians.probes import votes
from papers.jacobians.probes.votes import votes_of_run

MODEL = ItrSAConfig(vocab_size=5, d_model=8, n_heads=2, d_ff=16, max_seq_len=16, n_iterations=3)
CONFIG = TrainConfig(
    model=MODEL,
    task=Sudoku(n_boards=40, n_valid_boards=12, board_size=4),
    seq_len=16,
    n_steps=1,
    batch_size=8,
    warmup_steps=0,
)


def test_every_set_and_number_of_votes_is_measured(monkeypatch) -> None:
    """Criterion: the shares are those of `accuracy_over_time` for the first boards of each set, and one vote is the
    answer that the model gives without votes."""
    monkeypatch.setattr(votes, "N_BOARDS", 7)
    monkeypatch.setattr(votes, "N_ITERATIONS", 5)
    model = MODEL.build(0).eval()
    measured = votes_of_run(model, CONFIG)["votes"]
    assert measured["n_boards"] == {"valid": 7, "ood": 7}
    assert measured["n_iterations"] == 5
    for part, boards in CONFIG.build_task().sets.valid.items():
        assert list(measured["cells"][part]) == ["1", "4", "16", "64"]
        for n_votes in (1, 16):
            (point,) = accuracy_over_time(model, boards.boards[:7], boards.solutions[:7], (5,), n_votes, CONFIG.seed)
            assert measured["cells"][part][str(n_votes)] == point.cell_accuracy
            assert measured["boards"][part][str(n_votes)] == point.board_accuracy
        blank = torch.tensor(boards.boards[:7].reshape(7, -1)) == 0
        model.n_iterations = 5
        with torch.no_grad():
            logits, *_ = model(torch.tensor(boards.boards[:7].reshape(7, -1)))
        answers = logits[..., :5].argmax(-1)
        right = (answers == torch.tensor(boards.solutions[:7].reshape(7, -1)))[blank]
        assert measured["cells"][part]["1"] == float(right.double().mean())


def test_models_with_one_answer_to_a_board_are_not_measured() -> None:
    still, unrolled = MODEL.replace(blank=None), TransformerConfig(vocab_size=5, d_model=8, n_heads=2, max_seq_len=16)
    for model in (still, unrolled.replace(causal=False)):
        assert votes_of_run(model.build(0).eval(), CONFIG.replace(model=model)) == {}
