"""The report of a run in progress, served to this machine alone by a thread that only reads what others wrote."""

import json
import threading
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs

from vje.errors import UserError, command
from vje.reporting.atlas import Atlas
from vje.reporting.audience import Audience
from vje.reporting.html import POLICY, fill, page
from vje.reporting.records import read_epochs, read_failure
from vje.reporting.run_curves import curve_panels, method_of
from vje.reporting.run_page import about, map_section
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


class Answer(NamedTuple):
    """What is at a path.

    Attributes:
        kind: its content type.
        body: its content.
        page: number of the page that has asked for it, or that it is.
        shown: number of the map that it is, if it is one.
        ended: whether it says that training has ended.
    """

    kind: str
    body: bytes
    page: int | None = None
    shown: int = 0
    ended: bool = False


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
        self.audience = Audience()
        self._ended = False
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

    def finish(self, seconds: float) -> None:
        """Serve the state that training ended in; returns when every open page has it, or after some seconds."""
        self._ended = True
        self.audience.wait(self.map.number, seconds)

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
        self.map = Shown(number, epoch, settled, json.dumps(content, allow_nan=False).encode())

    def answer(self, address: str) -> Answer | None:
        """What is at a path, with the number of the page that asks behind it; None if there is nothing."""
        path, _, query = address.partition("?")
        if path == "/":
            return self._rendered()
        asking = _page_number(query)
        if path == "/data.json":
            state = self.state()
            body = json.dumps(state, allow_nan=False).encode()
            return Answer("application/json", body, asking, ended=state["ended"] is not None)
        shown = self.map
        if path == "/map.json" and shown.number:
            return Answer("application/json", shown.body, asking, shown.number)
        return None

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
        body, number = fill("live.html", **words, map=map_section(None, self.no_map)), self.audience.admit()
        data, policy = {"page": number, "name": name, **state}, f"{POLICY}; connect-src 'self'"
        text = page(f"{name}: {status}", body, data, SCRIPTS, policy)
        return Answer("text/html; charset=utf-8", text.encode(), number, ended=state["ended"] is not None)


def _page_number(query: str) -> int | None:
    """What follows ``page=``, if that is a number.

    >>> _page_number("page=3"), _page_number("page=x"), _page_number("")
    (3, None, None)
    """
    given = parse_qs(query).get("page", [""])[0]
    return int(given) if given.isascii() and given.isdigit() and len(given) < 10 else None


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
            live.audience.gave(found.page, found.shown, found.ended)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    return Handler
