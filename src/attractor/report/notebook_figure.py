"""A figure that a notebook shows when it is the value of a cell, with or without pyplot."""

from matplotlib.figure import Figure

from attractor.report.canvas import as_file

CSS_PIXELS = 96  # to an inch


class NotebookFigure(Figure):
    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        return as_file(self, "png", "figure"), {"width": round(CSS_PIXELS * self.get_figwidth())}
