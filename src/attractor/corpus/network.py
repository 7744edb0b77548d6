"""Whether the Hugging Face Hub can be reached, asked once and briefly: without network nothing may hang."""

import os
import threading
from functools import cache
from urllib.error import HTTPError
from urllib.request import Request, urlopen

SECONDS = 5.0
OFFLINE = "the Hugging Face Hub cannot be reached"


@cache
def reachable() -> bool:
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return False
    answered = threading.Event()

    def ask() -> None:
        endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
        try:
            urlopen(Request(endpoint, method="HEAD"), timeout=SECONDS).close()
        except HTTPError:  # an answer all the same
            answered.set()
        except (OSError, ValueError):
            return
        answered.set()

    # Looking up a name has no time limit of its own, so it happens in a thread that may be left behind.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(SECONDS)
    return answered.is_set()
