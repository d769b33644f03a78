"""The page of a trace (one self-contained HTML file), its server, and the times that it shows.

The server listens on 127.0.0.1 only, and answers only requests with a random token and this host's name, so other users
of the machine and other pages in the browser cannot read it. Measured and predicted times of programs and steps come
from the trace's events and estimates.
"""
from __future__ import annotations

import hmac
import importlib.resources
import json
import re
import secrets
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tinsmith.core.errors import FileFormatError
from tinsmith.inspect.trace import FORMAT, VERSION
from tinsmith.viz.fold import folding

HOST = "127.0.0.1"
# The page loads nothing, and no other page may embed it in a frame.
_POLICY = ("default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
           "frame-ancestors 'none'")


class Server:
    """A server of one page, in a separate thread, inside a ``with`` block or until ``close``.

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

Times = dict[str, Any]  # keys: measured, runs, predicted, items


def times(document: Mapping[str, Any]) -> list[Times]:
    """Return the times in seconds of each program of a trace.

    ``measured`` is the total of all runs of the program (None if it did not run), ``runs`` their number, ``predicted``
    the estimate of one run. ``items`` holds the same for each step, with the mean of its runs as measured time; a copy
    has no prediction. A run of a kernel that several programs use is assigned to the program that was compiled last
    before the run.
    """
    programs = document["programs"]
    taken = _taken(programs, document["events"])
    found: list[Times] = []
    for p, own in zip(programs, taken, strict=True):
        uses = Counter(_key(item) for item in p["items"])
        items = [_item(item, own.get(_key(item), ()), uses[_key(item)], document["kernels"]) for item in p["items"]]
        apart = [seconds for seconds, runs, _ in items if seconds is not None and not runs]  # measured by viz()
        total = sum(map(sum, own.values())) + sum(apart)
        found.append({"measured": total if own or apart else None, "items": items,
                      "runs": max((runs for _, runs, _ in items), default=0),
                      "predicted": sum(seconds or 0.0 for _, _, seconds in items)})
    return found


def costliest(found: Sequence[Times]) -> int:
    """Return the number of the program with the longest measured time, or predicted time if nothing was measured.

    >>> costliest([{"measured": 1.0, "predicted": 9.0}, {"measured": 2.0, "predicted": 1.0}])
    1
    >>> costliest([{"measured": None, "predicted": 9.0}, {"measured": None, "predicted": 1.0}])
    0
    """
    return max(range(len(found)), key=lambda n: (found[n]["measured"] or 0.0, found[n]["predicted"]), default=0)


def _key(item: Mapping[str, Any]) -> str:
    """Return the key that an item shares with its events: a kernel's symbol, a copy's name."""
    return str(item["kernel"] or item["name"])


def _taken(programs: Sequence[Mapping[str, Any]], events: Sequence[Sequence[Any]]) -> list[dict[str, list[float]]]:
    """Return, for each program, the seconds of all runs by the key of the step."""
    users: dict[str, list[int]] = {}
    for n, p in enumerate(programs):
        for key in dict.fromkeys(map(_key, p["items"])):
            users.setdefault(key, []).append(n)
    found: list[dict[str, list[float]]] = [{} for _ in programs]
    for kind, _, name, start, seconds, *_, key in events:
        if kind not in ("kernel", "copy"):
            continue
        before = [n for n in users.get(key or name, ()) if programs[n]["start"] <= start]
        if before:
            found[max(before, key=lambda n: programs[n]["start"])].setdefault(key or name, []).append(seconds)
    return found


def _item(item: Mapping[str, Any], taken: Sequence[float], uses: int,
          kernels: Mapping[str, Any]) -> tuple[float | None, int, float | None]:
    """Return (mean measured seconds, number of runs, predicted seconds) of a step."""
    kernel = kernels.get(item["kernel"])
    predicted = kernel["estimate"]["seconds"] if kernel else None
    if not taken:
        return item["seconds"], 0, predicted
    return sum(taken) / len(taken), max(1, round(len(taken) / uses)), predicted

_SCRIPTS = ("vendor/dagre.min.js", "vendor/highlight.min.js", "vendor/highlight-llvm.min.js", "rows.js", "syntax.js",
            "panes.js", "graph.js", "timeline.js", "search.js", "steps.js", "app.js")
_LICENSES = ("vendor/dagre.LICENSE", "vendor/highlight.LICENSE")


def read_trace(path: str | Path) -> dict[str, Any]:
    """Return the trace in a file.

    Raises:
        FileFormatError: if it is not a trace, or one of another version.
        OSError: if it cannot be read.
    """
    try:
        found = json.loads(Path(path).read_text("utf-8"))
    except ValueError as error:
        raise FileFormatError("viz", f"{path} is not a trace: {error}", "VIZ=2 python script.py writes one") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise FileFormatError("viz", f"{path} is JSON, but not a trace", "VIZ=2 python script.py writes one")
    missing = [name for name in ("programs", "origins", "files", "kernels", "events", "machines") if name not in found]
    if found.get("version") == VERSION and missing:
        raise FileFormatError("viz", f"{path} is a trace without {' and '.join(missing)}",
                              "VIZ=2 python script.py writes one")
    if found.get("version") != VERSION:
        raise FileFormatError("viz", f"{path} is a trace of version {found.get('version')}, this reads {VERSION}",
                              "VIZ=2 python script.py writes a new one")
    return found


def folded(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document with the groups and the times of every program, and the number of the costliest one."""
    found = times(document)
    programs = [{**p, "groups": folding(document, p).groups, "times": t}
                for p, t in zip(document["programs"], found, strict=True)]
    return {**document, "programs": programs, "costliest": costliest(found)}


def page(document: Mapping[str, Any]) -> str:
    """Return the HTML page of a trace. The page contains its scripts, styles and data, and makes no requests."""
    data = json.dumps(folded(document), separators=(",", ":")).replace("<", "\\u003c")
    scripts = "\n".join(f"<script>\n{_script(_static(name))}\n</script>" for name in _SCRIPTS)
    licenses = "\n".join(_static(name) for name in _LICENSES).replace("--", "- -")
    parts = {"STYLE": _static("style.css"), "LICENSES": licenses, "TRACE": data, "SCRIPTS": scripts}
    text = _static("page.html")
    for name, part in parts.items():
        text = text.replace(f"<!--{name}-->", part, 1)
    return text


def _script(text: str) -> str:
    """Return a script without the sequences that change how HTML reads it; in JavaScript it means the same."""
    return re.sub(r"<(?=!--|/?script)", r"\\x3C", text, flags=re.IGNORECASE)


def _static(name: str) -> str:
    return importlib.resources.files("tinsmith.viz").joinpath("static", *name.split("/")).read_text("utf-8")
