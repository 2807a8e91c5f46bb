"""The report of a run in progress, served to this machine alone by a thread that only reads what others wrote."""

import json
import threading
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from vje.errors import UserError
from vje.reporting.atlas import Atlas
from vje.reporting.html import POLICY, fill, page
from vje.reporting.run_curves import curve_panels, read_warnings
from vje.reporting.run_page import map_section, summary
from vje.runs import RunFolder

HOST = "127.0.0.1"
LOCAL_NAMES = ("127.0.0.1", "localhost", "[::1]")
"""Names that a browser on this machine knows it by; a page elsewhere that resolves its own name to it is refused."""

SCRIPTS = ("common.js", "charts.js", "pictures.js", "map.js", "galleries.js", "live.js")


class Shown(NamedTuple):
    """The map that is served.

    Attributes:
        number: 1 for the first, and one more for each that follows; 0 while there is none.
        epoch: whose model it is of.
        settled: whether the images have their final places.
        body: the map as JSON.
    """

    number: int = 0
    epoch: int = 0
    settled: bool = False
    body: bytes = b""


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

    def stop(self) -> None:
        """End the thread and free the port."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def show(self, atlas: Atlas, epoch: int, settled: bool) -> None:
        """Serve another map from now on, in the words and the form of the report."""
        content = {"section": map_section(atlas), **atlas.as_data()}
        self.map = Shown(self.map.number + 1, epoch, settled, json.dumps(content, allow_nan=False).encode())

    def answer(self, path: str) -> tuple[str, bytes] | None:
        """Content type and body of what is at a path; None if there is nothing."""
        if path == "/":
            return "text/html; charset=utf-8", self._rendered()
        if path == "/data.json":
            return "application/json", json.dumps(self.state(), allow_nan=False).encode()
        if path == "/map.json" and self.map.number:
            return "application/json", self.map.body
        return None

    def state(self) -> dict[str, Any]:
        """What the page shows now."""
        panels, warnings = curve_panels(self.folder.metrics()), read_warnings(self.folder)
        shown = self.map._asdict()
        del shown["body"]  # the page asks for it when the number is another
        return {"panels": panels, "warnings": warnings, "progress": dict(self.progress), "map": shown}

    def _rendered(self) -> bytes:
        name = self.folder.path.resolve().name
        about = summary(self.folder.read("config"), "in training")
        body = fill("live.html", name=name, summary=about, map=map_section(None, self.no_map))
        return page(f"{name}: training", body, self.state(), SCRIPTS, f"{POLICY}; connect-src 'self'").encode()


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
            kind, body = found
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    return Handler
