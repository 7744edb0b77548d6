"""Write the model card of an exported run, which the Hub shows above the model's files.

The head is YAML for programs, the rest Markdown for people. The card repeats what the run folder says about the
exported weights; anything unknown is left out and never guessed. Names and descriptions come from users, so they are
quoted in the head and escaped below it. Paths are shortened to their last part.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from attractor.console import in_bytes, in_time, with_prefix
from attractor.runs.configuration import dotted_fields
from attractor.runs.run_folder import RunFolder
from attractor.verdict.words import on_one_line

SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~$&])")
MEASURES = {"valid_loss": "loss (nats)", "context_gain": "gain from context (nats)"}
NO_SETTING = ("label", "model", "task", "start", "data")  # fields that other sections of the card show
CHAT = (
    'chat = [{"role": "user", "content": "Hello"}]',
    "tokens = tokenizer.apply_chat_template(",
    '    chat, add_generation_prompt=True, return_dict=True, return_tensors="pt"',
    ")",
)


@dataclass(frozen=True)
class Exported:
    """Facts about an export that the run folder does not hold."""

    name: str  # of the exported folder
    step: int | None = None  # of the weights
    mechanism: Sequence[str] = ()  # a sentence for each part that is not standard
    sources: Sequence[str] = ()  # papers that introduced the mechanism
    training_flops: float | None = None
    dtype: str | None = None
    max_length: int | None = None  # None means no limit
    has_tokenizer: bool = False
    has_chat_template: bool = False
    self_contained: bool = True
    is_foreign: bool = False  # the model is one of transformers' own architectures


def model_card(run: RunFolder, exported: Exported) -> str:
    facts = RunFacts.of(run, exported)
    sections = (
        ("", introduction(facts)),
        ("Mechanism", mechanism(facts)),
        ("Size", table(("what", "value"), size(facts))),
        ("Origin", origin(facts)),
        ("Data", data(facts)),
        ("Training", table(("what", "value"), training(facts))),
        ("Results", results(facts)),
        ("Environment", table(("what", "value"), environment(facts))),
        ("Limits", bullets(limits(facts))),
        ("How to load", loading(facts)),
        ("How to cite", citation(facts)),
    )
    body = "\n\n".join(f"## {title}\n\n{text}" if title else text for title, text in sections if text)
    return f"---\n{head(facts)}---\n\n# {escaped(exported.name)}\n\n{body}\n"


@dataclass(frozen=True)
class RunFacts:
    """What the card uses of a run folder."""

    config: dict[str, Any]
    summary: dict[str, Any]
    environment: dict[str, Any]
    validated: dict[str, Any]  # the line of metrics that measured the exported weights
    exported: Exported

    @classmethod
    def of(cls, run: RunFolder, exported: Exported) -> "RunFacts":
        lines = [line for line in run.metrics() if line["step"] == exported.step and "valid_loss" in line]
        return cls(run.config, run.summary() or {}, run.environment, lines[-1] if lines else {}, exported)

    @property
    def model(self) -> dict[str, Any]:
        return self.config.get("model") or {}

    @property
    def task(self) -> dict[str, Any]:
        return self.config.get("task") or {}

    @property
    def attention(self) -> str:
        """The name of the mechanism, or an empty string."""
        named = self.model.get("attention")
        return named if isinstance(named, str) else ""

    @property
    def labels(self) -> bool:
        return self.model.get("n_classes") is not None

    @property
    def trained(self) -> bool:
        """Whether the run trained. A run of no steps holds an imported or converted model."""
        return self.summary.get("steps") != 0

    @property
    def origin(self) -> dict[str, Any]:
        return self.summary.get("imported") or self.summary.get("converted") or {}

    @property
    def metric(self) -> str:
        return (self.summary.get("metric") or {}).get("name", "")

    @property
    def data_name(self) -> str:
        if not self.trained:
            return ""
        named = self.task.get("corpus") or self.task.get("kind") or ""
        return without_folders(str(named))

    @property
    def measures(self) -> dict[str, float]:
        """The measures of the exported weights on the validation data."""
        values = {name: value for name, value in self.validated.items() if name not in ("step", "tokens")}
        return {name: value for name, value in values.items() if isinstance(value, int | float)}


def head(facts: RunFacts) -> str:
    """Return the YAML head. Texts are quoted as in JSON, which is valid YAML."""
    tags = dict.fromkeys(["attractor", "attention", *filter(None, [facts.attention, facts.model.get("family")])])
    lines = ["library_name: transformers"]
    if task := pipeline(facts):
        lines.append(f"pipeline_tag: {task}")
    lines += ["tags:", *(f"- {quoted(tag)}" for tag in tags)]
    value = facts.measures.get(facts.metric)
    if task and value is not None and facts.data_name:
        lines += [
            "model-index:",
            f"- name: {quoted(facts.exported.name)}",
            "  results:",
            f"  - task: {{type: {task}}}",
            f"    dataset: {{type: {quoted(facts.data_name)}, name: {quoted(facts.data_name)}}}",
            "    metrics:",
            f"    - {{type: {quoted(facts.metric)}, value: {value:.6f}}}",
        ]
    return "\n".join(lines) + "\n"


def pipeline(facts: RunFacts) -> str:
    """Return the Hub's task for the model, or an empty string where its tokens are no text."""
    if not facts.exported.has_tokenizer:
        return ""
    return "text-classification" if facts.labels else "text-generation"


def introduction(facts: RunFacts) -> str:
    kind = "A language model" if facts.exported.has_tokenizer else "A model of sequences of tokens"
    kind = "A model that labels sequences" if facts.labels else kind
    n_parameters = facts.summary.get("n_parameters")
    of_size = f" of {with_prefix(n_parameters)} parameters" if n_parameters else ""
    by = f" with {escaped(facts.attention)} attention" if facts.attention else ""
    on = f" on {escaped(facts.data_name)}" if facts.data_name else ""
    origin = f"trained{on} with" if facts.trained else "imported by"
    return f"{kind}{of_size}{by}, {origin} [attractor](#how-to-cite)."


def mechanism(facts: RunFacts) -> str:
    if facts.exported.mechanism:
        return bullets(map(escaped, facts.exported.mechanism))
    return "The model uses standard softmax attention." if facts.attention == "standard" else ""


def size(facts: RunFacts) -> dict[str, str]:
    known = {"parameters": _counted(facts.summary.get("n_parameters")), "stored as": facts.exported.dtype}
    return {name: value for name, value in known.items() if value} | settings(facts.model)


def origin(facts: RunFacts) -> str:
    if not facts.origin:
        return ""
    verb = "Imported" if "imported" in facts.summary else "Converted"
    return f"{verb}, not trained here:\n\n{table(('what', 'value'), settings(facts.origin))}"


def data(facts: RunFacts) -> str:
    if not facts.trained:
        return ""
    described = str(facts.summary.get("data") or "")
    for value in facts.task.values():
        if isinstance(value, str):
            described = described.replace(value, without_folders(value))
    paragraphs = [escaped(described)] if described else [escaped(facts.data_name)] if facts.data_name else []
    if facts.config.get("start"):
        paragraphs.append(
            f"Training started from the weights of run {escaped(without_folders(str(facts.config['start'])))}."
        )
    if facts.config.get("data"):
        paragraphs.append(f"SHA-256 of the data: `{plain(str(facts.config['data']))}`.")
    return "\n\n".join(paragraphs)


def training(facts: RunFacts) -> dict[str, str]:
    if not facts.trained:
        return {}
    summary, flops = facts.summary, facts.exported.training_flops
    seconds, memory = summary.get("wall_seconds"), summary.get("peak_memory_bytes")
    rows: dict[str, str | None] = {
        "steps": _counted(summary.get("steps")),
        "exported weights are of step": _counted(facts.exported.step),
        "tokens": _counted(summary.get("tokens")),
        "training FLOPs": None if flops is None else f"{flops:.2e}",
        **settings({name: value for name, value in facts.config.items() if name not in NO_SETTING}),
        "skipped steps": _counted(summary.get("skipped_steps")),
        "training time": None if seconds is None else in_time(seconds),
        "peak memory": None if memory is None else in_bytes(memory),
    }
    return {name: value for name, value in rows.items() if value is not None}


def results(facts: RunFacts) -> str:
    """Show the measures of the exported weights."""
    if not facts.measures:
        return ""
    rows = {MEASURES.get(name, name): shown(value) for name, value in facts.measures.items()}
    text = "The exported weights on the validation data of the run:\n\n" + table(("measure", "value"), rows)
    if facts.trained:
        text += "\n\nOne seed: how much these numbers would vary from seed to seed is unknown."
    return text


def environment(facts: RunFacts) -> dict[str, str]:
    return settings(dotted_fields(facts.environment) | {"device": facts.summary.get("device")})


def limits(facts: RunFacts) -> list[str]:
    seq_len, longest = facts.config.get("seq_len"), facts.exported.max_length
    paragraphs = []
    if longest is not None:
        paragraphs.append(f"The model takes sequences of at most {longest:,} tokens, since it has no more positions.")
    if seq_len and facts.trained:
        paragraphs.append(f"It was trained on sequences of {seq_len:,} tokens, and measured on none that are longer.")
    if not facts.summary:
        paragraphs.append("The run was not finished when this was written.")
    measured = "All that was measured stands above" if facts.measures else "Nothing was measured here"
    paragraphs.append(
        f"{measured}. Truth, safety, bias, other languages and other kinds of text than its training data's were not "
        "tested."
    )
    return paragraphs


def loading(facts: RunFacts) -> str:
    auto = "AutoModelForSequenceClassification" if facts.labels else "AutoModelForCausalLM"
    exported, kept = facts.exported, facts.exported.has_tokenizer
    name = json.dumps(plain(exported.name))
    trust = ", trust_remote_code=True" if exported.self_contained and not exported.is_foreign else ""
    lines = [f"from transformers import {auto}{', AutoTokenizer' if kept else ''}"]
    if not exported.self_contained and not exported.is_foreign:
        lines.append("from attractor.hf import AttractorForCausalLM  # so that transformers knows the model")
    lines += ["", f"folder = {name}  # the path of this folder, or its name on the Hub"]
    lines.append(f"model = {auto}.from_pretrained(folder{trust})")
    if kept:
        lines.append(f"tokenizer = AutoTokenizer.from_pretrained(folder{trust})")
    if kept and not facts.labels:
        lines += CHAT if exported.has_chat_template else ['tokens = tokenizer("Once", return_tensors="pt")']
        lines.append("print(tokenizer.decode(model.generate(**tokens, max_new_tokens=40)[0]))")
    where = "This needs attractor installed"
    if exported.self_contained or exported.is_foreign:
        where = f"The code of the model is {'part of transformers' if exported.is_foreign else 'in its folder'}"
    return f"{where}.\n\n```python\n" + "\n".join(lines) + "\n```"


def citation(facts: RunFacts) -> str:
    version = (facts.environment.get("versions") or {}).get("attractor")
    commit = facts.environment.get("commit")
    entry = ["  title = {attractor: attention as a dynamical system}"]
    entry += [f"  version = {{{plain(str(version))}}}"] if version else []
    entry += [f"  note = {{commit {plain(str(commit))}}}"] if commit else []
    paragraphs = ["```bibtex\n@software{attractor,\n" + ",\n".join(entry) + "\n}\n```"]
    if facts.environment.get("dirty"):
        paragraphs.append("The source that trained it had changes that are in no commit.")
    if facts.exported.sources:
        paragraphs.append(f"The mechanism: {escaped(', '.join(facts.exported.sources))}.")
    return "\n\n".join(paragraphs)


def settings(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields of a configuration that have a value."""
    fields = {name: value for name, value in dotted_fields(config).items() if value is not None}
    return {name: without_folders(v) if isinstance(v, str) else json.dumps(v) for name, v in fields.items()}


def table(headings: tuple[str, str], rows: Mapping[str, str]) -> str:
    if not rows:
        return ""
    lines = [headings, ("---", "---"), *((escaped(name), escaped(value)) for name, value in rows.items())]
    return "\n".join(f"| {name} | {value} |" for name, value in lines)


def bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def shown(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def without_folders(text: str) -> str:
    """Return a path's last part, and any other text as it is."""
    return PurePath(text).name if "/" in text else text


def plain(text: str) -> str:
    """Return the text on one line, without backticks and unprintable characters."""
    return on_one_line(text).replace("`", "'")


def escaped(text: str) -> str:
    """Return the text on one line, with Markdown's special characters escaped."""
    return SPECIAL.sub(r"\\\1", on_one_line(text))


def quoted(text: str) -> str:
    return json.dumps(plain(text), ensure_ascii=False)


def _counted(value: int | None) -> str | None:
    return None if value is None else f"{value:,}"
