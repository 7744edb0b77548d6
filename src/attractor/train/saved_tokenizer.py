"""The tokenizer that is saved with a run, so that its text can be read without its corpus."""

from pathlib import Path

from attractor.corpus.tokenizer import Tokenizer, restore
from attractor.corpus.tokenizer_settings import SETTINGS_FILE, TokenizerSettings
from attractor.errors import InputError
from attractor.runs.run_folder import RunFolder
from attractor.tasks import Task
from attractor.tasks.text import Text, TextTask, tokenizer_of
from attractor.train.config import TrainConfig

TOKENIZER_FILE = "tokenizer.json"
KEPT_FILES = (TOKENIZER_FILE, SETTINGS_FILE)
ELSEWHERE = "imported:"  # begins the corpus of a run that was imported from a model trained elsewhere


def save_tokenizer(folder: RunFolder, task: Task, start: Path | None = None) -> None:
    """Save the tokenizer, and for text in the tokens of the run `start` also its settings.

    The end of a document in training then also ends generated text."""
    tokenizer = task.corpus.tokenizer if isinstance(task, TextTask) else getattr(task, "tokenizer", None)
    if tokenizer is not None and not (folder.path / TOKENIZER_FILE).exists():
        settings = saved_settings(start) if start is not None and isinstance(task, TextTask) else None
        if settings is not None and settings.definition == tokenizer.definition:
            folder.write(SETTINGS_FILE, settings.stopping_at(tokenizer.end_of_text).stored())
        folder.write(TOKENIZER_FILE, tokenizer.definition)


def saved_tokenizer(folder: RunFolder) -> Tokenizer | None:
    path = folder.path / TOKENIZER_FILE
    folder.refuse_altered(TOKENIZER_FILE)
    return restore(path.read_bytes(), folder.path.name) if path.is_file() else None


def saved_settings(run: Path) -> TokenizerSettings | None:
    """Return what the origin of an imported model says of its tokenizer; None for other and older runs."""
    RunFolder(run, {}).refuse_altered(TOKENIZER_FILE, SETTINGS_FILE)
    return TokenizerSettings.beside(run / TOKENIZER_FILE)


def tokenizer_of_run(folder: RunFolder) -> Tokenizer:
    """Return the tokenizer that is saved with a run; older runs have none, and get their corpus's."""
    task = TrainConfig.from_dict(folder.config).task
    if not isinstance(task, Text):
        raise InputError(f"run must be of task 'text' to be read as text, got '{task.kind}'; give another run")
    if (saved := saved_tokenizer(folder)) is not None:
        return saved
    if task.corpus.startswith(ELSEWHERE):
        raise InputError(
            f"run must have {TOKENIZER_FILE} to be read as text, and '{folder.path}' was imported without; put the "
            "model's tokenizer.json beside its weights and import it anew"
        )
    return tokenizer_of(task.corpus)


def tokenizer_to_export(folder: RunFolder, config: TrainConfig) -> Tokenizer | None:
    """Return the tokenizer of a run; None where its tokens are no text, as those of a puzzle."""
    if (saved := saved_tokenizer(folder)) is not None:
        return saved
    if isinstance(config.task, Text):  # for an imported model without a tokenizer, bytes would be a guess
        return None if config.task.corpus.startswith(ELSEWHERE) else tokenizer_of_run(folder)
    return None
