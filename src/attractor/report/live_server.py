"""The server behind `attractor watch`: pages of runs for a browser on this machine, which only reads.

It listens on 127.0.0.1 and nowhere else. It answers only requests that name it by this address or as localhost, so that
no web page can reach it under a name of its own (DNS rebinding). It serves the list, the pages of the runs in it, the
losses of chosen runs, and the reports of their studies. What an address names is looked up among these runs, and never
opened as a path. Reports are files of the folder, which may be somebody else's, so they reach no other page.
"""

import socketserver
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from attractor.errors import InputError
from attractor.report.live_list import (
    FILES,
    REPORT,
    RunLine,
    WatchedFolder,
    render_list,
    render_overlay,
    render_page,
    version_of,
)
from attractor.report.page import policy, verbatim
from attractor.report.run_page import render
from attractor.runs.run_folder import ENVIRONMENT, SAMPLES, RunFolder

HOST = "127.0.0.1"
OWN_NAMES = (HOST, "localhost")
SECONDS_BETWEEN_LOOKS = 1.0  # however many windows ask
SHARE_OF_DRAWING = 0.1  # the largest share of the time that goes into drawing the page of an unfinished run
OVERLAY, OF_STUDY = "/overlay", "/report/"
MOST_OVERLAID = 24  # runs, which are as many as differ in colour or dashes
SCRIPT = "live.js"
# The rules for the pages that are made here, and for reports, which are somebody's files.
OWN_RULES = "frame-ancestors 'none'"
REPORT_RULES = (
    f"{OWN_RULES}; sandbox allow-scripts allow-downloads; default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; img-src data:"
)


class LiveServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, folder: Path, port: int) -> None:
        if not folder.is_dir():
            raise InputError(f"folder must exist to be watched, and '{folder}' does not; start a run or name another")
        if not 0 <= port < 2**16:
            raise InputError(f"port must be from 0 to {2**16 - 1}, got {port}; 0 takes a free one")
        try:
            super().__init__((HOST, port), Handler)
        except OSError as error:
            raise InputError(
                f"port must be free to listen on, and {port} is not ({error.strerror}); give another, or 0 for any"
            ) from error
        self.pages = Pages(folder)

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # without a question to the network for the name of this machine
        self.server_name, self.server_port = HOST, self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):  # a browser that went away
            super().handle_error(request, client_address)

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_port}/"


@dataclass(frozen=True)
class Drawn:
    """The page of a run: what was drawn, and from when on it may be drawn again."""

    version: tuple[object, ...]
    page: str
    stays_until: float


class Pages:
    """The pages as text. Several threads ask; one at a time looks at the folder, and one at a time draws."""

    def __init__(self, folder: Path) -> None:
        self.watched = WatchedFolder(folder)
        self.lines: list[RunLine] = []
        self.n_looks = int(time.time())  # so that a server which is started again counts on
        self.changed_at: dict[str, int] = {}  # the look at which the line of each run was new, by the key of the run
        self.reordered_at = 0
        self.looked_at = -SECONDS_BETWEEN_LOOKS
        self.drawn: dict[str, Drawn] = {}
        self.to_look, self.to_draw = threading.Lock(), threading.Lock()
        script = verbatim(SCRIPT)
        style = verbatim("page.css", "study_page.css", "live.css")
        self.live = {"style": style, "script": script, "policy": policy(script, "connect-src 'self'"), "is_live": True}

    def page(self, path: str, query: str = "") -> str | None:
        """Return the page at an address, or None where there is none. Of the list, return only the lines that are newer
        than a look of the past (`since`), as long as the same runs stand in the same order."""
        asked = parse_qs(query, errors="surrogateescape")
        with self.to_look:
            lines = self._look()
            since = asked.get("since", [""])[-1]
            known = int(since) if since.isdecimal() and len(since) < 20 else -1
            is_part = self.reordered_at <= known <= self.n_looks
            new = [line for line in lines if self.changed_at[line.key] > known] if is_part else lines
            n_looks = self.n_looks
        if path == "/":
            return render_list(self.watched.folder, lines, new, n_looks, self.live)
        if path == OVERLAY:
            return self._overlay([line for line in lines if line.key in asked.get("run", ())])
        for line in lines:
            if line.address == path:
                return self._run_page(line)
            if line.report == path:
                with suppress(OSError):  # it was removed meanwhile
                    report = self.watched.folder / str(line.study) / REPORT
                    return report.read_text(encoding="utf-8", errors="replace")
        return None

    def _look(self) -> list[RunLine]:
        if time.monotonic() - self.looked_at >= SECONDS_BETWEEN_LOOKS:
            before, self.lines = self.lines, self.watched.look()
            self.looked_at = time.monotonic()
            self.n_looks += 1
            if [line.key for line in before] != [line.key for line in self.lines]:
                self.reordered_at = self.n_looks
                self.changed_at = {line.key: self.n_looks for line in self.lines}
            else:
                changed = (line.key for old, line in zip(before, self.lines, strict=True) if old != line)
                self.changed_at |= dict.fromkeys(changed, self.n_looks)
        return self.lines

    def _run_page(self, line: RunLine) -> str:
        """Draw a run anew when its files have changed, but leave most of the time to those that train."""
        folder = self.watched.folder / line.key
        version = (line.state, *(version_of(folder / name) for name in (*FILES, ENVIRONMENT, SAMPLES)))
        return self._drawn(line.key, version, lambda: self._draw(folder, line))

    def _overlay(self, chosen: list[RunLine]) -> str:
        lines = chosen[:MOST_OVERLAID]
        labels = [line.label for line in lines]
        runs = {
            line.label if labels.count(line.label) == 1 else f"{line.label} ({line.place})": self.watched.runs[line.key]
            for line in lines
        }
        name, version = " ".join([OVERLAY, *(line.key for line in lines)]), (len(chosen), *lines)
        return self._drawn(name, version, lambda: render_overlay(runs, len(chosen), self.live))

    def _drawn(self, name: str, version: tuple[object, ...], draw: Callable[[], str]) -> str:
        with self.to_draw:
            begun, before = time.monotonic(), self.drawn.get(name)
            if before is not None and (before.version == version or begun < before.stays_until):
                return before.page
            page = draw()
            took = time.monotonic() - begun
            self.drawn[name] = Drawn(version, page, begun + took / SHARE_OF_DRAWING)
            return page

    def _draw(self, folder: Path, line: RunLine) -> str:
        try:
            return render(RunFolder.open(folder), **self.live)
        except Exception as error:  # any content may stand in a damaged file
            remark = f"This run cannot be shown: {line.remark or f'{type(error).__name__}: {error}'}"
            return render_page("One run", line.label, remark, (), self.live)


class Handler(BaseHTTPRequestHandler):
    server: LiveServer
    server_version, sys_version = "attractor", ""
    timeout = 30  # seconds for a client that says nothing

    def do_GET(self) -> None:
        if self.headers.get("Host", "").removesuffix(f":{self.server.server_port}") not in OWN_NAMES:
            self._answer(HTTPStatus.FORBIDDEN, "attractor watch answers to its own address alone\n", "text/plain")
            return
        asked = urlsplit(self.path)
        page = self.server.pages.page(asked.path, asked.query)
        if page is None:
            self._answer(HTTPStatus.NOT_FOUND, "there is no such run\n", "text/plain")
        else:
            rules = REPORT_RULES if asked.path.startswith(OF_STUDY) else OWN_RULES
            self._answer(HTTPStatus.OK, page, "text/html", rules)

    def _answer(self, status: HTTPStatus, text: str, kind: str, rules: str = OWN_RULES) -> None:
        content = text.encode("utf-8", "replace")
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Security-Policy", rules)
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing, since requests come every few seconds."""
