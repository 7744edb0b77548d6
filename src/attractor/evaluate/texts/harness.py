"""Evaluate any causal model with lm-eval, whose tasks ask for log-likelihoods and continuations.

Texts are cut as lm-eval's own adapter of Hugging Face's models cuts them, so that results can be compared with
published ones. The model's tokenizer reads the name of a special token as that token and puts its beginning token
first. A prompt that is too long keeps its end. A rolling log-likelihood uses adjacent windows of the model's length.
"""

import logging
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import TemplateError
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.evaluator import simple_evaluate
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.tasks import TaskManager
from lm_eval.utils import get_rolling_token_windows

from attractor.console import StartProgress, no_progress
from attractor.corpus.network import OFFLINE
from attractor.corpus.tokenizer_settings import first_id
from attractor.errors import InputError, require, unknown
from attractor.evaluate.causal import Causal
from attractor.evaluate.texts.continuation import continuation
from attractor.evaluate.texts.likelihood import Likelihood, Span, likelihoods
from attractor.evaluate.texts.windows import window_of
from attractor.hf.tokenizers import TEMPLATE_BYTES, TEMPLATE_SECONDS, limited

DEFAULT_LENGTH = 2048  # tokens, for a model without a maximum length
NEW_TOKENS = 256  # for a task that does not say how many, or half of the length of a shorter model
SAMPLING = ("temperature", "top_k", "top_p")
UNDERSTOOD = (*SAMPLING, "until", "max_gen_toks", "do_sample")


class AttractorLM(TemplateLM):
    def __init__(
        self,
        causal: Causal,
        window: int | None = None,
        batch_size: int | None = None,
        start_progress: StartProgress = no_progress,
    ) -> None:
        super().__init__()
        if causal.start is None:
            raise InputError(
                f"model must have a token that texts begin after, but '{causal.name}' has none; name its bos_token in "
                "its tokenizer_config.json"
            )
        self.causal = causal
        usual = causal.trained_length or causal.max_length or DEFAULT_LENGTH
        self.max_length = usual if window is None else window_of(causal, window)
        self.batch_size = batch_size
        self.start_progress = start_progress
        self._device = causal.device

    @property
    def eot_token_id(self) -> int:
        return self.prefix_token_id if self.causal.end is None else self.causal.end

    @property
    def prefix_token_id(self) -> int:
        """The token before a text: the beginning that the tokenizer names, or else the end of a text."""
        token = first_id(self.causal.beginning, self.causal.end, self.causal.start)
        assert token is not None
        return token

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        if add_special_tokens is None:  # a chat template may have written the beginning token already
            add_special_tokens = not string.startswith(self.causal.decode([self.prefix_token_id]))
        return self.causal.encode_prompt(string, add_special_tokens)

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer of transformers with the model's chat template; None for a model without one."""
        tokenizer = None if self.causal.chat_tokenizer is None else self.causal.chat_tokenizer()
        return None if tokenizer is None or tokenizer.chat_template is None else tokenizer

    @property
    def tokenizer_name(self) -> str:
        return self.causal.name

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        if self.tokenizer is None:
            raise InputError(
                f"apply_chat_template must be left out, since the tokenizer of '{self.causal.name}' has no chat "
                "template, got True; leave it out"
            )
        render = partial(
            self.tokenizer.apply_chat_template,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )
        with limited(TEMPLATE_SECONDS, TEMPLATE_BYTES):
            try:
                return str(render(chat_history))
            except TemplateError:  # as lm-eval's own adapter does for a template without system messages
                return str(render([message for message in chat_history if message["role"] != "system"]))

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], **_: Any
    ) -> list[tuple[float, bool]]:
        spans: list[Span] = []
        for strings, context, continuation_tokens in requests:
            if len(continuation_tokens) > self.max_length:
                raise InputError(
                    f"a continuation must have at most {self.max_length} tokens for '{self.causal.name}', got "
                    f"{len(continuation_tokens)} ({strings[1][:40]!r} ...); give a model with a longer context"
                )
            spans.append(_span([*context, *continuation_tokens], len(continuation_tokens), self.max_length))
        return [(likelihood.log, likelihood.greedy) for likelihood in self._likelihoods(spans)]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        spans, counts = [], []
        for request in requests:
            pairs = list(
                get_rolling_token_windows(self.tok_encode(*request.args), self.prefix_token_id, self.max_length, 1)
            )
            spans += [_span([*inputs, targets[-1]], len(targets), self.max_length) for inputs, targets in pairs]
            counts.append(len(pairs))
        scored = iter(self._likelihoods(spans))
        return [sum(next(scored).log for _ in range(count)) for count in counts]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Continue the prompts by max_gen_toks tokens or to a stop. A prompt keeps as many last tokens as still fit."""
        answers, advance = [], self.start_progress("continuations", len(requests))
        for request in requests:
            prompt, options = request.args
            default = NEW_TOKENS if self.max_length > NEW_TOKENS else self.max_length // 2
            settings: Mapping[str, Any] = normalize_gen_kwargs(options, default)
            self._refuse(settings)
            n_new = settings["max_gen_toks"]
            tokens = self.tok_encode(prompt)[-(self.max_length - n_new) :] or [self.prefix_token_id]
            sampling = {name: settings[name] for name in SAMPLING if settings.get(name)}
            stops = [stop for stop in settings["until"] if stop]
            answers.append(continuation(self.causal, tokens, n_new, stops, sampling))
            advance(1)
        return answers

    def _refuse(self, settings: Mapping[str, Any]) -> None:
        n_new, length = settings["max_gen_toks"], self.max_length
        longest = self.causal.max_length
        further = "a longer --window or " if longest is None or longest > length else ""
        rule = f"at least 1 and less than {length}, the tokens that '{self.causal.name}' takes with its prompt"
        require(1 <= n_new < length, "max_gen_toks", rule, n_new, f"give {further}a smaller number in the task")
        for name in settings.keys() - UNDERSTOOD:
            raise unknown("setting of generation", name, UNDERSTOOD, "in the task's generation_kwargs")

    def _likelihoods(self, spans: Sequence[Span]) -> list[Likelihood]:
        advance = self.start_progress("tokens", sum(span.n_scored for span in spans))
        return likelihoods(self.causal, spans, self.batch_size, advance)


def evaluate_tasks(
    lm: AttractorLM,
    tasks: Sequence[str],
    include_path: Path | None = None,
    n_shots: int | None = None,
    limit: int | None = None,
    apply_chat_template: bool = False,
) -> dict[str, Any]:
    """Return the results of lm-eval: `results` by task, with versions, shots and configurations.

    With a chat template, questions are messages of a user, and shots are turns of the chat."""
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    manager = _manager(tasks, include_path)
    try:
        results = simple_evaluate(
            model=lm,
            tasks=list(tasks),
            task_manager=manager,
            num_fewshot=n_shots,
            limit=limit,
            log_samples=False,
            apply_chat_template=apply_chat_template,
            fewshot_as_multiturn=apply_chat_template,
        )
    except (ConnectionError, FileNotFoundError) as error:  # raised by the datasets library for missing data
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"tasks must have their data on this machine, since {OFFLINE}, but they have not ({reason}); run them once "
            "where there is network and copy ~/.cache/huggingface, or give tasks on files of yours with --include-path"
        ) from error
    assert results is not None, "lm-eval returns None only on further processes"
    return dict(results)


def _manager(tasks: Sequence[str], include_path: Path | None) -> TaskManager:
    """Return a manager of the folder alone if it has all tasks, since indexing lm-eval's own takes a while."""
    if include_path is not None:
        if not include_path.is_dir():
            raise InputError(f"include_path must be a folder with tasks, but '{include_path}' is none; check it")
        folder_alone = TaskManager(include_path=include_path, include_defaults=False)
        if not _missing(folder_alone, tasks):
            return folder_alone
    manager = TaskManager(include_path=include_path)
    for name in _missing(manager, tasks):
        near = get_close_matches(name, manager.all_tasks, n=3)
        guess = f"did you mean {' or '.join(near)}?" if near else "'lm-eval ls tasks' shows all"
        raise InputError(f"unknown task '{name}'; {guess} (--include-path FOLDER adds tasks of your own)")
    return manager


def _missing(manager: TaskManager, tasks: Sequence[str]) -> list[str]:
    return [name for name in tasks if not manager.match_tasks([name])]


def _span(tokens: Sequence[int], n_scored: int, max_length: int) -> Span:
    """Return a span with as much context as the model takes."""
    kept = np.array(tokens[-(max_length + 1) :], dtype=np.int64)
    return Span(kept, n_scored)
