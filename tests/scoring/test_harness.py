"""lm-eval asks our adapter, and gets what the model itself says."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from lm_eval.api.instance import Instance

from attractor.causal import Causal, load_causal
from attractor.corpus.tokenizer import END_OF_TEXT
from attractor.errors import InputError
from attractor.scoring.harness import AttractorLM, evaluate_tasks
from attractor.scoring.windows import windows
from tiny_causal import CHOICES, CPU, N_POSITIONS, TEXTS, bytes_causal, write_llama, write_task

PAIRS = [
    ("3 squared is", " 9, and twice"),
    ("3 squared is ", "9"),
    ("", "who would have thought so?"),
    ("".join(TEXTS[:3]), " who"),
]


@pytest.fixture(scope="module")
def causal() -> Causal:
    return bytes_causal()


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Causal:
    return load_causal(write_llama(tmp_path_factory.mktemp("theirs") / "llama"), CPU)


def asked(kind: str, *arguments: tuple[object, ...]) -> list[Instance]:
    return [Instance(kind, {}, each, number) for number, each in enumerate(arguments)]


@torch.no_grad()
def direct(causal: Causal, tokens: list[int], n_scored: int) -> tuple[float, bool]:
    x = torch.tensor([tokens[-(N_POSITIONS + 1) :]])
    logits, wanted = causal.logits(x[:, :-1])[0, -n_scored:], x[0, -n_scored:]
    return -float(F.cross_entropy(logits.double(), wanted, reduction="sum")), bool((logits.argmax(-1) == wanted).all())


@pytest.mark.parametrize("kind", ["causal", "llama"])
def test_log_likelihoods_are_those_of_a_direct_computation(kind: str, request: pytest.FixtureRequest) -> None:
    causal = request.getfixturevalue(kind)
    lm = AttractorLM(causal, batch_size=2)
    for (context, text), found in zip(PAIRS, lm.loglikelihood(asked("loglikelihood", *PAIRS)), strict=True):
        before = causal.encode(context.rstrip()) or [causal.start]
        whole = ([causal.start] if not context else []) + causal.encode(context + text)
        log, greedy = direct(causal, whole, len(whole) - len(before))
        assert found[0] == pytest.approx(log, abs=1e-4)
        assert found[1] == greedy


@pytest.mark.parametrize("kind", ["causal", "llama"])
def test_a_rolling_log_likelihood_is_that_of_windows_side_by_side(kind: str, request: pytest.FixtureRequest) -> None:
    """The last window reaches back as far as it can."""
    causal = request.getfixturevalue(kind)
    texts = ["".join(TEXTS[:5]), TEXTS[5]]
    found = AttractorLM(causal).loglikelihood_rolling(asked("loglikelihood_rolling", *((text,) for text in texts)))
    for text, log in zip(texts, found, strict=True):
        tokens = [causal.start, *causal.encode(text)]
        cuts = list(windows(len(tokens) - 1, N_POSITIONS, N_POSITIONS))
        wanted = sum(direct(causal, tokens[: cut.end + 1], cut.n_scored)[0] for cut in cuts)
        assert log == pytest.approx(wanted, abs=1e-3, rel=1e-6)


def test_greedy_continuations_are_the_models_own_and_stop(causal: Causal, llama: Causal) -> None:
    prompt, wanted = TEXTS[2][:20], 12
    tokens = causal.encode(prompt)
    own = causal.model.generate(torch.tensor([tokens]), wanted, temperature=0.0, stop_token=END_OF_TEXT)[0]
    text = causal.decode([token for token in own[len(tokens) :].tolist() if token < END_OF_TEXT])
    lm = AttractorLM(causal)
    (found,) = lm.generate_until(asked("generate_until", (prompt, {"until": [], "max_gen_toks": wanted})))
    assert found == text
    stop = text[len(text) // 2]
    (short,) = lm.generate_until(asked("generate_until", (prompt, {"until": [stop], "max_gen_toks": wanted})))
    assert short == text[: text.index(stop)]

    ids = torch.tensor([llama.encode(prompt)])
    for _ in range(wanted):
        ids = torch.cat([ids, llama.logits(ids)[:, -1:].argmax(-1)], dim=1)
    (theirs,) = AttractorLM(llama).generate_until(
        asked("generate_until", (prompt, {"until": [], "max_gen_toks": wanted}))
    )
    assert theirs == llama.decode(ids[0, len(llama.encode(prompt)) :].tolist())


def test_a_prompt_that_is_too_long_keeps_its_end(causal: Causal) -> None:
    lm = AttractorLM(causal)
    long, end = "".join(TEXTS), "".join(TEXTS)[-(N_POSITIONS // 2) :]
    settings = {"until": ["\n"], "max_gen_toks": 10_000}
    assert len({*lm.generate_until(asked("generate_until", (long, settings), (end, settings)))}) == 1
    with pytest.raises(InputError, match="longer context"):
        lm.loglikelihood(asked("loglikelihood", ("a", long)))


def test_a_task_of_ones_own_is_what_the_model_says_of_its_choices(causal: Causal, tmp_path: Path) -> None:
    found = evaluate_tasks(AttractorLM(causal), ["squares"], write_task(tmp_path), limit=10)
    hits = 0
    for i, text in enumerate(TEXTS[:10]):
        so, no = (direct(causal, causal.encode(f"{text.split(',')[0]} {word}"), 3)[0] for word in CHOICES)
        hits += (so < no) == (i % 2)
    assert found["results"]["squares"]["acc,none"] == hits / 10
