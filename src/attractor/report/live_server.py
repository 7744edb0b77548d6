"""The server behind `attractor watch`: pages of runs for a browser on this machine, which only reads.

It listens on 127.0.0.1 and nowhere else. It answers only requests that name it by this address or as localhost, so that
no web page can reach it under a name of its own (DNS rebinding). It serves the list and the pages of the runs in it.
What an address names is looked up among these runs, and never opened as a path.
"""

import socketserver
import sys
import threading
import time
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from attractor.errors import InputError
from attractor.report.live_list import FILES, RunLine, WatchedFolder, render_list, version_of
from attractor.report.page import fill, policy, verbatim
from attractor.report.run_page import render
from attractor.runs.run_folder import ENVIRONMENT, SAMPLES, RunFolder

HOST = "127.0.0.1"
OWN_NAMES = (HOST, "localhost")
SECONDS_BETWEEN_LOOKS = 1.0  # however many windows ask
SHARE_OF_DRAWING = 0.1  # the largest share of the time that goes into drawing the page of an unfinished run
RUN = "/run/"
SCRIPT = "live.js"


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
        self.script = verbatim(SCRIPT)
        self.policy = policy(self.script, "connect-src 'self'")

    def page(self, path: str, since: str = "") -> str | None:
        """Return the page at an address, or None where there is none. Of the list, return only the lines that are newer
        than a look of the past, as long as the same runs stand in the same order."""
        with self.to_look:
            lines = self._look()
            known = int(since) if since.isdecimal() else -1
            is_part = self.reordered_at <= known <= self.n_looks
            new = [line for line in lines if self.changed_at[line.key] > known] if is_part else lines
            n_looks = self.n_looks
        if path == "/":
            return render_list(self.watched.folder, lines, new, n_looks, self.script, self.policy)
        key = unquote(path.removeprefix(RUN), errors="surrogateescape") if path.startswith(RUN) else None
        line = next((line for line in lines if line.key == key), None)
        return None if line is None else self._run_page(line)

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
        with self.to_draw:
            begun, before = time.monotonic(), self.drawn.get(line.key)
            if before is not None and (before.version == version or begun < before.stays_until):
                return before.page
            page = self._draw(folder, line)
            took = time.monotonic() - begun
            self.drawn[line.key] = Drawn(version, page, begun + took / SHARE_OF_DRAWING)
            return page

    def _draw(self, folder: Path, line: RunLine) -> str:
        try:
            return render(RunFolder.open(folder), self.script, self.policy)
        except Exception as error:  # any content may stand in a damaged file
            remark = line.remark or f"{type(error).__name__}: {error}"
            style = verbatim("page.css", "study_page.css", "live.css")
            return fill(
                "live_damaged.html.j2", style=style, script=self.script, policy=self.policy, line=line, remark=remark
            )


class Handler(BaseHTTPRequestHandler):
    server: LiveServer
    server_version, sys_version = "attractor", ""
    timeout = 30  # seconds for a client that says nothing

    def do_GET(self) -> None:
        if self.headers.get("Host", "").removesuffix(f":{self.server.server_port}") not in OWN_NAMES:
            self._answer(HTTPStatus.FORBIDDEN, "attractor watch answers to its own address alone\n", "text/plain")
            return
        asked = urlsplit(self.path)
        page = self.server.pages.page(asked.path, asked.query.removeprefix("since="))
        if page is None:
            self._answer(HTTPStatus.NOT_FOUND, "there is no such run\n", "text/plain")
        else:
            self._answer(HTTPStatus.OK, page, "text/html")

    def _answer(self, status: HTTPStatus, text: str, kind: str) -> None:
        content = text.encode("utf-8", "replace")
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Security-Policy", "frame-ancestors 'none'")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing, since requests come every few seconds."""
