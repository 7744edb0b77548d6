"""What a run's tokens spell: the tokenizer goes with the run, so that its text can be read where its corpus is not."""

from attractor.corpus.tokenizer import Tokenizer, restore
from attractor.errors import InputError
from attractor.evidence.run import RunFolder
from attractor.files import write_bytes
from attractor.tasks import Task
from attractor.tasks.text import Text, TextTask, tokenizer_of
from attractor.train.config import TrainConfig

FILE = "tokenizer.json"
ELSEWHERE = "imported:"  # what stands where a run of a model from elsewhere would name its corpus


def keep_spelling(folder: RunFolder, task: Task) -> None:
    path = folder.path / FILE
    if isinstance(task, TextTask) and not path.exists():
        write_bytes(path, task.corpus.tokenizer.definition)


def tokenizer_of_run(folder: RunFolder) -> Tokenizer:
    """The run's own, or its corpus's for a run from before it was kept."""
    path = folder.path / FILE
    if path.is_file():
        return restore(path.read_bytes(), folder.path.name)
    task = TrainConfig.from_dict(folder.config).task
    if not isinstance(task, Text):
        raise InputError(f"run must be of task 'text' to be read as text, got '{task.kind}'; give another run")
    if task.corpus.startswith(ELSEWHERE):
        raise InputError(
            f"run must have {FILE} to be read as text, and '{folder.path}' was imported without; put the model's "
            "tokenizer.json beside its weights and import it anew"
        )
    return tokenizer_of(task.corpus)
