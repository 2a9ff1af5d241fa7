"""The page served to this machine alone, with new points while runs train."""

from __future__ import annotations

from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from typing import Any

from snip.common.console import finish, remark, say
from snip.common.errors import InputError
from snip.common.text import unforeseen
from snip.page.book import Book
from snip.page.render import policy

LOOPBACK = "127.0.0.1"
SECONDS = 30  # after which a connection that says nothing is closed


class PageServer(ThreadingHTTPServer):
    """Serves one page and its news, on the loopback address."""

    daemon_threads = True

    def __init__(self, book: Book, port: int = 0) -> None:
        """Listen on a port, by default one that is free."""
        try:
            super().__init__((LOOPBACK, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(f"port {port} cannot be used ({reason}): leave --port out.") from error
        self.book = book
        self.turn = Lock()  # one request at a time reads the folders

    @property
    def address(self) -> str:
        """Where a browser finds the page."""
        return f"http://{LOOPBACK}:{self.server_port}/"

    def handle_error(self, _request: Any, _address: Any) -> None:
        """A browser that goes away in the middle of an answer is nobody's mistake."""


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    timeout = SECONDS
    server_version, sys_version = "snip", ""

    def do_GET(self) -> None:
        """Answer for the page and its news; nothing else is here."""
        if not self._asked_by_name():
            # A page from elsewhere whose name was made to point here must not read ours.
            return self._answer(HTTPStatus.FORBIDDEN, "text/plain", "Ask for 127.0.0.1.\n")
        pages = {"/": ("text/html", self._page), "/live.json": ("application/json", self._news)}
        found = pages.get(self.path.partition("?")[0])  # a query changes nothing here
        if found is None:
            return self._answer(HTTPStatus.NOT_FOUND, "text/plain", "There is only /.\n")
        kind, made = found
        try:
            with self.server.turn:
                text = made()
        except InputError as error:  # such as all folders deleted
            return self._answer(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", f"{error}\n")
        except Exception as error:  # no answer would look as if the server had ended
            said = f"The page cannot be made ({unforeseen(error)}).\n"
            return self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain", said)
        return self._answer(HTTPStatus.OK, kind, text)

    do_HEAD = do_GET  # noqa: N815

    def _page(self) -> str:
        return self.server.book.page(live=True)

    def _news(self) -> str:
        return self.server.book.live()

    def _asked_by_name(self) -> bool:
        ours = {f"{name}:{self.server.server_port}" for name in (LOOPBACK, "localhost")}
        return self.headers.get_all("Host", []) in [[name] for name in ours]

    def _answer(self, status: HTTPStatus, kind: str, text: str) -> None:
        content = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Security-Policy", f"{policy(live=True)}; frame-ancestors 'none'")
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing: a page that is watched asks every two seconds."""


def serve(book: Book, port: int = 0) -> None:
    """Serve the page until Ctrl-C."""
    with PageServer(book, port) as server:
        book.page(live=True)  # scored now, with a bar: a browser would wait for it before a blank
        say(server.address)
        finish()
        remark("Open this address in a browser on this machine. Ctrl-C ends it.")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            remark("\nended.")
