"""Which files were found to be as they were written, so that a large corpus is read for checking once, not each time.

Files count as known while their paths, sizes and times of change stay the same. The knowledge lies in the user's cache
folder (ATTRACTOR_CACHE, by default ~/.cache/attractor) and never beside the files: a folder that is copied, or that
comes from somebody else, is checked anew.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from attractor.files import write_json


def is_known(files: Sequence[Path]) -> bool:
    return _note(files).is_file()


def remember(files: Sequence[Path]) -> None:
    """Without a folder to write to, the next use checks again."""
    note = _note(files)
    with suppress(OSError):
        note.parent.mkdir(parents=True, exist_ok=True)
        write_json(note, {"folder": str(files[0].parent.resolve())})


def _note(files: Sequence[Path]) -> Path:
    known = [(str(file.resolve()), (stat := file.stat()).st_size, stat.st_mtime_ns, stat.st_ctime_ns) for file in files]
    cache = Path(os.environ.get("ATTRACTOR_CACHE") or Path.home() / ".cache" / "attractor")
    return cache / "verified" / f"{hashlib.sha256(json.dumps(known).encode()).hexdigest()}.json"
