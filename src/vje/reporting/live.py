"""The report of a run in progress, served to this machine alone by a thread that only reads what others wrote."""

import json
import math
import threading
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import monotonic, sleep
from typing import Any, NamedTuple

from vje.errors import UserError, command
from vje.reporting.atlas import Atlas
from vje.reporting.html import POLICY, fill, page
from vje.reporting.records import read_epochs, read_failure
from vje.reporting.run_curves import curve_panels, method_of
from vje.reporting.run_page import about, map_section
from vje.runs import RunFolder

HOST = "127.0.0.1"
LOCAL_NAMES = ("127.0.0.1", "localhost", "[::1]")
"""Names that a browser on this machine knows it by; a page elsewhere that resolves its own name to it is refused."""

SCRIPTS = ("common.js", "charts.js", "pictures.js", "map.js", "galleries.js", "live.js")


RECENT = 5.0
"""Seconds after which a page that asks no more counts as closed; one that is open asks every two."""


class Shown(NamedTuple):
    """The map that is served."""

    number: int = 0  # 1 for the first, and one more for each that follows; 0 while there is none
    epoch: int = 0  # whose model it is of
    settled: bool = False  # whether the images have their final places
    body: bytes = b""  # the map as JSON


class Answer(NamedTuple):
    """What is at a path."""

    kind: str  # its content type
    body: bytes  # its content


class _Server(ThreadingHTTPServer):
    daemon_threads = True  # a browser that holds its connection keeps no training from ending

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: a browser that went away is no trouble, and the terminal belongs to training."""


class LiveServer:
    """Serves the page at :attr:`address` from :meth:`start` to :meth:`stop`.

    Args:
        folder: of the run.
        port: to listen on; 0 takes a free one.
        no_map: what to say while there is no map.
    """

    def __init__(self, folder: RunFolder, port: int = 0, no_map: str = "") -> None:
        self.folder, self.no_map = folder, no_map
        self.map = Shown()
        self.progress: Mapping[str, Any] = {}
        self._ended, self._asked = False, -math.inf
        try:
            self._server = _Server((HOST, port), _handler(self))
        except OSError as error:
            raise UserError(f"--watch-port {port} cannot be used ({error.strerror}): choose another.") from None
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.2,), name="vje-watch", daemon=True)

    @property
    def address(self) -> str:
        """Where to point a browser."""
        return f"http://{HOST}:{self._server.server_address[1]}"

    def start(self) -> "LiveServer":
        """Begin to answer."""
        self._thread.start()
        return self

    @property
    def watched(self) -> bool:
        """Whether a page is open."""
        return monotonic() - self._asked < RECENT

    def finish(self, seconds: float) -> None:
        """Serve the state that training ended in; returns after some seconds, or at once where no page is open."""
        self._ended = True
        if self.watched:
            sleep(seconds)

    def stop(self) -> None:
        """End the thread and free the port."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def show(self, atlas: Atlas, epoch: int, settled: bool) -> None:
        """Serve another map from now on, in the words and the form of the report."""
        number = self.map.number + 1
        content = {"number": number, "section": map_section(atlas), **atlas.as_data()}
        self.map = Shown(number, epoch, settled, _as_json(content))

    def answer(self, path: str) -> Answer | None:
        """What is at a path; None if there is nothing."""
        if path == "/map.json" and self.map.number:
            return Answer("application/json", self.map.body)
        if path not in ("/", "/data.json"):
            return None
        self._asked = monotonic()
        return self._rendered() if path == "/" else Answer("application/json", _as_json(self.state()))

    def state(self) -> dict[str, Any]:
        """What the page shows now."""
        ended = self._last_words() if self._ended else None
        panels = curve_panels(read_epochs(self.folder), method_of(self.folder.read("config")))
        shown = self.map._asdict()
        del shown["body"]  # the page asks for it when the number is another
        found = {"panels": panels, "warnings": self.folder.warnings(), "progress": dict(self.progress)}
        return found | {"map": shown, "ended": ended}

    def _last_words(self) -> dict[str, Any]:
        """How training ended, and what to do next."""
        path, progress = self.folder.path, self.folder.progress()
        report, resume = command("vje", "report", path), command("vje", "train", "--resume", path)
        if progress == "finished":
            epochs = self.folder.read("config")["optimizer"]["epochs"]
            return {"status": progress, "words": f"Finished after epoch {epochs}. {report} makes a page to keep."}
        if failure := read_failure(self.folder):
            return {"status": progress, "words": failure["message"]}
        return {"status": f"stopped, {progress}", "words": f"Training was stopped. {resume} goes on with it."}

    def _rendered(self) -> Answer:
        name, state = self.folder.path.resolve().name, self.state()
        status = "in training" if state["ended"] is None else state["ended"]["status"]
        words = {"name": name, "about": about(self.folder.read("config")), "status": status}
        body = fill("live.html", **words, map=map_section(None, self.no_map))
        text = page(f"{name}: {status}", body, {"name": name, **state}, SCRIPTS, f"{POLICY}; connect-src 'self'")
        return Answer("text/html; charset=utf-8", text.encode())


def _as_json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, allow_nan=False).encode()


def _handler(live: LiveServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10
        server_version, sys_version = "vje", ""

        def do_GET(self) -> None:
            """Answer one of the few paths there are."""
            host = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
            found = live.answer(self.path) if host in LOCAL_NAMES else None
            if found is None:
                self.send_error(HTTPStatus.NOT_FOUND if host in LOCAL_NAMES else HTTPStatus.FORBIDDEN)
                return
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", found.kind)
            self.send_header("Content-Length", str(len(found.body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            self.wfile.write(found.body)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    return Handler
