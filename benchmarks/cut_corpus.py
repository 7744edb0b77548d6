"""Write a text of all validation documents and the first training documents of a corpus: `cut_corpus.py IN OUT BYTES`.

`attractor data prepare OUT --max-tokens BYTES` then prepares a corpus that is validated on the same documents as the
corpus that is prepared from IN. IN is a text file in which a line `<|endoftext|>` separates documents.
"""

import sys
from pathlib import Path

from attractor.corpus.sources import documents, open_source
from attractor.corpus.split import VALIDATION_SHARE, place

SEPARATOR = b"<|endoftext|>\n"


def main(source: str, out: str, n_bytes: str) -> None:
    valid: list[bytes] = []
    train: list[bytes] = []
    room = int(n_bytes)
    for _, text in documents(open_source(source)):
        if place(text) <= VALIDATION_SHARE:
            valid.append(text)
        elif room > 0:
            train.append(text)
            room -= len(text)
    # `data prepare --max-tokens` stops reading once it has the training tokens, so validation documents come first.
    Path(out).write_bytes(SEPARATOR.join([*valid, *train]))


if __name__ == "__main__":
    main(*sys.argv[1:])
