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
import stat
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from tinsmith.core.disk_cache import renew_turns
from tinsmith.core.errors import line_of, place

PERIOD = 1.0  # seconds between two signs
_FREE = 2.0  # seconds for ``ending``; the agent of the host kills processes that are left after 3
LAST_WORDS = 0.8  # seconds; launchers kill a process that is left a second after SIGTERM
_SIGNALS = (signal.SIGTERM,)
_LAUNCHERS = ("prterun", "mpirun", "mpiexec", "orterun")  # names of Open MPI's process that starts the ranks of a host


class Waiting(NamedTuple):
    """A collective in which this process waits.

    Attributes:
        kind: the name of the collective, such as "all_reduce".
        group, world: the name and the ranks of the group.
        ranks: the ranks for which it waits.
        call: its number in the group's sequence.
        what: the kind with op, dtype and shape.
        tag: the tag of a message.
        sure: False for work in the queue of a GPU, which may still be behind kernels.
    """

    kind: str
    group: str
    world: Sequence[int]
    ranks: Sequence[int]
    call: int
    what: str
    tag: int
    line: tuple[str, int]
    since: float
    sure: bool = True

    def message(self) -> dict[str, Any]:
        """Return the report to the monitor."""
        return {**self._asdict(), "line": place(*self.line), "seconds": time.monotonic() - self.since}


sending: list[int] = []  # ranks that messages of this process are on their way to
queued: list[Callable[[], Waiting | None]] = []  # functions that return a collective in the queue of a GPU
ending: list[Callable[[], None]] = []  # functions that end work on devices, called before a fault ends this process
_now: list[Waiting] = []
_failed: list[Waiting] = []  # the last call that raised


@contextlib.contextmanager
def waiting(call: Waiting) -> Iterator[None]:
    """Note that this process is in a collective."""
    _now.append(call)
    try:
        yield
    except BaseException:
        _failed[:] = [call]
        raise
    finally:
        _now.remove(call)


def _call() -> dict[str, Any] | None:
    found = list(_now)  # other threads change it
    found += [call for look in queued if not found and (call := look()) is not None]
    return found[-1].message() if found else None


def end_work() -> None:
    """Call the functions of ``ending`` in a thread, and wait for it no longer than ``_FREE`` seconds: they call
    libraries that are in an unknown state."""
    for end in ending:
        thread = threading.Thread(target=end, name="tinsmith-ending", daemon=True)
        thread.start()
        thread.join(_FREE)


def say(text: str) -> None:
    """Print a message to the user."""
    print(f"tinsmith: {text}", file=sys.stderr, flush=True)


class Address(NamedTuple):
    """The address at which the monitor listens, and the secret by which it recognizes ranks."""

    host: str
    port: int
    token: str


def start_monitor(count: int, timeout: float) -> Address:
    """Start the monitor in a separate session, so that a signal that ends the ranks does not end it before its
    report."""
    token = secrets.token_hex(16)
    out = _error_output_of_launcher()
    process = _started(str(count), str(timeout), errors=out)
    if out is not None:
        os.close(out)
    process.stdin.write(f"{token}\n")
    process.stdin.close()
    port = int(process.stdout.readline())
    process.stdout.close()
    return Address(socket.gethostname(), port, token)


def _error_output_of_launcher() -> int | None:
    """Return the standard error of the launcher, opened, if it is a pipe or a terminal; None elsewhere.

    A launcher that sees a rank die may drop what ranks print from then on, which was one of six reports on a busy
    machine. A file is not opened a second time: the launcher would write over the report.
    """
    parent = Path("/proc", str(os.getppid()))
    with contextlib.suppress(OSError):
        error = parent / "fd" / "2"
        mode = error.stat().st_mode
        if (parent / "comm").read_text().strip() in _LAUNCHERS and (stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)):
            return os.open(error, os.O_WRONLY | os.O_NOCTTY)
    return None


class Agent:
    """The agent of this host: it reports the host's ranks to the monitor, and kills the remaining ones after a fault.
    It is started before MPI, because processes should not fork after MPI has started."""

    def __init__(self) -> None:
        self.process = _started()
        self.process.stdout.close()

    def begin(self, address: Address, pids: Sequence[int]) -> None:
        """Let it look after processes; none: end it."""
        words = [address.token, _reached(address), str(address.port), socket.gethostname(), *map(str, pids)]
        with contextlib.suppress(OSError):
            self.process.stdin.write("\n".join(words) if pids else "")
            self.process.stdin.close()


def _started(*arguments: str, errors: int | None = None) -> Any:
    """Start ``monitor.py`` as a process that outlives this one. The monitor, which has arguments, writes its reports to
    ``errors``; None: to the standard error of this process."""
    subprocess = importlib.import_module("subprocess")  # slow, and for few programs
    line = [sys.executable, "-I", "-S", str(Path(__file__).with_name("monitor.py")), *arguments]
    process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
                               stderr=errors if arguments else subprocess.DEVNULL)  # a launcher waits for its end
    process.returncode = 0  # it ends after this process: nobody waits for it
    return process


def _reached(address: Address) -> str:
    """Return the name by which this host reaches the monitor's."""
    return "127.0.0.1" if address.host == socket.gethostname() else address.host


class Watcher:
    """The connection of this process to the monitor, and the thread that keeps it.

    Args:
        abort: ends all processes of the program with an exit code.
    """

    def __init__(self, address: Address, rank: int, abort: Any) -> None:
        self.abort, self.lock = abort, threading.Lock()
        self.connection = socket.create_connection((_reached(address), address.port), timeout=30)
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
                # what the monitor has to say of another rank goes through the launcher, which ends with the last rank
                select.select([self.connection], [], [], LAST_WORDS)
                end_work()
                os._exit(128 + signal.SIGTERM)
            if self.connection in ready:
                data = b""
                with contextlib.suppress(OSError):
                    data = self.connection.recv(1 << 16)
                if not data:
                    return  # the monitor is gone
                time.sleep(0.2)  # its message comes first
                end_work()
                os._exit(1)
            self.sign()

    def sign(self) -> None:
        """Report the collective in which this process waits, its current line, and the receivers of its messages."""
        renew_turns()
        frame = sys._current_frames().get(self.main)
        self.tell(line=place(*line_of(frame)), waiting=_call(), sending=list(sending))

    def raised(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Report an exception that ends this process, and end the others."""
        self.before(kind, error, trace)
        sys.stderr.flush()
        frames = [f for f, _ in traceback.walk_tb(trace)]
        text = " ".join(str(error).split())
        self.tell(raised=f"{kind.__name__}: {text[:200]}", line=place(*line_of(frames[-1] if frames else None)),
                  waiting=_failed[-1].message() if _failed else None)
        time.sleep(0.2)  # the monitor speaks before the launcher ends all
        end_work()
        self.abort(130 if issubclass(kind, KeyboardInterrupt) else 1)

    def end(self) -> None:
        """Report that this process has ended normally."""
        self.tell(state="ended")


class _Prefixed:
    """Standard output or standard error, with the number of the rank before each line. Each line is written with one
    call, because a launcher would mix partial lines of several ranks."""

    def __init__(self, out: Any, prefix: str) -> None:
        self._out, self._prefix, self._begun = out, prefix, ""
        self._lock = threading.Lock()
        atexit.register(self._end)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._out, name)

    def write(self, text: str) -> int:
        with self._lock:
            whole, newline, self._begun = (self._begun + text).rpartition("\n")
            if newline:
                self._out.write("".join(f"{self._prefix}{line}\n" for line in whole.split("\n")))
                self._out.flush()
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    def _end(self) -> None:
        if self._begun:
            self.write("\n")


def print_as(rank: int, ranks: str) -> None:
    """Let only rank 0 print to standard output; with ``ranks="all"`` every rank, with its number before each line, of
    standard error, too."""
    if ranks == "all":
        sys.stdout = _Prefixed(sys.stdout, f"[{rank}] ")
        sys.stderr = _Prefixed(sys.stderr, f"[{rank}] ")
    elif rank:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  open as long as the process
