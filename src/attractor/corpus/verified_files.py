"""Remember which files were verified, so that the checksums of a large corpus are computed once and not at every use.

Files count as verified while their paths, sizes and modification times stay the same. The record is in the user's cache
folder (`files.cache_folder`) and never beside the files, so a folder that was copied or comes from somebody else is
verified again.
"""

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from attractor.files import cache_folder, remove_leftovers, write_json


def is_known(files: Sequence[Path]) -> bool:
    return _note(files).is_file()


def remember(files: Sequence[Path]) -> None:
    """Record that the files were verified. If the cache folder cannot be written, the next use verifies again."""
    note = _note(files)
    with suppress(OSError):
        note.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(note.parent)
        write_json(note, {"folder": str(files[0].parent.resolve())})


def _note(files: Sequence[Path]) -> Path:
    known = [(str(file.resolve()), (stat := file.stat()).st_size, stat.st_mtime_ns, stat.st_ctime_ns) for file in files]
    return cache_folder() / "verified" / f"{hashlib.sha256(json.dumps(known).encode()).hexdigest()}.json"
