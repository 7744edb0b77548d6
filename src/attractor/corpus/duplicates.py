"""Find training documents that also occur in validation.

Two documents are duplicates if they have the same words, whatever separates them. The same bytes are always on one side
of the split, so these documents differ in spaces and line breaks alone, unless one text was cut in two.
"""

import hashlib

import numpy as np


def key(text: bytes) -> int:
    """Return a hash of the words of a document, of 64 bits."""
    return int.from_bytes(hashlib.sha256(b" ".join(text.split())).digest()[:8])


def find(train: np.ndarray, valid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the training documents whose key is one of validation, and for each the first such document there."""
    keys, first = np.unique(valid, return_index=True)
    place = np.minimum(np.searchsorted(keys, train), len(keys) - 1)
    duplicates = np.flatnonzero(keys[place] == train)
    return duplicates, first[place[duplicates]]
