"""The process that looks after the ranks of a program: it says which one died, raised or hangs, and ends the others.

Rank 0 starts it as a program of its own, so that it outlives all of them and a rank that is stuck in native code can
be named. It imports nothing of this package. Each rank keeps a connection open and writes a line of JSON every second:
what it waits for, and the user's line that it is at.
"""
from __future__ import annotations

import contextlib
import json
import selectors
import socket
import sys
import time
from typing import Any, Final

SILENT: Final = 15.0  # seconds without a sign of a rank that is connected
LATE: Final = 20.0  # seconds that ranks wait for another one before it is reported
ENDED: Final = 5.0  # seconds that ranks wait for one that has ended


class Rank:
    """A connected rank, and what it said last."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection, self.rest = connection, b""
        self.number, self.host, self.pid = -1, "?", 0
        self.seen = time.monotonic()
        self.line = ""
        self.waiting: dict[str, Any] | None = None
        self.state = "running"  # or "ended", "stopped": ended by the launcher

    def __str__(self) -> str:
        return f"rank {self.number} on {self.host} (process {self.pid})"


class Monitor:
    """All ranks, and the judgement of what went wrong; ``reason`` is the first fault."""

    def __init__(self, count: int, timeout: float, token: str) -> None:
        self.count, self.timeout, self.token = count, timeout, token
        self.ranks: dict[socket.socket, Rank] = {}
        self.gone: list[Rank] = []
        self.reason = ""
        self.reported: set[tuple[int, ...]] = set()

    def say(self, text: str) -> None:
        print(f"tinsmith: {text}", file=sys.stderr, flush=True)

    def fail(self, reason: str) -> None:
        """Report the first fault and end all ranks."""
        if self.reason:
            return
        self.reason = reason
        self.say(reason)
        for rank in self.ranks.values():
            with contextlib.suppress(OSError):  # one that is gone has ended by itself
                rank.connection.sendall(json.dumps({"end": reason}).encode() + b"\n")

    def told(self, rank: Rank, message: dict[str, Any]) -> None:
        """Note what a rank says."""
        rank.seen = time.monotonic()
        if message.get("token") == self.token:
            rank.number, rank.host, rank.pid = message["rank"], message["host"], message["pid"]
        elif rank.number < 0:
            self.lost(rank)  # no rank of this program
        elif "raised" in message:
            rank.state = "ended"
            self.fail(f"{rank} raised {message['raised']} at {message['line']}")
        elif "state" in message:
            rank.state = message["state"]
        else:
            rank.line, rank.waiting = message["line"], message["waiting"]

    def read(self, rank: Rank) -> None:
        """Read what a rank has written; one that is gone without a word has died."""
        try:
            data = rank.connection.recv(1 << 16)
        except OSError:
            data = b""
        *lines, rank.rest = (rank.rest + data).split(b"\n")
        for line in lines:
            try:
                self.told(rank, json.loads(line))
            except (ValueError, KeyError, AttributeError):  # not written by a rank: a stranger at this port
                return self.lost(rank)
        if not data:
            self.lost(rank)
            if rank.number >= 0 and rank.state == "running":
                self.fail(f"{rank} died{f'; it was last at {rank.line}' if rank.line else ''}")

    def lost(self, rank: Rank) -> None:
        self.ranks.pop(rank.connection, None)
        rank.connection.close()
        if rank.number >= 0:
            self.gone.append(rank)

    def judge(self) -> None:
        """Look for ranks that are silent, and for those that others wait for."""
        now = time.monotonic()
        known = {rank.number: rank for rank in (*self.gone, *self.ranks.values())}
        for rank in self.ranks.values():
            if rank.number >= 0 and rank.state == "running" and now - rank.seen > SILENT:
                self.fail(f"{rank} has given no sign for {SILENT:.0f} s; it was last at {rank.line}")
        for rank in [r for r in self.ranks.values() if r.waiting is not None and r.state == "running"]:
            waiting = rank.waiting or {}
            missing = [known[n] for n in waiting["ranks"] if n in known and not self._there(known[n], waiting)]
            if not missing:
                continue
            text = (f"rank {rank.number} has waited {waiting['seconds']:.0f} s in {waiting['kind']} at "
                    f"{waiting['line']} for {', '.join(self._where(r) for r in missing)}")
            limits = [ENDED] * any(r.state == "ended" for r in missing) + [self.timeout] * bool(self.timeout)
            if any(waiting["seconds"] > limit for limit in limits):
                self.fail(text)
            elif waiting["seconds"] > LATE and (key := tuple(r.number for r in missing)) not in self.reported:
                self.reported.add(key)
                self.say(text + f". All are ended after {self.timeout:.0f} s (DIST_TIMEOUT)" * bool(self.timeout))

    def _there(self, rank: Rank, waiting: dict[str, Any]) -> bool:
        """Return True if a rank is in the collective that another one is in."""
        found = rank.waiting
        return rank.state == "running" and found is not None and (found["ranks"], found["call"]) == (
            waiting["ranks"], waiting["call"])

    def _where(self, rank: Rank) -> str:
        if rank.state == "ended":
            return f"{rank}, which has ended"
        inside = f" in {rank.waiting['kind']}" if rank.waiting is not None else ""
        silent = time.monotonic() - rank.seen
        state = f"gave its last sign {silent:.0f} s ago" if silent > 4 else "is"
        return f"{rank}, which {state} at {rank.line}{inside}"


def serve(count: int, timeout: float, token: str) -> int:
    """Look after ``count`` ranks until all are gone; print the port first. Return 1 after a fault."""
    monitor = Monitor(count, timeout, token)
    listener = socket.create_server(("", 0), backlog=count)
    print(listener.getsockname()[1], flush=True)
    sys.stdout.close()
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    begin = time.monotonic()
    while len(monitor.gone) < count and (monitor.ranks or time.monotonic() - begin < 60):
        for key, _ in selector.select(0.5):
            if key.fileobj is listener:
                connection, _ = listener.accept()
                monitor.ranks[connection] = Rank(connection)
                selector.register(connection, selectors.EVENT_READ)
                continue
            rank = monitor.ranks.get(key.fileobj)  # type: ignore[call-overload]
            if rank is not None:
                monitor.read(rank)
            if key.fileobj not in monitor.ranks:
                selector.unregister(key.fileobj)
        monitor.judge()
    return int(bool(monitor.reason))


if __name__ == "__main__":
    sys.exit(serve(int(sys.argv[1]), float(sys.argv[2]), sys.stdin.readline().strip()))
