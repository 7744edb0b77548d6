"""The nine tasks of GLUE: the names of their columns, labels and files, their metrics, and published recipes.

Wang et al., "GLUE: A Multi-Task Benchmark and Analysis Platform for Natural Language Understanding", ICLR 2019. The
first name of a column is that on the Hugging Face Hub, and a second one that in the benchmark's tsv files.
"""

from dataclasses import dataclass

VALID = {"valid": ("validation", "dev")}
MATCHED = {
    "matched": ("validation_matched", "dev_matched"),
    "mismatched": ("validation_mismatched", "dev_mismatched"),
}
TRAIN = ("train",)


@dataclass(frozen=True)
class GlueEntry:
    """A task's names and metrics. `texts` holds the possible column names of each text, `label_columns` of the label.

    A task without labels asks for a number between 0 and 5.
    """

    texts: tuple[tuple[str, ...], ...]
    labels: tuple[str, ...]
    metrics: tuple[str, ...] = ("accuracy",)
    label_columns: tuple[str, ...] = ("label",)
    valid_sets: tuple[str, ...] = ("valid",)
    headerless: tuple[str, ...] = ()  # the columns of tsv files without a header

    @property
    def n_classes(self) -> int:
        """The number of a model's outputs per sequence: one for a task without classes."""
        return len(self.labels) or 1


SENTENCES = (("sentence1",), ("sentence2",))

TABLE = {
    "cola": GlueEntry(
        texts=(("sentence",),),
        labels=("unacceptable", "acceptable"),
        metrics=("matthews",),
        headerless=("source", "label", "mark", "sentence"),
    ),
    "sst2": GlueEntry(texts=(("sentence",),), labels=("negative", "positive")),
    "mrpc": GlueEntry(
        texts=(("sentence1", "#1 String"), ("sentence2", "#2 String")),
        labels=("not_equivalent", "equivalent"),
        metrics=("accuracy", "f1"),
        label_columns=("label", "Quality"),
    ),
    "stsb": GlueEntry(texts=SENTENCES, labels=(), metrics=("pearson", "spearman"), label_columns=("label", "score")),
    "qqp": GlueEntry(
        texts=(("question1",), ("question2",)),
        labels=("not_duplicate", "duplicate"),
        metrics=("accuracy", "f1"),
        label_columns=("label", "is_duplicate"),
    ),
    "mnli": GlueEntry(
        texts=(("premise", "sentence1"), ("hypothesis", "sentence2")),
        labels=("entailment", "neutral", "contradiction"),
        label_columns=("label", "gold_label"),
        valid_sets=("matched", "mismatched"),
    ),
    "qnli": GlueEntry(texts=(("question",), ("sentence",)), labels=("entailment", "not_entailment")),
    "rte": GlueEntry(texts=SENTENCES, labels=("entailment", "not_entailment")),
    "wnli": GlueEntry(texts=SENTENCES, labels=("not_entailment", "entailment")),
}


def file_names(part: str) -> tuple[str, ...]:
    """Return the names of a part: first on the Hub, last among the benchmark's files."""
    return TRAIN if part == "train" else (VALID | MATCHED)[part]


@dataclass(frozen=True)
class FineTuning:
    """A recipe for fine-tuning."""

    n_epochs: int
    lr: float = 2e-5


# CoupledQK, section 3.4: a linear head on the pretrained checkpoint; all else is "standard BERT-style" there.
# BERT was fine-tuned in batches of 16 or 32 (Devlin et al. 2019, appendix A.3).
PAPER_RECIPES = {"sst2": FineTuning(n_epochs=5), "qnli": FineTuning(n_epochs=5), "mnli": FineTuning(n_epochs=3)}
