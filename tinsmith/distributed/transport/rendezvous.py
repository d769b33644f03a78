"""Small messages between the processes of ``torchrun``, over TCP; data travel by NCCL.

Rank 0 serves them. ``torchrun`` keeps a server of its own at ``MASTER_PORT``, and gives no other port: ours takes the
first free one of the next ``PORTS`` ports, and a process recognizes it by a hash of the launcher's variables. Like
PyTorch's store it protects from mistakes, not from attackers: use it in a network that you trust.

There is one request: give bytes to a named exchange, and get what all its processes gave; the sender of a message does
not wait for them. ``StoreGroup`` and ``STORE`` have those methods of ``mpi4py``'s communicators and module that the
rest of the package uses for small messages; tensors in the memory of the host are refused.
"""
from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import socketserver
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from tinsmith.core.errors import CommunicationError

PORTS: Final = 16
MOST: Final = 1 << 24  # bytes that a process gives to an exchange
_LINE: Final = 1 << 10  # bytes of a request before its value
_WAIT: Final = 300.0  # seconds until rank 0 must have started
_ANSWER: Final = 3.0  # seconds for a connection and for its first answer
_PAUSE: Final = 0.1  # seconds between two looks for rank 0
_HELLO: Final = b"tinsmith\n"


class _Server(socketserver.ThreadingTCPServer):
    """The exchanges under way: by name, what each process has given, and how many have not read it yet."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, port: int, word: str) -> None:
        super().__init__(("", port), _Connection)
        self.word = word
        self.given: dict[str, dict[int, bytes]] = {}
        self.unread: dict[str, int] = {}
        self.changed = threading.Condition()

    def exchanged(self, name: str, rank: int, size: int, own: bytes, wait: bool = True) -> list[bytes]:
        """Return what all ``size`` processes give, once they have; nothing, at once, for one that does not wait."""
        with self.changed:
            given = self.given.setdefault(name, {})
            given[rank] = own
            self.unread[name] = self.unread.get(name, 0) + wait
            if len(given) == size:
                self.changed.notify_all()
            if not wait:
                return []
            while len(given) < size:
                self.changed.wait()
            self.unread[name] -= 1
            if not self.unread[name]:
                del self.given[name], self.unread[name]
            return [given[r] for r in range(size)]


class _Connection(socketserver.StreamRequestHandler):
    """One process. A request is a line of JSON and a value; the answer a line with the sizes, and the values."""

    server: _Server
    disable_nagle_algorithm = True

    def handle(self) -> None:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # a stranger, or a process that has died
            if json.loads(self.rfile.readline(_LINE)) != self.server.word:
                return
            self.wfile.write(_HELLO)
            while line := self.rfile.readline(_LINE):
                request = json.loads(line)
                if not 0 <= request["bytes"] <= MOST:
                    return
                own = self.rfile.read(request["bytes"])
                found = self.server.exchanged(request["name"], request["rank"], request["size"], own,
                                              request["wait"])
                self.wfile.write(json.dumps([len(v) for v in found]).encode() + b"\n" + b"".join(found))


class Store:
    """The connection of a process to the server of rank 0, which the process of rank 0 starts.

    Args:
        environment: the launcher's variables.
        wait: seconds until rank 0 must have started.

    Raises:
        CommunicationError: if a variable is missing, no port is free, or rank 0 does not start.
    """

    def __init__(self, rank: int, environment: Mapping[str, str], wait: float = _WAIT) -> None:
        host, port = environment.get("MASTER_ADDR", ""), environment.get("MASTER_PORT", "")
        if not host or not port.isdecimal():
            raise CommunicationError("dist.init", f"MASTER_ADDR={host!r} and MASTER_PORT={port!r}",
                                     "torchrun, which sets them")
        names = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "WORLD_SIZE")
        word = hashlib.sha256("\0".join((host, port, *(environment.get(n, "") for n in names))).encode()).hexdigest()
        ports = range(int(port) + 1, int(port) + 1 + PORTS)
        self.lock = threading.Lock()
        self.server = _served(ports, word) if rank == 0 else None
        with _connected("127.0.0.1" if self.server else host, ports, word, wait) as connection:
            self.file = connection.makefile("rwb")  # closes the connection with itself

    def close(self) -> None:
        """Close the connection; rank 0 stops serving, and frees its port."""
        with contextlib.suppress(OSError):  # the other end may be gone
            self.file.close()
        if self.server is not None:
            self.server.shutdown()
            self.server.server_close()

    def exchanged(self, name: str, rank: int, size: int, own: bytes, wait: bool = True) -> list[bytes]:
        """Return what ``size`` processes give to an exchange, in the order of their ranks; nothing for one that does
        not wait. Each name is used once."""
        with self.lock, _lost_is_an_error():
            request = {"name": name, "rank": rank, "size": size, "bytes": len(own), "wait": wait}
            self.file.write(json.dumps(request).encode() + b"\n" + own)
            self.file.flush()
            line = self.file.readline()
            if not line:
                raise ConnectionError("its process has ended")
            return [self.file.read(count) for count in json.loads(line)]


@contextlib.contextmanager
def _lost_is_an_error() -> Iterator[None]:
    """Raise the error of communication for a broken connection."""
    try:
        yield
    except OSError as error:
        raise CommunicationError("dist", f"the connection to rank 0 is lost: {error}",
                                 "the output of rank 0, which has ended") from None


def _served(ports: Sequence[int], word: str) -> _Server:
    """Return the server at the first free port, served by threads."""
    for port in ports:
        with contextlib.suppress(OSError):
            server = _Server(port, word)
            threading.Thread(target=server.serve_forever, name="tinsmith-store", daemon=True).start()
            return server
    raise CommunicationError("dist.init", f"ports {ports[0]} to {ports[-1]} are all in use",
                             "another --master-port for torchrun")


def _connected(host: str, ports: Sequence[int], word: str, wait: float) -> socket.socket:
    """Return a connection to the server, which another process may yet start."""
    end = time.monotonic() + wait
    while True:
        for port in ports:
            found = _greeted(host, port, word)
            if found is not None:
                return found
        if time.monotonic() > end:
            raise CommunicationError("dist.init", f"rank 0 was not found at {host}, ports {ports[0]} to {ports[-1]}",
                                     "a MASTER_ADDR that all hosts reach, and open ports after MASTER_PORT")
        time.sleep(_PAUSE)


def _greeted(host: str, port: int, word: str) -> socket.socket | None:
    """Return a connection to the server at a port; None if it is not there: a stranger gives another answer, or
    none."""
    with contextlib.suppress(OSError):
        connection = socket.create_connection((host, port), timeout=_ANSWER)
        with contextlib.suppress(OSError):
            connection.sendall(json.dumps(word).encode() + b"\n")
            if connection.recv(len(_HELLO)) == _HELLO:
                connection.settimeout(None)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return connection
        connection.close()
    return None


class StoreGroup:
    """Processes that exchange small messages through the store, with the methods of an ``mpi4py`` communicator.

    Args:
        name: the same in all of them, and of no other group.
        size, rank: number of processes, and of this one among them.
    """

    def __init__(self, store: Store, name: str, size: int, rank: int) -> None:
        self.store, self.name, self.size, self.rank = store, name, size, rank
        self.calls = 0
        self.messages: dict[str, int] = {}  # numbers of messages, by the two processes and the tag

    def Get_size(self) -> int:
        return self.size

    def Get_rank(self) -> int:
        return self.rank

    def exchanged(self, own: bytes) -> list[bytes]:
        """Return what all processes give."""
        self.calls += 1
        return self.store.exchanged(f"{self.name}/{self.calls}", self.rank, self.size, own)

    def Allgather(self, own: np.ndarray[Any, Any], every: np.ndarray[Any, Any]) -> None:
        rows = self.exchanged(own.tobytes())
        every[...] = np.frombuffer(b"".join(rows), every.dtype).reshape(every.shape)

    def allgather(self, own: Any) -> list[Any]:
        return [json.loads(row) for row in self.exchanged(json.dumps(own).encode())]

    def Bcast(self, values: np.ndarray[Any, Any], root: int) -> None:
        rows = self.exchanged(values.tobytes() if self.rank == root else b"")
        values[...] = np.frombuffer(rows[root], values.dtype).reshape(values.shape)

    def bcast(self, value: Any, root: int) -> Any:
        return self.allgather(value)[root]

    def isend(self, value: Any, dest: int, tag: int) -> None:
        """Send a value to a process; it does not wait."""
        self._message(self.rank, dest, tag, json.dumps(value).encode(), wait=False)

    def recv(self, source: int, tag: int) -> Any:
        return json.loads(self._message(source, self.rank, tag, b"", wait=True)[0])

    def _message(self, source: int, dest: int, tag: int, own: bytes, wait: bool) -> list[bytes]:
        """Take part in the next exchange between two processes with a tag: 0 sends, 1 receives."""
        name = f"{self.name}/{source}to{dest}t{tag}"
        self.messages[name] = number = self.messages.get(name, 0) + 1
        return self.store.exchanged(f"{name}/{number}", int(wait), 2, own, wait)

    def Barrier(self) -> None:
        self.exchanged(b"")

    def Split(self, color: int, key: int) -> StoreGroup:
        every = self.allgather([color, key, self.rank])
        members = sorted((k, r) for c, k, r in every if c == color)
        return StoreGroup(self.store, f"{self.name}/{self.calls}c{color}", len(members),
                          members.index((key, self.rank)))

    def Dup(self) -> StoreGroup:
        self.calls += 1
        return StoreGroup(self.store, f"{self.name}/{self.calls}d", self.size, self.rank)

    def Abort(self, code: int) -> None:
        """End this process; the launcher ends the others."""
        os._exit(code)

    def __getattr__(self, name: str) -> Any:
        raise CommunicationError("dist", f"torchrun connects processes by NCCL, which has no {name} for tensors in the "
                                 "memory of the host", "tensors on a GPU, or mpirun in place of torchrun")


class _Requests:
    """Messages of MPI that have not arrived: none."""

    @staticmethod
    def Waitall(requests: Sequence[Any]) -> None:
        """Do nothing."""

    @staticmethod
    def Testall(requests: Sequence[Any]) -> bool:
        return True


# What stands for ``mpi4py.MPI``: threads may communicate, one at a time (``World.turn``).
STORE: Final = SimpleNamespace(Exception=ConnectionError, Request=_Requests, THREAD_SERIALIZED=2, THREAD_MULTIPLE=3,
                               Query_thread=lambda: 2, SUM="sum", MAX="max", MIN="min", PROD="prod")
