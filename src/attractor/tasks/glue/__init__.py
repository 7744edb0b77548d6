"""GLUE: nine tasks of understanding a sentence or a pair of them, one label each, measured as the benchmark does."""

from attractor.tasks.glue.table import PAPER_RECIPES, TABLE, FineTuning, GlueEntry
from attractor.tasks.glue.task import Glue, GlueTask

__all__ = ["PAPER_RECIPES", "TABLE", "FineTuning", "Glue", "GlueEntry", "GlueTask"]
