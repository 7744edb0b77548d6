"""Read a growing metrics file from where the previous read ended."""

import os
from contextlib import suppress
from pathlib import Path

from attractor.files import open_regular


class AddedLines:
    """The whole lines that were added to a file since the previous read.

    A resumed run writes its metrics anew. `rewritten` then is True, and all lines of the new file count as added.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file_number: int | None = None
        self.n_bytes_read = 0
        self.rewritten = False

    def read(self) -> list[bytes]:
        self.rewritten = False
        with suppress(FileNotFoundError), open_regular(self.path) as file:
            status = os.fstat(file.fileno())
            if status.st_ino != self.file_number or status.st_size < self.n_bytes_read:
                self.file_number, self.n_bytes_read, self.rewritten = status.st_ino, 0, True
            file.seek(self.n_bytes_read)
            lines, end, _torn = file.read().rpartition(b"\n")
            self.n_bytes_read += len(lines + end)
            return lines.splitlines()
        return []
