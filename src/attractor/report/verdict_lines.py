"""A verdict as lines of text, whose parts a page shows in colours."""

from dataclasses import dataclass


@dataclass(frozen=True)
class VerdictPart:
    """The verdict on one cell. Its kind is an outcome, 'sensitive', 'insensitive', 'doubt', 'rates' or 'next'."""

    kind: str
    place: str
    words: str
    numbers: str = ""

    @property
    def text(self) -> str:
        return " ".join(filter(None, (self.place, self.words))) + (f", {self.numbers}" if self.numbers else "")


@dataclass(frozen=True)
class VerdictLine:
    """A line of the verdict. Its subject is a row or "What next"; lines about the control and about rates have none."""

    subject: str
    parts: tuple[VerdictPart, ...]
    remark: str = ""

    @property
    def text(self) -> str:
        subject = f"{self.subject}: " if self.subject else ""
        return subject + "; ".join(part.text for part in self.parts) + self.remark
