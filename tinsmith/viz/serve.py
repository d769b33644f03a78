"""An HTTP server for the page of a trace, for this machine's browser only.

It listens on 127.0.0.1 only, and answers only requests with a random token and this host's name, so other users of the
machine and other pages in the browser cannot read it.
"""
from __future__ import annotations

import hmac
import secrets
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from urllib.parse import parse_qs, urlsplit

HOST = "127.0.0.1"
# The page loads nothing, and no other page may embed it in a frame.
_POLICY = ("default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
           "frame-ancestors 'none'")


class Server:
    """A server of one page, in a thread of its own, inside a ``with`` block or until ``close``.

    >>> with Server("<p>a page</p>") as server:
    ...     server.url.startswith("http://127.0.0.1:")
    True
    """

    def __init__(self, text: str, port: int = 0) -> None:
        self.token = secrets.token_urlsafe(24)
        self._http = ThreadingHTTPServer((HOST, port), _handler(text.encode(), self.token))
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, name="tinsmith viz", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._http.server_address[1])

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}/?token={self.token}"

    def wait(self) -> None:
        """Serve until Ctrl-C."""
        try:
            while self._thread.is_alive():
                self._thread.join(1.0)
        except KeyboardInterrupt:
            pass
        finally:
            self.close()

    def close(self) -> None:
        """Stop the server and release the port."""
        self._http.shutdown()
        self._http.server_close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()


def _handler(body: bytes, token: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = urlsplit(self.path)
            given = parse_qs(found.query).get("token", [""])[0]
            host = self.headers.get("Host", "").rpartition(":")[0]
            if host not in (HOST, "localhost") or not hmac.compare_digest(given.encode(), token.encode()):
                self.answer(403, "text/plain", b"forbidden: the URL needs the token printed in the terminal\n")
            elif found.path != "/":
                self.answer(404, "text/plain", b"not found: the server has one page only\n")
            else:
                self.answer(200, "text/html", body)

        def answer(self, status: int, kind: str, content: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Content-Security-Policy", _POLICY)
            self.send_header("Referrer-Policy", "no-referrer")
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *values: object) -> None:
            """Print nothing: the terminal belongs to the program."""

    return Handler
