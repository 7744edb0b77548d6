"""Make HTML pages: fill templates with escaped values, and embed styles and scripts."""

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

ROOM = Path(__file__).parent
POLICY = Markup(
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
)  # of a page without a script


def fill(template: str, **values: Any) -> str:
    """Fill a template with values, which are escaped unless they are markup. By default the page has no script."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(ROOM),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    text = (ROOM / template).read_text(encoding="utf-8")
    return environment.from_string(text).render({"policy": POLICY, "script": None, "is_live": False} | values)


def verbatim(*names: str) -> Markup:
    """Return files of this folder as markup: styles and scripts, which are trusted."""
    return Markup("\n".join((ROOM / name).read_text(encoding="utf-8") for name in names))


def policy(script: str, *allowed: str) -> str:
    """Return what a page may do, for its head: run this script, and no other, and what else is allowed."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    rules = ["style-src 'unsafe-inline'", f"script-src 'sha256-{digest}'", *allowed]
    return "; ".join(["default-src 'none'", *rules, "base-uri 'none'", "form-action 'none'"])


def show(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
