"""The nine tasks: what their columns, labels and files are called, how they are measured, how they were fine-tuned.

Wang et al., "GLUE: A Multi-Task Benchmark and Analysis Platform for Natural Language Understanding", ICLR 2019. Column
names are those of the data set on the Hugging Face Hub first, then those of the benchmark's own tsv files and of
common copies.
"""

from dataclasses import dataclass

VALID = {"valid": ("validation", "dev", "valid")}
MATCHED = {
    "matched": ("validation_matched", "dev_matched", "valid_matched"),
    "mismatched": ("validation_mismatched", "dev_mismatched", "valid_mismatched"),
}
TRAIN = ("train",)


@dataclass(frozen=True)
class GlueEntry:
    """Names in one tuple stand for the same thing. A task without labels asks for a number between 0 and 5."""

    texts: tuple[tuple[str, ...], ...]
    labels: tuple[str, ...]
    metrics: tuple[str, ...] = ("accuracy",)
    label_columns: tuple[str, ...] = ("label",)
    valid_sets: tuple[str, ...] = ("valid",)
    headerless: tuple[str, ...] = ()  # the columns of tsv files that name none

    @property
    def n_classes(self) -> int:
        """What a model has to give for a sequence; one number where there are no classes."""
        return len(self.labels) or 1


SENTENCES = (("sentence1",), ("sentence2",))

TABLE = {
    "cola": GlueEntry(
        texts=(("sentence",),),
        labels=("unacceptable", "acceptable"),
        metrics=("matthews",),
        headerless=("source", "label", "mark", "sentence"),
    ),
    "sst2": GlueEntry(texts=(("sentence", "content", "text"),), labels=("negative", "positive")),
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
    """What the files of a part are called; the first is its name on the Hub."""
    return TRAIN if part == "train" else (VALID | MATCHED)[part]


@dataclass(frozen=True)
class FineTuning:
    """A recipe; None is what its source does not say."""

    n_epochs: int
    lr: float = 2e-5
    n_seeds: int = 3
    batch_size: int | None = None
    warmup_share: float | None = None
    weight_decay: float | None = None


# CoupledQK, section 3.4: a linear head on the pretrained checkpoint, "standard BERT-style" for what is None here. BERT
# itself took batches of 16 or 32 (Devlin et al. 2019, appendix A.3).
PAPER_RECIPES = {"sst2": FineTuning(n_epochs=5), "qnli": FineTuning(n_epochs=5), "mnli": FineTuning(n_epochs=3)}
