"""Write the model card of an exported run, which the Hub shows above the model's files.

The head is YAML for programs, the rest Markdown for people. The card repeats what the run folder says about the
exported weights; anything unknown is left out and never guessed. Names come from users, so they are quoted in the head
and escaped below it. Paths are shortened to their last part.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from attractor.console import with_prefix
from attractor.runs.configuration import dotted_fields
from attractor.runs.run_folder import RunFolder
from attractor.verdict.words import on_one_line

SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~$&])")
NOT_TRAINED = ("model", "seed")  # what the configuration of an imported or converted model says of the model itself
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
    dtype: str | None = None
    max_length: int | None = None  # None means no limit
    has_tokenizer: bool = False
    has_chat_template: bool = False
    self_contained: bool = True
    is_foreign: bool = False  # the model is one of transformers' own architectures
    own_code: tuple[str, ...] = ()  # what attractor does not define, as FILE.py:NAME or package.module:NAME
    license: str | None = None  # these are said by the user alone
    base_model: str | None = None
    datasets: tuple[str, ...] = ()


def model_card(run: RunFolder, exported: Exported) -> str:
    summary = run.summary() or {}
    trained = summary.get("steps") != 0  # a run of no steps holds an imported or converted model
    labels = (run.config.get("model") or {}).get("n_classes") is not None
    lines = [line for line in run.metrics() if line["step"] == exported.step and "valid_loss" in line]
    measured = {name: value for name, value in (lines[-1] if lines else {}).items() if name not in ("step", "tokens")}
    data = data_name(run.config) if trained else ""
    metric = (summary.get("metric") or {}).get("name", "")
    sections = (
        ("", introduction(run.config, summary, exported, data, labels)),
        ("Results", results(measured, trained)),
        ("Settings", table(settings(run, summary, exported, trained))),
        ("Limits", "\n".join(f"- {limit}" for limit in limits(run.config, summary, exported, trained, bool(measured)))),
        ("How to load", loading(exported, labels)),
    )
    body = "\n\n".join(f"## {title}\n\n{text}" if title else text for title, text in sections if text)
    head = metadata(run.config, exported, data, labels, metric, measured.get(metric))
    return f"---\n{head}---\n\n# {escaped(exported.name)}\n\n{body}\n"


def metadata(
    config: Mapping[str, Any], exported: Exported, data: str, labels: bool, metric: str, value: float | None
) -> str:
    """Return the YAML head. Texts are quoted as in JSON, which is valid YAML."""
    known = config.get("model") or {}
    tags = dict.fromkeys(["attractor", "attention", *filter(None, [attention_of(config), known.get("family")])])
    lines = ["library_name: transformers"]
    stated = {"license": exported.license, "base_model": exported.base_model}
    task = ("text-classification" if labels else "text-generation") if exported.has_tokenizer else ""
    lines += [f"{name}: {quoted(value)}" for name, value in stated.items() if value]
    if exported.datasets:
        lines += ["datasets:", *(f"- {quoted(name)}" for name in exported.datasets)]
    if task:  # tokens without a tokenizer are no text
        lines.append(f"pipeline_tag: {task}")
    lines += ["tags:", *(f"- {quoted(tag)}" for tag in tags)]
    if task and value is not None and data:
        lines += [
            "model-index:",
            f"- name: {quoted(exported.name)}",
            "  results:",
            f"  - task: {{type: {task}}}",
            f"    dataset: {{type: {quoted(data)}, name: {quoted(data)}}}",
            "    metrics:",
            f"    - {{type: {quoted(metric)}, value: {value:.6f}}}",
        ]
    return "\n".join(lines) + "\n"


def introduction(
    config: Mapping[str, Any], summary: Mapping[str, Any], exported: Exported, data: str, labels: bool
) -> str:
    kind = "A language model" if exported.has_tokenizer else "A model of sequences of tokens"
    kind = "A model that labels sequences" if labels else kind
    n_parameters, attention = summary.get("n_parameters"), attention_of(config)
    of_size = f" of {with_prefix(n_parameters)} parameters" if n_parameters else ""
    by = f" with {escaped(attention)} attention" if attention else ""
    origin = "imported by" if summary.get("steps") == 0 else f"trained{f' on {escaped(data)}' if data else ''} with"
    described = str(summary.get("data") or "") if data else ""
    for value in (config.get("task") or {}).values():
        if isinstance(value, str):
            described = described.replace(value, without_folders(value))
    return "\n\n".join(filter(None, (f"{kind}{of_size}{by}, {origin} attractor.", escaped(described))))


def attention_of(config: Mapping[str, Any]) -> str:
    """Return the name of the mechanism, or an empty string."""
    named = (config.get("model") or {}).get("attention")
    return named if isinstance(named, str) else ""


def data_name(config: Mapping[str, Any]) -> str:
    task = config.get("task") or {}
    return without_folders(str(task.get("corpus") or task.get("kind") or ""))


def results(measured: Mapping[str, Any], trained: bool) -> str:
    """Show the measures of the exported weights."""
    numbers = {name: value for name, value in measured.items() if isinstance(value, int | float)}
    if not numbers:
        return ""
    shown = {name: f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}" for name, value in numbers.items()}
    seeds = "\n\nOne seed: how much these numbers would vary from seed to seed is unknown." if trained else ""
    return f"The exported weights on the validation data of the run:\n\n{table(shown)}{seeds}"


def settings(run: RunFolder, summary: Mapping[str, Any], exported: Exported, trained: bool) -> dict[str, str]:
    """Return what is known of the model, its training and the machine, by the names of the run folder."""
    config = run.config if trained else {name: run.config.get(name) for name in NOT_TRAINED}
    counts = {"parameters": summary.get("n_parameters"), "exported weights are of step": exported.step}
    counts |= {"tokens": summary.get("tokens")} if trained else {}
    fields = {
        **{name: value if value is None else f"{value:,}" for name, value in counts.items()},
        "stored as": exported.dtype,
        **dotted_fields(summary.get("imported") or summary.get("converted") or {}),
        **dotted_fields(config),
        **dotted_fields(run.environment),
    }
    known = {name: value for name, value in fields.items() if value is not None}
    return {name: without_folders(v) if isinstance(v, str) else json.dumps(v) for name, v in known.items()}


def limits(
    config: Mapping[str, Any], summary: Mapping[str, Any], exported: Exported, trained: bool, measured: bool
) -> list[str]:
    paragraphs = []
    if exported.max_length is not None:
        longest = f"{exported.max_length:,}"
        paragraphs.append(f"The model takes sequences of at most {longest} tokens, since it has no more positions.")
    if trained and config.get("seq_len"):
        length = f"{config['seq_len']:,}"
        paragraphs.append(f"It was trained on sequences of {length} tokens, and measured on none that are longer.")
    if not summary:
        paragraphs.append("The run was not finished when this was written.")
    said = "All that was measured stands above" if measured else "Nothing was measured here"
    paragraphs.append(
        f"{said}. Truth, safety, bias, other languages and other kinds of text than its training data's were not "
        "tested."
    )
    return paragraphs


def loading(exported: Exported, labels: bool) -> str:
    auto = "AutoModelForSequenceClassification" if labels else "AutoModelForCausalLM"
    kept, name = exported.has_tokenizer, json.dumps(plain(exported.name))
    trust = ", trust_remote_code=True" if exported.self_contained and not exported.is_foreign else ""
    lines = [f"from transformers import {auto}{', AutoTokenizer' if kept else ''}"]
    if not exported.self_contained and not exported.is_foreign:
        lines.append("from attractor.hf import AttractorForCausalLM  # so that transformers knows the model")
        if exported.own_code:
            lines.append("from attractor.attention import defined_by")
        for place in dict.fromkeys(plain(name).rpartition(":")[0] for name in exported.own_code):
            lines += ["", f"defined_by({json.dumps(place)})  # this file, which is handed on by itself, is executed"]
    lines += ["", f"folder = {name}  # the path of this folder, or its name on the Hub"]
    lines.append(f"model = {auto}.from_pretrained(folder{trust})")
    if kept:
        lines.append(f"tokenizer = AutoTokenizer.from_pretrained(folder{trust})")
    if kept and not labels:
        lines += CHAT if exported.has_chat_template else ['tokens = tokenizer("Once", return_tensors="pt")']
        lines.append("print(tokenizer.decode(model.generate(**tokens, max_new_tokens=40)[0]))")
    where = "This needs attractor installed"
    if exported.self_contained or exported.is_foreign:
        where = f"The code of the model is {'part of transformers' if exported.is_foreign else 'in its folder'}"
    return f"{where}.\n\n```python\n" + "\n".join(lines) + "\n```"


def table(rows: Mapping[str, str]) -> str:
    lines = ["| what | value |", "| --- | --- |"]
    return "\n".join([*lines, *(f"| {escaped(name)} | {escaped(value)} |" for name, value in rows.items())])


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
