"""Pages in a browser without a window: what a visitor sees after the scripts have run."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --dump-dom"
)
in_browser = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")


def opened(address: str, home: Path, width: int = 1280, milliseconds: int = 4000) -> str:
    """Return the document at an address after so much time of its scripts; `home` receives what the browser writes."""
    own = [f"--user-data-dir={home / 'profile'}", f"--virtual-time-budget={milliseconds}", f"--window-size={width},900"]
    command = [str(CHROMIUM), *FLAGS.split(), *own, address]
    environment = os.environ | {"HOME": str(home)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=90, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
