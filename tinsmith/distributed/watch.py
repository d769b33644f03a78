"""Messages of this process to the monitor: the collective that it waits in, the user's line, an exception, the end."""
from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import secrets
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from tinsmith.core.errors import line_of, place

PERIOD = 1.0  # seconds between two signs
_SIGNALS = (signal.SIGTERM,)


class Waiting(NamedTuple):
    """A collective that this process is in."""

    kind: str
    ranks: Sequence[int]
    call: int
    line: tuple[str, int]
    since: float


_now: list[Waiting] = []


@contextlib.contextmanager
def waiting(kind: str, ranks: Sequence[int], call: int, line: tuple[str, int]) -> Iterator[None]:
    """Note that this process is in a collective: call number ``call`` of these ranks."""
    _now.append(Waiting(kind, ranks, call, line, time.monotonic()))
    try:
        yield
    finally:
        _now.pop()


class Address(NamedTuple):
    """The place where the monitor listens, and the word by which it knows the ranks."""

    host: str
    port: int
    token: str


def start_monitor(count: int, timeout: float) -> Address:
    """Start the monitor, in a session of its own: what ends the ranks does not end it before it has spoken."""
    token = secrets.token_hex(16)
    subprocess = importlib.import_module("subprocess")  # slow, and for few programs
    line = [sys.executable, str(Path(__file__).with_name("monitor.py")), str(count), str(timeout)]
    process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
    process.stdin.write(f"{token}\n")
    process.stdin.close()
    port = int(process.stdout.readline())
    process.stdout.close()
    process.returncode = 0  # it ends after this process: nobody waits for it
    return Address(socket.gethostname(), port, token)


class Watcher:
    """The connection of this process to the monitor, and the thread that keeps it.

    Args:
        abort: ends all processes of the program with an exit code.
    """

    def __init__(self, address: Address, rank: int, abort: Any) -> None:
        self.abort, self.lock = abort, threading.Lock()
        host = "127.0.0.1" if address.host == socket.gethostname() else address.host
        self.connection = socket.create_connection((host, address.port), timeout=30)
        self.main = threading.main_thread().ident or 0
        self.tell(token=address.token, rank=rank, host=socket.gethostname(), pid=os.getpid())
        self.woken, waker = socket.socketpair()
        waker.setblocking(False)
        self.waker = waker
        self._catch_signals()
        self.before = sys.excepthook
        sys.excepthook = self.raised
        atexit.register(self.end)
        threading.Thread(target=self.work, name="tinsmith-watch", daemon=True).start()

    def tell(self, **message: Any) -> None:
        """Write a message to the monitor; without one, MPI and the launcher are left to notice faults."""
        with self.lock, contextlib.suppress(OSError):
            self.connection.sendall(json.dumps(message).encode() + b"\n")

    def _catch_signals(self) -> None:
        """Let the thread below handle SIGTERM, by which launchers end the other ranks after a fault in one: a main
        thread that is in native code would not."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _SIGNALS:
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(self.waker.fileno(), warn_on_full_buffer=False)

    def work(self) -> None:
        """Give a sign every second, until the monitor or a signal ends the process."""
        self.sign()
        while True:
            ready, _, _ = select.select([self.connection, self.woken], [], [], PERIOD)
            if self.woken in ready and self.woken.recv(64)[-1] in _SIGNALS:
                self.tell(state="stopped")
                os._exit(128 + signal.SIGTERM)
            if self.connection in ready:
                data = b""
                with contextlib.suppress(OSError):
                    data = self.connection.recv(1 << 16)
                if not data:
                    return  # the monitor is gone
                time.sleep(0.2)  # its message comes first
                os._exit(1)
            self.sign()

    def sign(self) -> None:
        """Write what this process waits for, and where it is."""
        frame = sys._current_frames().get(self.main)
        now = _now[-1] if _now else None
        about = None if now is None else {"kind": now.kind, "ranks": list(now.ranks), "call": now.call,
                                          "line": place(*now.line), "seconds": time.monotonic() - now.since}
        self.tell(line=place(*line_of(frame)), waiting=about)

    def raised(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Report an exception that ends this process, and end the others."""
        self.before(kind, error, trace)
        sys.stderr.flush()
        frames = [f for f, _ in traceback.walk_tb(trace)]
        text = " ".join(str(error).split())
        self.tell(raised=f"{kind.__name__}: {text[:200]}", line=place(*line_of(frames[-1] if frames else None)))
        time.sleep(0.2)  # the monitor speaks before the launcher ends all
        self.abort(130 if issubclass(kind, KeyboardInterrupt) else 1)

    def end(self) -> None:
        """Say that this process has come to its end."""
        self.tell(state="ended")


class _Prefixed:
    """Standard output with the number of the rank before each line."""

    def __init__(self, out: Any, prefix: str) -> None:
        self._out, self._prefix, self._begun = out, prefix, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._out, name)

    def write(self, text: str) -> int:
        for line in text.splitlines(keepends=True):
            self._out.write(line if self._begun else self._prefix + line)
            self._begun = not line.endswith("\n")
        return len(text)


def print_as(rank: int, ranks: str) -> None:
    """Let only rank 0 print to standard output; with ``ranks="all"`` every rank, with its number before each line."""
    if ranks == "all":
        sys.stdout = _Prefixed(sys.stdout, f"[{rank}] ")
    elif rank:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  open as long as the process
