"""Commands that exchange models with Hugging Face or change their mechanism: import, convert, export."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from tyro.conf import Positional

from attractor.cli.console import answer, say
from attractor.cli.options import OfRun, dtype_of
from attractor.cli.study_code import define_mechanisms
from attractor.errors import require
from attractor.files import refuse_inhabited
from attractor.files.code import name_in_code
from attractor.runs.run_folder import RunFolder

HF = "hf"  # the format that every model has
REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True)
class ImportArguments:
    model: Positional[Path]
    """folder with config.json and safetensors files"""
    out: Path | None = None
    """run folder to write; by default runs/ and the folder's name"""


@dataclass(frozen=True)
class ConvertArguments(OfRun):
    model: Positional[Path]
    """run folder or Hugging Face folder"""
    attention: str
    """a coupled or gated mechanism; 'attractor list' shows all"""
    out: Path | None = None
    """run folder to write; by default runs/ and the names of model and mechanism"""
    seed: int = 0
    """seed of the new parameters"""


def import_folder(args: ImportArguments, console: Console) -> None:
    """Turn a Hugging Face folder into a run that every command takes. Nothing is downloaded, nothing is unpickled.

    attractor import Qwen3-0.6B --out runs/qwen
    """
    from attractor.hf.import_runs import TOKENIZER, import_run, missing_tokenizer_message
    from attractor.train.saved_tokenizer import saved_settings

    run = import_run(args.model, args.out or Path("runs") / args.model.resolve().name)
    has_tokenizer = (run.path / TOKENIZER).is_file()
    if not has_tokenizer:
        say(console, missing_tokenizer_message(args.model))
    if (settings := saved_settings(run.path)) is not None:
        say(console, settings.describe())
    print_result(console, run, "CORPUS" if has_tokenizer else "PREPARED_CORPUS")


def convert(args: ConvertArguments, console: Console) -> None:
    """Give a trained model another mechanism. The new model starts at exactly what the old one computes.

    attractor convert runs/qwen --attention coupled-gqa
    """
    from attractor.hf.convert import convert_run

    define_mechanisms(args.code, console)
    out = args.out or Path("runs") / f"{args.model.resolve().name}-{Path(args.attention).name}"
    print_result(console, convert_run(args.model, args.attention, out, args.checkpoint, args.seed))


def print_result(console: Console, run: RunFolder, corpus: str = "CORPUS") -> None:
    summary = run.summary() or {}
    say(console, f"{summary['label']} attention, {summary['n_parameters']:,} parameters")
    say(console, f"train: attractor train --start {shlex.quote(str(run.path))} --corpus {corpus}")
    say(console, str(run.path))
    answer(console, run=str(run.path), label=summary["label"], n_parameters=summary["n_parameters"])


@dataclass(frozen=True)
class ExportArguments(OfRun):
    run: Positional[Path]
    """run folder"""
    to: str = HF
    """hf, for every model, or the architecture that it has: llama, mistral, qwen2, qwen3, gemma, gemma2, vaultgemma,
    gemma3-text, olmo2, olmo3, phi3, smollm3, granite, gpt2, gpt-neox, stablelm, starcoder2, cohere, cohere2, exaone4,
    ministral, cwm, seed-oss, internlm3, iquestcoder, arcee, jais2, nemotron, hyperclovax, ernie4-5, glm, glm4, helium,
    deepseek-v3, youtu or diffllama"""
    out: Path | None = None
    """new or empty folder; by default the format's name in the run folder"""
    precision: str | None = None
    """fp32, bf16 or fp16; by default fp32"""
    max_shard_size: str = "5GB"
    """largest file of weights"""
    self_contained: bool = True
    """include the code, for machines on which attractor is not installed"""
    license: str | None = None
    """license in the model card, such as apache-2.0"""
    base_model: str | None = None
    """model in the card from which this one was made, as OWNER/NAME"""
    datasets: tuple[str, ...] = ()
    """data sets in the card, as OWNER/NAME"""
    push: str | None = None
    """repository on the Hugging Face Hub to which the folder is uploaded, as OWNER/NAME; a new one is private"""


def export(args: ExportArguments, console: Console) -> None:
    """Write the model of a run as a Hugging Face folder, with its tokenizer, its code and a model card.

    attractor export runs/one --precision bf16
    """
    dtype = dtype_of(args.precision)
    import torch

    from attractor.hf.card import Exported, model_card
    from attractor.hf.export import export_model, push_folder
    from attractor.hf.foreign_export import chosen_architecture
    from attractor.train.finished import finished_run
    from attractor.train.saved_tokenizer import saved_settings, tokenizer_to_export

    if args.push is not None:
        require(REPOSITORY.fullmatch(args.push) is not None, "push", "OWNER/NAME", args.push)
    architecture = None if args.to == HF else chosen_architecture(args.to)
    folder = RunFolder.open(args.run)
    out = args.out or args.run / args.to  # within the run, where no search for runs finds its config.json
    refuse_inhabited(out)
    define_mechanisms(args.code, console)
    run = finished_run(args.run, torch.device("cpu"), args.checkpoint)
    tokenizer = tokenizer_to_export(folder, run.config)
    settings = saved_settings(folder.path)
    exported = Exported(
        name=out.resolve().name if args.out else args.run.resolve().name,
        step=int(run.checkpoint.rpartition("-")[2]),
        dtype=str(dtype or run.model.embedding.weight.dtype).removeprefix("torch."),
        max_length=run.model.max_length,
        has_tokenizer=tokenizer is not None,
        has_chat_template=settings is not None and settings.has_chat_template,
        self_contained=args.self_contained,
        is_foreign=architecture is not None,
        own_code=tuple(map(name_in_code, run.model.config.own_code)),
        license=args.license,
        base_model=args.base_model,
        datasets=args.datasets,
    )
    card = model_card(folder, exported)
    export_model(
        run.model,
        out,
        tokenizer,
        card,
        args.self_contained,
        args.max_shard_size,
        dtype,
        settings=settings,
        trained_length=run.config.seq_len,
        to=architecture,
        special=((folder.summary() or {}).get("imported") or {}).get("token_ids"),
    )
    address = None if args.push is None else push_folder(out, args.push)
    say(console, str(out))
    if address:
        say(console, address)
    answer(console, folder=str(out), checkpoint=run.checkpoint, address=address)
