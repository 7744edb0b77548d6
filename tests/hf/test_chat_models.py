"""An instruct model keeps its chat template, special tokens, end tokens and settings through import, training,
conversion and export. The expected values come from transformers' own classes on the original folder."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from foreign import change, saved
from rich.console import Console
from rich.control import strip_control_codes
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast, set_seed

import attractor.hf.auto_classes
from attractor.cli.hugging_face import ExportArguments, export
from attractor.console import without_controls
from attractor.corpus.prepare import Preparation, prepare
from attractor.corpus.shards import PreparedCorpus
from attractor.corpus.tokenizer import ByteTokenizer
from attractor.corpus.tokenizer_settings import SETTINGS_FILE
from attractor.errors import InputError
from attractor.evaluate.causal import load_causal
from attractor.evaluate.texts.texts import score_texts
from attractor.hf import tokenizers as hf_tokenizers
from attractor.hf.convert import convert_run
from attractor.hf.import_runs import import_run
from attractor.hf.tokenizers import original_tokenizer
from attractor.models import TransformerConfig
from attractor.runs.run_folder import SEAL, RunFolder
from attractor.tasks.text import Text
from attractor.train.config import Runtime, TrainConfig
from attractor.train.loop import train
from attractor.train.saved_tokenizer import save_tokenizer, saved_settings
from in_process import Command, command_in_process
from tiny_chat import CHAT, ENDS, N_SPOKEN, PROMPT, TEMPLATE, TEXTS, write_chat

CPU = torch.device("cpu")
ROUTES = ("imported", "tuned", "converted", "tuned and converted", "again")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder with the original `chat`, the runs that descend from it, and an export of each run.

    The run `again` is imported from the export of `imported`.
    """
    place = tmp_path_factory.mktemp("place")
    import_run(write_chat(place / "chat"), place / "imported")
    (place / "texts.txt").write_text("<|endoftext|>\n".join(TEXTS))
    spelled = str(place / "imported" / "tokenizer.json")
    prepare(Preparation(str(place / "texts.txt"), place / "corpus", tokenizer=spelled))
    model = TrainConfig.from_dict(json.loads((place / "imported" / "config.json").read_text())).model
    steps: dict[str, Any] = {"n_steps": 2, "warmup_steps": 1, "batch_size": 2, "seq_len": 32, "eval_batches": 1}
    config = TrainConfig(model, Text(str(place / "corpus")), start=str(place / "imported"), lr=1e-4, **steps)
    train(config, place / "tuned", Runtime(device="cpu"))
    convert_run(place / "chat", "coupled-euler", place / "converted")
    convert_run(place / "tuned", "gated", place / "tuned and converted")
    for name in ROUTES:
        if name == "again":
            import_run(place / "imported-exported", place / name)
        arguments = ExportArguments(place / name, out=place / f"{name}-exported", self_contained=False)
        export(arguments, Console(quiet=True))
    return place


@pytest.fixture(scope="module")
def original(place: Path) -> Any:
    return AutoTokenizer.from_pretrained(place / "chat")


@pytest.mark.parametrize("route", ROUTES)
def test_an_export_has_the_tokenizer_and_the_settings_of_the_original(place: Path, original: Any, route: str) -> None:
    exported = AutoTokenizer.from_pretrained(place / f"{route}-exported")
    for chat in (CHAT, CHAT[1:]):
        for options in ({"tokenize": False}, {"add_generation_prompt": True}):
            assert exported.apply_chat_template(chat, **options) == original.apply_chat_template(chat, **options)
    for text in (PROMPT, "", " two  spaces\n"):
        assert exported(text)["input_ids"] == original(text)["input_ids"]
        pairs = [tokenizer(text, text, add_special_tokens=False)["input_ids"] for tokenizer in (exported, original)]
        assert pairs[0] == pairs[1]
    assert exported.special_tokens_map == original.special_tokens_map
    assert exported.get_added_vocab() == original.get_added_vocab()
    assert exported.padding_side == "left"
    assert exported(["a", "a b c"], padding=True)["input_ids"] == original(["a", "a b c"], padding=True)["input_ids"]
    settings, expected = (
        GenerationConfig.from_pretrained(folder).to_dict() for folder in (place / f"{route}-exported", place / "chat")
    )
    assert settings == expected
    ids = ("bos_token_id", "eos_token_id", "pad_token_id")
    stored, first = (json.loads((place / name / "config.json").read_text()) for name in (f"{route}-exported", "chat"))
    assert [stored[name] for name in ids] == [first[name] for name in ids]


def counts_of(score: Any) -> tuple[int, Any, int]:
    return score.window, score.start, score.n_tokens


def test_a_tuned_run_is_exported_completely_as_a_model_of_transformers(place: Path, original: Any) -> None:
    export(ExportArguments(place / "tuned", to="llama", out=place / "tuned-llama"), Console(quiet=True))
    exported = AutoTokenizer.from_pretrained(place / "tuned-llama")
    assert exported.apply_chat_template(CHAT) == original.apply_chat_template(CHAT)
    documents = [("text", PROMPT.encode()), ("texts", "".join(TEXTS[:4]).encode())]
    run, model = (score_texts(load_causal(place / name, CPU), documents) for name in ("tuned", "tuned-llama"))
    assert counts_of(model) == counts_of(run)
    assert model.window == 32
    assert model.nats == pytest.approx(run.nats, rel=1e-5)


def test_a_tokenizer_that_transformers_would_rebuild_is_refused(tmp_path: Path) -> None:
    """transformers splits words for every qwen2 model as Qwen's own tokenizer does, so other tokenizers are refused."""
    from attractor.corpus import bpe
    from attractor.hf.export import export_model
    from attractor.hf.foreign_export import chosen_architecture

    tokenizer = bpe.train(iter(TEXTS), 300)
    config = TransformerConfig(300, d_model=16, n_heads=2, n_layers=1, d_ff=32, positions="rope", qkv_bias=True)
    with pytest.raises(InputError, match="tokenizer must split words as transformers does for every model of qwen2"):
        export_model(config.build(0), tmp_path / "qwen2", tokenizer, to=chosen_architecture("qwen2"))
    assert not [*tmp_path.iterdir()]
    export_model(config.build(0), tmp_path / "bytes", ByteTokenizer(), to=chosen_architecture("qwen2"))
    read = AutoTokenizer.from_pretrained(tmp_path / "bytes")
    assert read("2024 it's")["input_ids"] == ByteTokenizer().encode("2024 it's").tolist()


def test_the_card_shows_how_to_chat(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export(ExportArguments(place / "imported", out=place / "whole"), Console(quiet=True))
    card = (place / "whole" / "README.md").read_text()
    code = card.partition("## How to load")[2].partition("```python\n")[2].partition("```")[0]
    exec(code.replace('"whole"', repr(str(place / "whole"))).replace("generate(", "generate(do_sample=False, "))
    assert "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant" in capsys.readouterr().out


@pytest.mark.parametrize("do_sample", [False, True])
def test_an_export_generates_the_same_text_and_stops_where_the_original_does(
    place: Path, original: Any, do_sample: bool
) -> None:
    prompt = original.apply_chat_template(CHAT, add_generation_prompt=True, return_tensors="pt")["input_ids"]
    texts = []
    for name in ("chat", "imported-exported"):
        model = AutoModelForCausalLM.from_pretrained(place / name).eval()
        set_seed(1)
        tokens = model.generate(prompt, do_sample=do_sample, max_new_tokens=30)[0, prompt.shape[1] :]
        texts.append(original.decode(tokens))
    assert texts[0] == texts[1]
    if not do_sample:
        assert len(tokens) == N_SPOKEN + 1
        assert original.decode(tokens[-1]) == ENDS[1]


def test_a_run_its_export_and_the_original_are_evaluated_alike(place: Path) -> None:
    """Criterion: window, start token and number of tokens are equal, and the likelihoods agree to rounding."""
    documents = [(str(i), text.encode()) for i, text in enumerate([*TEXTS[:3], "".join(TEXTS[:6]), PROMPT])]
    for names in (("chat", "imported", "imported-exported"), ("tuned", "tuned-exported")):
        causals = [load_causal(place / name, CPU) for name in names]
        scores = [score_texts(causal, documents, batch_size=2) for causal in causals]
        for causal, score in zip(causals, scores, strict=True):
            assert counts_of(score) == counts_of(scores[0])
            assert score.nats == pytest.approx(scores[0].nats, rel=1e-5)
            assert (causal.always_starts, causal.ends) == (True, causals[0].ends)
        assert scores[0].start == causals[0].encode_prompt("", True)[0]
    assert scores[0].window == 32  # of the run that was trained on windows of 32 tokens


@pytest.fixture
def attractor(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: Path) -> Command:
    monkeypatch.chdir(place)
    return command_in_process(monkeypatch, capsys)


def printed(text: str) -> str:
    """Return the text as a console prints it, which drops or spells control characters; a random model draws some."""
    return without_controls(strip_control_codes(text)) + "\n"


BOMBS = {
    "loops": "{% for i in range(9999) %}{% for j in range(9999) %}{% for k in range(9999) %}{% endfor %}"
    "{% endfor %}{% endfor %}",
    "repeats": "{{ 'x' * 10**11 }}",
    "doubles": "{% set t = namespace(s='x') %}{% for i in range(60) %}{% set t.s = t.s + t.s %}{% endfor %}",
    "raises": "{{ raise_exception('no') }}",
    "divides": "{{ 1 // 0 }}",
}


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="time and memory are limited on Linux alone")
@pytest.mark.parametrize("bomb", BOMBS)
def test_a_chat_template_ends_at_a_limit(original: Any, monkeypatch: pytest.MonkeyPatch, bomb: str) -> None:
    monkeypatch.setattr(hf_tokenizers, "TEMPLATE_SECONDS", 1.0)
    monkeypatch.setattr(hf_tokenizers, "TEMPLATE_BYTES", 64 << 20)
    with pytest.raises(InputError, match="chat_template must render a message, and fails"):
        hf_tokenizers.render_chat(original, CHAT, chat_template=BOMBS[bomb])
    assert hf_tokenizers.render_chat(original, CHAT).startswith("<s>")


def test_generate_applies_the_chat_template_and_stops_at_any_end_token(
    attractor: Command, place: Path, original: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model has no repetition penalty, since the command does not apply it. For the last model, which has one, the
    command says so."""
    import_run(write_chat(tmp_path / "chat", penalty=None), tmp_path / "run")
    (message,) = CHAT[1:]
    prompt = original.apply_chat_template([message], add_generation_prompt=True, return_tensors="pt")["input_ids"]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "chat").eval()
    n_new = 20
    tokens = model.generate(prompt, do_sample=False, max_new_tokens=n_new)[0, prompt.shape[1] :]
    capsys.readouterr()  # transformers shows the progress of saving
    run, asked = str(tmp_path / "run"), ("--prompt", message["content"], "--temperature=0", f"--max-new-tokens={n_new}")
    code, out, err = attractor("generate", run, "--chat", *asked)
    assert (code, err) == (0, "")
    said, _, answer = out.partition("\n")
    assert "begins with '<s>'" in said
    assert "ends at '<|im_end|>' or '<|endoftext|>'" in said
    assert answer == printed(original.decode(tokens, skip_special_tokens=True))

    chat = original.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True).removeprefix("<s>")
    for text, n_spoken in ((PROMPT, n_new), (chat, N_SPOKEN)):
        prompt = original(text, return_tensors="pt")["input_ids"]
        tokens = model.generate(prompt, do_sample=False, max_new_tokens=n_new)[0, prompt.shape[1] :]
        code, out, _ = attractor("generate", run, "--prompt", text, "--temperature=0", f"--max-new-tokens={n_new}")
        assert code == 0
        assert out.partition("\n")[2] == printed(text + original.decode(tokens[:n_spoken], skip_special_tokens=True))
    code, out, _ = attractor("generate", "imported", "--max-new-tokens=2")
    assert code == 0
    assert "not applied: repetition_penalty" in out


def test_sampling_settings_are_the_defaults_of_generate(attractor: Command) -> None:
    first = attractor("generate", "imported", "--max-new-tokens=12", "--seed=3")
    same = ("--temperature=0.7", "--top-k=20", "--top-p=0.8")
    assert attractor("generate", "imported", "--max-new-tokens=12", "--seed=3", *same) == first
    assert attractor("generate", "imported", "--max-new-tokens=12", "--seed=3", "--temperature=5") != first


def test_chats_are_prepared_and_scored_with_their_special_tokens(
    attractor: Command, place: Path, original: Any, tmp_path: Path
) -> None:
    chats = [[*CHAT, {"role": "assistant", "content": text}] for text in TEXTS]
    rendered = [{"text": original.apply_chat_template(chat, tokenize=False)} for chat in chats]
    (tmp_path / "chats.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rendered))
    prepared = ("data", "prepare", str(tmp_path / "chats.jsonl"), "--out", str(tmp_path / "corpus"), "--special-tokens")
    assert attractor(*prepared, "--tokenizer", "imported/tokenizer.json")[0] == 0
    corpus = PreparedCorpus.open(tmp_path / "corpus")
    documents = [tokens.tolist() for side in (corpus.train, corpus.valid) for tokens in side.documents()]
    expected = [[*original.apply_chat_template(chat)["input_ids"], 0] for chat in chats]
    assert sorted(documents) == sorted(expected)
    code, out, _ = attractor("evaluate", "imported", "--on", str(tmp_path / "corpus"), "--out", str(tmp_path / "out"))
    assert code == 0
    assert "imported: texts are predicted after '<s>'; tokens that end a text: '<|im_end|>' or '<|endoftext|>'" in out
    (row,) = json.loads((tmp_path / "out" / "evaluation.json").read_text())["rows"]
    assert row["n_tokens"] == sum(len(tokens) - 1 for tokens in corpus.valid.documents())
    assert row["start"] == 1
    code, _, err = attractor(*prepared)
    assert code == 2
    assert "special_tokens must be left out with a tokenizer that has no special tokens" in err


def unsealed_copy(run: Path, copy: Path) -> Path:
    """Copy a run and remove its seal, which runs of earlier versions lack."""
    shutil.copytree(run, copy)
    (copy / SEAL).unlink()
    return copy


def test_a_tokenizer_that_its_class_rebuilds_has_the_token_ids_of_the_class(tmp_path: Path) -> None:
    """Criterion: token ids are those of LlamaTokenizer, which splits words differently from this tokenizer.json."""
    saved(tmp_path / "llama")
    (tmp_path / "llama" / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "LlamaTokenizer"}))
    run = import_run(tmp_path / "llama", tmp_path / "run")
    export(ExportArguments(run.path, out=tmp_path / "exported", self_contained=False), Console(quiet=True))
    original, exported = (AutoTokenizer.from_pretrained(tmp_path / name) for name in ("llama", "exported"))
    texts = ("the cat", "<s>the", "a</s> can  the", "Q!", "")
    expected = [original(text)["input_ids"] for text in texts]
    settings = saved_settings(run.path)
    assert settings is not None
    assert [settings.spell(text) for text in texts] == expected
    assert [exported(text)["input_ids"] for text in texts] == expected
    as_stored = PreTrainedTokenizerFast.from_pretrained(tmp_path / "llama")
    assert [as_stored(text)["input_ids"] for text in texts] != expected


def test_without_transformers_the_files_are_read_as_they_are(
    place: Path, original: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    run = import_run(place / "chat", tmp_path / "run")
    monkeypatch.undo()
    settings = saved_settings(run.path)
    assert settings is not None
    assert settings.reader is None
    assert settings.spell(PROMPT) == original(PROMPT)["input_ids"]
    tokenizer = original_tokenizer(settings)
    assert tokenizer.apply_chat_template(CHAT) == original.apply_chat_template(CHAT)
    assert tokenizer.pad_token_id == original.pad_token_id
    assert settings.stops == tuple(original.convert_tokens_to_ids([*ENDS]))


def test_the_end_of_a_document_in_training_ends_text_as_well(place: Path, tmp_path: Path) -> None:
    """Criterion: the tuned model stops at <|im_end|>, as the original, and at <|endoftext|>, which ends training
    documents."""
    shutil.copytree(place / "chat", tmp_path / "chat")
    for generation in ({"eos_token_id": 4, "temperature": 0.7}, None):
        file = tmp_path / "chat" / "generation_config.json"
        file.unlink() if generation is None else file.write_text(json.dumps(generation))
        run = import_run(tmp_path / "chat", tmp_path / f"run-{generation is None}")
        tuned = RunFolder.create(tmp_path / f"tuned-{generation is None}", {})
        save_tokenizer(tuned, Text(str(place / "corpus")).build(32, 0), run.path)
        settings, kept = saved_settings(run.path), saved_settings(tuned.path)
        assert settings is not None
        assert kept is not None
        assert (settings.stops, kept.stops) == ((4,), (4, 0))
        expected = generation or {"bos_token_id": 1, "pad_token_id": 2}
        assert kept.generation_config == expected | {"eos_token_id": [4, 0]}


def test_templates_are_read_from_any_file_that_may_hold_them(place: Path, tmp_path: Path) -> None:
    for name in ("in the configuration", "several"):
        folder = shutil.copytree(place / "chat", tmp_path / name)
        (folder / "chat_template.jinja").unlink()
        several = [{"name": "default", "template": TEMPLATE}, {"name": "loud", "template": "AH"}]
        change(folder / "tokenizer_config.json", chat_template=several if name == "several" else TEMPLATE)
        expected = AutoTokenizer.from_pretrained(folder)
        import_run(folder, tmp_path / f"{name} run")
        chat = load_causal(tmp_path / f"{name} run", CPU).chat_tokenizer
        assert chat is not None
        assert chat().chat_template == expected.chat_template
        assert chat().apply_chat_template(CHAT, tokenize=False) == expected.apply_chat_template(CHAT, tokenize=False)


def test_code_that_a_folder_names_is_left_out(place: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(place / "chat", tmp_path / "chat")
    code = {"auto_map": {"AutoTokenizer": ["evil.Evil", None]}, "tokenizer_class": "Evil", "vocab_file": "/etc/passwd"}
    change(folder / "tokenizer_config.json", **code)
    run = import_run(folder, tmp_path / "run")
    assert not [name for name in ("evil", "Evil", "passwd") if name in (run.path / SETTINGS_FILE).read_text()]
    facts = json.loads((run.path / SETTINGS_FILE).read_text())
    facts["tokenizer_config"] |= code  # as in a run from an untrusted source
    (run.path / SETTINGS_FILE).write_text(json.dumps(facts))
    (run.path / SEAL).unlink()
    settings = saved_settings(run.path)
    assert settings is not None
    assert "evil" not in json.dumps(settings.files).lower()


def test_ids_of_minus_one_mean_no_token(place: Path, tmp_path: Path) -> None:
    """The first Llama models have such a pad_token_id."""
    folder = shutil.copytree(place / "chat", tmp_path / "chat")
    (folder / "generation_config.json").unlink()
    change(folder / "config.json", pad_token_id=-1, eos_token_id=-1)
    settings = saved_settings(import_run(folder, tmp_path / "run").path)
    assert settings is not None
    assert (settings.stops, settings.config["pad_token_id"]) == ((4,), -1)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "ids": ({"generation_config": {"eos_token_id": ["two"]}}, "eos_token_id of .* must be an id of a token or a list"),
    "template": ({"tokenizer_config": {"chat_template": 3}}, "chat_template of .* must be a text or a list of named"),
    "token": ({"tokenizer_config": {"bos_token": 1}}, "bos_token of .* must be the text of a token, got 1"),
    "further tokens": ({"tokenizer_config": {"extra_special_tokens": 7}}, "extra_special_tokens of .* must be a list"),
    "sampling": ({"generation_config": {"top_p": "most"}}, "top_p of .* must be a number, got 'most'"),
    "part": ({"config": []}, "config of .* must be a JSON object"),
    "post-processor": (
        {"tokenizer": {"post_processor": 3}},
        "post_processor and the other fields of tokenizer.json must be as",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_damaged_settings_are_refused_in_one_line(name: str, attractor: Command, place: Path, tmp_path: Path) -> None:
    changes, said = REFUSED[name]
    run = unsealed_copy(place / "imported", tmp_path / "run")
    facts = json.loads((run / SETTINGS_FILE).read_text())
    (run / SETTINGS_FILE).write_text(json.dumps(facts | changes))
    with pytest.raises(InputError, match=said):
        load_causal(run, CPU)
    code, _, err = attractor("generate", str(run), "--max-new-tokens=1")
    assert code == 2
    assert len(err.splitlines()) == 1
    (run / SETTINGS_FILE).write_text("[")
    with pytest.raises(InputError, match="is damaged: it must hold one JSON object; import the model anew"):
        load_causal(run, CPU)


def test_a_template_that_refuses_a_message_ends_in_one_line(attractor: Command, place: Path, tmp_path: Path) -> None:
    run = unsealed_copy(place / "imported", tmp_path / "run")
    facts = json.loads((run / SETTINGS_FILE).read_text())
    facts["tokenizer_config"]["chat_template"] = "{{ raise_exception('no users here') }}"
    (run / SETTINGS_FILE).write_text(json.dumps(facts))
    code, _, err = attractor("generate", str(run), "--chat", "--prompt", "Hello")
    assert code == 2
    assert "chat_template must render a message" in err
    assert "no users here" in err
