"""Our adapter for lm-eval answers its requests as the model itself does."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lm_eval.api.instance import Instance

from attractor.corpus.tokenizer import END_OF_TEXT
from attractor.errors import InputError
from attractor.evaluate.causal import Causal, load_causal
from attractor.evaluate.texts.harness import AttractorLM, evaluate_tasks
from attractor.runs.run_folder import RunFolder
from attractor.train.saved_tokenizer import tokenizer_of_run
from tiers import fast_alone
from tiny_causal import CHOICES, CPU, N_POSITIONS, TEXTS, bytes_causal, write_run, write_task
from tiny_chat import CHAT, N_SPOKEN, TEMPLATE, write_chat

PAIRS = [("3 squared is", " 9, and twice"), ("3 squared is ", "9"), ("", "who would have thought so?")]


@pytest.fixture(scope="module")
def causal() -> Causal:
    return bytes_causal()


def asked(kind: str, *arguments: tuple[object, ...]) -> list[Instance]:
    return [Instance(kind, {}, request, number) for number, request in enumerate(arguments)]


@torch.no_grad()
def log_likelihood(causal: Causal, tokens: list[int], n_scored: int) -> float:
    """Return the log-likelihood of the last `n_scored` tokens."""
    x = torch.tensor([tokens])
    return -float(F.cross_entropy(causal.logits(x[:, :-1])[0, -n_scored:], x[0, -n_scored:], reduction="sum"))


def test_a_prompt_that_is_too_long_keeps_its_end(causal: Causal) -> None:
    lm = AttractorLM(causal)
    long, end = "".join(TEXTS), "".join(TEXTS)[-(N_POSITIONS // 2) :]
    settings = {"until": ["\n"], "max_gen_toks": N_POSITIONS // 2}
    assert len({*lm.generate_until(asked("generate_until", (long, settings), (end, settings)))}) == 1
    with pytest.raises(InputError, match="longer context"):
        lm.loglikelihood(asked("loglikelihood", ("a", long)))


def test_unsupported_settings_are_refused(causal: Causal) -> None:
    for window, settings, said in (
        (None, {"max_gen_toks": N_POSITIONS}, "max_gen_toks must be .* less than 64, .* got 64; give a smaller number"),
        (16, {"max_gen_toks": 16}, "less than 16, .* got 16; give a longer --window or a smaller number"),
        (None, {"num_beams": 2}, "unknown setting of generation 'num_beams'"),
    ):
        lm = AttractorLM(causal, window)
        with pytest.raises(InputError, match=said):
            lm.generate_until(asked("generate_until", ("3 squared", settings)))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a run on bytes and an imported instruct model, each with its export."""
    from attractor.hf.export import export_model
    from attractor.hf.import_runs import import_run
    from attractor.train.finished import finished_run
    from attractor.train.saved_tokenizer import saved_settings

    place = tmp_path_factory.mktemp("place")
    write_run(place / "bytes", n_steps=20)
    import_run(write_chat(place / "chat"), place / "imported")
    for name in ("bytes", "imported"):
        run = finished_run(place / name, CPU)
        options = {"settings": saved_settings(place / name), "trained_length": run.config.seq_len}
        tokenizer = tokenizer_of_run(RunFolder.open(place / name))
        export_model(run.model, place / f"{name}-exported", tokenizer, self_contained=False, **options)
    return place


# The folders for our adapter and for lm-eval's own.
PAIRED = {"run": ("bytes", "bytes-exported"), "export": ("bytes-exported", "bytes-exported")}
PAIRED |= {"imported": ("imported", "chat"), "imported, exported": ("imported", "imported-exported")}
PAIRED |= {"export of the imported": ("imported-exported", "chat"), "original": ("chat", "chat")}


@pytest.fixture(params=fast_alone(PAIRED, "run", "imported", "original"))
def both(request: pytest.FixtureRequest, place: Path) -> Callable[[int], tuple[AttractorLM, Any]]:
    from lm_eval.models.huggingface import HFLM
    from transformers import AutoModelForCausalLM, AutoTokenizer

    import attractor.hf.auto_classes  # noqa: F401  (transformers then knows attractor's models)

    ours, theirs = (place / name for name in PAIRED[request.param])

    def adapters(window: int) -> tuple[AttractorLM, Any]:
        model, tokenizer = AutoModelForCausalLM.from_pretrained(theirs), AutoTokenizer.from_pretrained(theirs)
        hugging_face = HFLM(pretrained=model.eval(), tokenizer=tokenizer, max_length=window, batch_size=1)
        return AttractorLM(load_causal(ours, CPU), window), hugging_face

    return adapters


SAID = ["".join(TEXTS[:2]), TEXTS[3], "<s>3 squared<|im_end|> is <|endoftext|> ", "x", "a\u6f22"]
Adapters = Callable[[int], tuple[AttractorLM, Any]]


def test_log_likelihoods_are_those_of_the_other_adapter(both: Adapters) -> None:
    """The requests are rolling windows of several lengths, texts that name special tokens, and pairs with and without a
    context."""
    for window in (17, 48):
        ours, theirs = both(window)
        requests = asked("loglikelihood_rolling", *((text,) for text in SAID))
        expected = theirs.loglikelihood_rolling(requests, disable_tqdm=True)
        assert ours.loglikelihood_rolling(requests) == pytest.approx(expected, abs=1e-3, rel=1e-5)
    pairs = asked("loglikelihood", *PAIRS, ("<s>3 squared", "<|im_end|> 9"))
    answers = ours.loglikelihood(pairs), theirs.loglikelihood(pairs, disable_tqdm=True)
    for (log, greedy), (expected, is_greedy) in zip(*answers, strict=True):
        assert log == pytest.approx(expected, abs=1e-3)
        assert greedy == is_greedy


def test_continuations_are_those_of_the_other_adapter(both: Adapters) -> None:
    """A long prompt loses its beginning, so that 30 new tokens fit; stop strings may begin and end within tokens."""
    ours, theirs = both(48)
    for prompt in ("".join(TEXTS[:2]), "3 squared", SAID[2]):
        settings = {"until": [], "max_gen_toks": 30}
        (whole,) = theirs.generate_until(asked("generate_until", (prompt, dict(settings))), disable_tqdm=True)
        assert ours.generate_until(asked("generate_until", (prompt, settings))) == [whole]
        stops = [whole[i : i + 3] for i in (1, 4, 7, 11) if whole[i:]]
        requests = asked("generate_until", *((prompt, settings | {"until": [stop, "@@@"]}) for stop in stops))
        copies = asked("generate_until", *((prompt, settings | {"until": [stop, "@@@"]}) for stop in stops))
        assert ours.generate_until(requests) == theirs.generate_until(copies, disable_tqdm=True)


def test_all_new_tokens_are_generated_unless_a_stop_ends_them(causal: Causal) -> None:
    """The prompt fills the window of 48 tokens, of which the 30 new ones are more than a half."""
    settings = {"until": [], "max_gen_toks": 30}
    lm = AttractorLM(causal, window=48)
    prompt = "".join(TEXTS[:3])
    (text,) = lm.generate_until(asked("generate_until", (prompt, settings)))
    tokens = torch.tensor([causal.encode(prompt)[-18:]])
    expected = causal.model.generate(tokens, 30, temperature=0.0)[0, 18:].tolist()
    assert not {*expected} & {END_OF_TEXT, END_OF_TEXT + 1}
    assert text == causal.decode(expected)
    stop, n_calls = text[7:12], Counter[str]()
    end = next(n for n in range(30) if stop in causal.decode(expected[:n]))
    with causal.model.embedding.register_forward_hook(lambda *_: n_calls.update(["tokens"])):
        (short,) = lm.generate_until(asked("generate_until", (prompt, settings | {"until": [stop]})))
    assert short == text[: text.index(stop)]
    assert n_calls["tokens"] == end  # generation ends with the stop, although it spans several tokens
    special = replace(causal, specials=frozenset(expected[3:5]))
    (rest,) = AttractorLM(special, window=48).generate_until(asked("generate_until", (prompt, settings)))
    assert rest == causal.decode([token for token in expected if token not in expected[3:5]])


@pytest.mark.parametrize("name", ["chat", "imported", "imported-exported"])
def test_chats_are_rendered_as_by_the_other_adapter(place: Path, name: str) -> None:
    from lm_eval.models.huggingface import HFLM
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(place / "chat")
    theirs = HFLM(pretrained=AutoModelForCausalLM.from_pretrained(place / "chat"), tokenizer=tokenizer, batch_size=1)
    ours = AttractorLM(load_causal(place / name, CPU))
    assert ours.chat_template(True) == theirs.chat_template(True) == TEMPLATE
    for chat, prompts_answer in ((CHAT, True), ([*CHAT, {"role": "assistant", "content": "It"}], False)):
        text = ours.apply_chat_template(chat, prompts_answer)
        assert text == theirs.apply_chat_template(chat, prompts_answer)
        assert ours.tok_encode(text) == theirs.tok_encode(text)
    expected = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True)["input_ids"]
    assert ours.tok_encode(ours.apply_chat_template(CHAT)) == expected
    requests = asked("generate_until", (ours.apply_chat_template(CHAT), {"until": [], "max_gen_toks": 20}))
    tokens = theirs.model.generate(torch.tensor([expected]), do_sample=False, max_new_tokens=20)[0, len(expected) :]
    assert ours.generate_until(requests) == [tokenizer.decode(tokens[:N_SPOKEN])]
    assert len(tokens) == N_SPOKEN + 1


@pytest.mark.slow
def test_a_task_is_presented_in_the_chat_template(place: Path, tmp_path: Path, causal: Causal) -> None:
    lm = AttractorLM(load_causal(place / "imported", CPU))
    seen: list[str] = []
    spelled = lm.tok_encode
    lm.tok_encode = lambda text, *args, **options: seen.append(text) or spelled(text, *args, **options)  # type: ignore
    evaluate_tasks(lm, ["squares"], write_task(tmp_path), limit=2, apply_chat_template=True)
    assert any(text.startswith("<s><|im_start|>user\n0 squared is 0<|im_end|>\n<|im_start|>assistant") for text in seen)
    with pytest.raises(InputError, match="apply_chat_template must be left out"):
        evaluate_tasks(AttractorLM(causal), ["squares"], tmp_path, limit=2, apply_chat_template=True)


def test_a_users_task_is_scored_by_the_likelihoods_of_its_choices(causal: Causal, tmp_path: Path) -> None:
    found = evaluate_tasks(AttractorLM(causal), ["squares"], write_task(tmp_path), limit=10)
    hits = 0
    for i, text in enumerate(TEXTS[:10]):
        so, no = (log_likelihood(causal, causal.encode(f"{text.split(',')[0]} {word}"), 3) for word in CHOICES)
        hits += (so < no) == (i % 2)
    assert found["results"]["squares"]["acc,none"] == hits / 10
