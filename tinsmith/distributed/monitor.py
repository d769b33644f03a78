"""The monitor of the ranks of a program: it reports which rank died, raised or hangs, and ends the others.

Rank 0 starts it as a separate program, so that it outlives all ranks, and a rank that is stuck in native code can be
named. It imports nothing of this package. Each rank keeps a connection open and writes a line of JSON every second: the
collective that it waits in, and its current line of the user's code. Each host has an agent, another process of this
file, which reports the state and the CPU time of the host's ranks, also of those that cannot send.

Ranks are ended at once if they cannot continue: one died or raised, all wait for each other, or two are in different
calls at the same position of a group's sequence. A rank that computes while others wait is only reported, until
``DIST_TIMEOUT``.
"""
from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

SILENT: Final = 15.0  # seconds without a sign of a host, or of a rank that others wait for
LATE: Final = 20.0  # seconds that ranks wait for another one before it is reported
AGAIN: Final = 3.0  # times as late it is reported again
ENDED: Final = 5.0  # seconds that ranks wait for one that has ended, or for each other
AGENT: Final = 1.0  # seconds between two reports of an agent
LEFT: Final = 3.0  # seconds after the end of the program until an agent kills the ranks that are left

_STOPPED: Final = "T"  # by a signal; "t" is a debugger's
_MESSAGES: Final = ("send", "receive", "post", "exchange")


class Peer:
    """A connection of a rank, with its last report, or of the agent of a host."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection, self.rest = connection, b""
        self.number, self.host, self.pid = -1, "?", 0
        self.agent = False
        self.seen = time.monotonic()
        self.line, self.since, self.used = "", self.seen, 0.0  # where it is, since when, CPU seconds at that time
        self.waiting: dict[str, Any] | None = None
        self.sending: list[int] = []  # ranks that its messages are on their way to
        self.state = "running"  # or "ended", "stopped": ended by the launcher
        self.process, self.seconds = "", 0.0  # the agent's account: state and CPU time

    def __str__(self) -> str:
        return f"rank {self.number} on {self.host} (process {self.pid})"

    @property
    def known(self) -> bool:
        """True once it has given the word of this program."""
        return self.number >= 0 or self.agent


class Monitor:
    """The state of all ranks, and the detection of faults; ``reason`` is the first fault."""

    def __init__(self, count: int, timeout: float, token: str) -> None:
        self.count, self.timeout, self.token = count, timeout, token
        self.peers: dict[Any, Peer] = {}
        self.gone: list[Peer] = []
        self.reason = ""
        self.begin = time.monotonic()
        self.reported: dict[tuple[int, ...], float] = {}  # ranks that others wait for → seconds of the next report

    @property
    def ranks(self) -> list[Peer]:
        """The connected ranks, in order."""
        return sorted((p for p in self.peers.values() if p.number >= 0), key=lambda p: p.number)

    def say(self, text: str) -> None:
        print(f"tinsmith: {text}", file=sys.stderr, flush=True)

    def fail(self, reason: str) -> None:
        """Report the first fault and end all ranks."""
        if self.reason:
            return
        self.reason = reason
        self.say(reason)
        for peer in self.peers.values():
            with contextlib.suppress(OSError):  # one that is gone has ended by itself
                peer.connection.sendall(json.dumps({"end": reason}).encode() + b"\n")

    # *** messages ***

    def told(self, peer: Peer, message: dict[str, Any]) -> None:
        """Record the report of a rank or an agent."""
        peer.seen = time.monotonic()
        if message.get("token") == self.token:
            peer.number, peer.host, peer.pid = message["rank"], message["host"], message["pid"]
            peer.agent = peer.number < 0
        elif not peer.known:
            self.lost(peer)  # no rank of this program
        elif peer.agent:
            for rank in self.ranks:
                if rank.host == peer.host and (found := message["processes"].get(str(rank.pid))):
                    rank.process, rank.seconds = found
        elif "raised" in message:
            peer.state = "ended"
            others = self._differing([peer, *(r for r in self.ranks if r is not peer)], message.get("waiting"))
            self.fail(f"{peer} raised {message['raised']} at {message['line']}" + (f"; {others}" if others else ""))
        elif "state" in message:
            peer.state = message["state"]
        else:
            if message["line"] != peer.line:
                peer.line, peer.since, peer.used = message["line"], peer.seen, peer.seconds
            peer.waiting, peer.sending = message["waiting"], message.get("sending", [])

    def read(self, peer: Peer) -> None:
        """Read the reports of a peer; a rank that disconnects without a final report has died."""
        try:
            data = peer.connection.recv(1 << 16)
        except OSError:
            data = b""
        *lines, peer.rest = (peer.rest + data).split(b"\n")
        for line in lines:
            try:
                self.told(peer, json.loads(line))
            except (ValueError, KeyError, AttributeError, TypeError):  # a stranger at this port
                return self.lost(peer)
        if not data:
            self.lost(peer)
            if peer.number >= 0 and peer.state == "running":
                self.fail(f"{peer} died{f'; it was last at {peer.line}' if peer.line else ''}")

    def lost(self, peer: Peer) -> None:
        self.peers.pop(peer.connection, None)
        peer.connection.close()
        if peer.number >= 0:
            self.gone.append(peer)

    # *** judgement ***

    def judge(self) -> None:
        """Detect ranks that cannot continue, and ranks for which others wait."""
        if self.reason:
            return
        now = time.monotonic()
        known = {rank.number: rank for rank in (*self.gone, *self.ranks)}
        waiting = [r for r in self.ranks if r.waiting is not None and r.state == "running"]
        missing = {r.number: self._missing(r, known) for r in waiting}
        self._look_for_silence(now, {n for ranks in missing.values() for n in ranks})
        self._look_for_differences(waiting)
        self._look_for_deadlock(now, waiting, missing, known)
        groups: dict[tuple[int, ...], list[Peer]] = {}
        for rank in waiting:
            causes = tuple(n for n in missing[rank.number] if n not in missing) or missing[rank.number]
            if causes:
                groups.setdefault(causes, []).append(rank)
        self.reported = {key: at for key, at in self.reported.items() if not key or key in groups}
        for causes, ranks in groups.items():
            self._report(now, [known[n] for n in causes], ranks)
        if len(known) < self.count:
            self._look_for_start(now, len(known))

    def _missing(self, rank: Peer, known: dict[int, Peer]) -> tuple[int, ...]:
        """Return the ranks that are not in the call that a rank waits in."""
        call = rank.waiting or {}
        return tuple(n for n in call["ranks"] if n in known and n != rank.number and not self._there(rank, known[n]))

    def _there(self, rank: Peer, other: Peer) -> bool:
        """Return True if ``other`` is in the call that ``rank`` waits in, or its message is on its way."""
        own, found = rank.waiting or {}, other.waiting
        if own["kind"] == "receive" and rank.number in other.sending and other.state == "running":
            return True
        if found is None or other.state != "running" or (own["group"], own["world"]) != (
                found["group"], found["world"]):
            return False
        if own["kind"] in _MESSAGES:
            fits = found["kind"] != own["kind"] or own["kind"] == "exchange"
            return found["kind"] in _MESSAGES and fits and found["tag"] == own["tag"] and rank.number in found["ranks"]
        return bool(found["call"] == own["call"] and found["kind"] not in _MESSAGES)

    def _look_for_silence(self, now: float, needed: Iterable[int]) -> None:
        """Report hosts that do not respond, and stopped ranks for which others wait. A single rank may be silent during
        a native call that holds the interpreter's lock."""
        agents = {p.host: p for p in self.peers.values() if p.agent}
        for rank in self.ranks:
            agent = agents.get(rank.host)
            silent = min(now - rank.seen, now - agent.seen) if agent is not None else 0.0
            if silent > SILENT and rank.state == "running":
                self.fail(f"{rank} has given no sign for {silent:.0f} s, nor has its host; it was last at {rank.line}")
            if rank.process == _STOPPED and rank.number in needed and now - rank.seen > SILENT:
                self.fail(f"{rank} was stopped by a signal {now - rank.seen:.0f} s ago, at {rank.line}, and others "
                          "wait for it")

    def _differing(self, ranks: Sequence[Peer], call: dict[str, Any] | None) -> str:
        """Return the calls at one place of a group's sequence, if they differ; else "". ``call`` is that of the first
        of ``ranks``."""
        if call is None or call["kind"] in _MESSAGES:
            return ""
        found: dict[str, list[int]] = {f"{call['what']} at {call['line']}": [ranks[0].number]}
        kinds = {call["what"]}
        for rank in ranks[1:]:
            other = rank.waiting
            if other is not None and other["kind"] not in _MESSAGES and all(
                    other[k] == call[k] for k in ("group", "world", "call")):
                found.setdefault(f"{other['what']} at {other['line']}", []).append(rank.number)
                kinds.add(other["what"])
        return "" if len(kinds) == 1 else "; ".join(f"{numbered(n)}: {what}" for what, n in found.items())

    def _look_for_differences(self, waiting: Sequence[Peer]) -> None:
        for n, rank in enumerate(waiting):
            call = rank.waiting or {}
            if text := self._differing(waiting[n:], call):
                return self.fail(f"call {call['call']} of processes {', '.join(map(str, call['world']))} differs: "
                                 f"{text}. All must call the same collectives in the same order")

    def _look_for_deadlock(self, now: float, waiting: Sequence[Peer], missing: dict[int, tuple[int, ...]],
                           known: dict[int, Peer]) -> None:
        """End all if ranks wait for each other in calls that cannot all come.

        Each has been in its call for ``ENDED`` seconds, by its own account, which is younger than that: so there was a
        moment at which all were, and a message that was sent before would have come. The queue of a GPU is not judged.
        """
        def stays(rank: Peer) -> bool:
            call = rank.waiting or {}
            return now - rank.seen < ENDED / 2 and call.get("seconds", 0.0) > ENDED and call.get("sure", True)

        free = {n for n, rank in known.items() if not (stays(rank) if rank in waiting else rank.state != "running" and (
            now - rank.seen > ENDED))}  # one that has just ended may have come before
        stuck = {r.number for r in waiting} - free
        while found := {n for n in stuck if free.issuperset(missing[n])}:  # all that it waits for may still come
            stuck, free = stuck - found, free | found
        ended = {m for n in stuck for m in missing[n] if known[m].state != "running"}
        if not stuck:
            return
        lines = "; ".join(self._calls([r for r in waiting if r.number in stuck]))
        if ended:
            gone = ", ".join(f"{known[m]}, which has ended" for m in sorted(ended))
            self.fail(f"{lines} for {gone}")
        else:
            self.fail(f"ranks wait for each other: {lines}")

    def _calls(self, ranks: Sequence[Peer]) -> list[str]:
        """Return "ranks 0, 1 wait in all_reduce(…) at train.py:7" for each different call."""
        found: dict[str, list[int]] = {}
        for rank in ranks:
            call = rank.waiting or {}
            to = {"send": f" to rank {call['ranks'][0]}", "receive": f" from rank {call['ranks'][0]}",
                  "exchange": f" with rank {call['ranks'][0]}"}
            found.setdefault(f"{call['what']}{to.get(call['kind'], '')} at {call['line']}", []).append(rank.number)
        return [f"{numbered(n)} wait{'s' * (len(n) == 1)} in {what}" for what, n in found.items()]

    def _report(self, now: float, causes: Sequence[Peer], ranks: Sequence[Peer]) -> None:
        """Report the ranks that others wait for, again after longer times; end all after the limit."""
        key = tuple(rank.number for rank in causes)
        seconds = max((rank.waiting or {})["seconds"] for rank in ranks)
        text = f"{', '.join(self._where(now, r) for r in causes)}; {'; '.join(self._calls(ranks))}"
        if self.timeout and seconds > self.timeout:
            self.fail(f"{text}, for {seconds:.0f} s: more than DIST_TIMEOUT={self.timeout:g}")
        elif seconds > self.reported.get(key, LATE):
            self.reported[key] = seconds * AGAIN
            end = f"All are ended after {self.timeout:g} s (DIST_TIMEOUT), unless it comes" * bool(self.timeout)
            self.say(f"{text}, for {seconds:.0f} s. {end}".rstrip())

    def _where(self, now: float, rank: Peer) -> str:
        """Return where a rank is that others wait for, and its CPU time: it computes, or it waits for something."""
        if rank.state != "running":
            return f"{rank} has ended"
        if rank.waiting is not None:
            return f"{rank} is in {rank.waiting['what']} at {rank.waiting['line']}"
        used = f" ({rank.seconds - rank.used:.0f} s of CPU)" if rank.process else ""
        silent = now - rank.seen
        native = f", in native code that holds the interpreter's lock for {silent:.0f} s" if silent > 4 else ""
        stopped = ", stopped by a signal" if rank.process == _STOPPED else ""
        return f"{rank} has been at {rank.line} for {now - rank.since:.0f} s{used}{stopped or native}"

    def _look_for_start(self, now: float, there: int) -> None:
        seconds = now - self.begin
        if self.timeout and seconds > self.timeout:
            self.fail(f"{self.count - there} of {self.count} processes have not come to dist.init() after "
                      f"{seconds:.0f} s: more than DIST_TIMEOUT={self.timeout:g}")
            os.kill(os.getppid(), signal.SIGTERM)  # rank 0, which waits in MPI
        elif seconds > self.reported.get((), LATE):
            self.reported[()] = seconds * AGAIN
            self.say(f"rank 0 has waited {seconds:.0f} s in dist.init() for the other {self.count - 1} processes")


def numbered(numbers: Sequence[int]) -> str:
    """Return "rank 3" or "ranks 0-2, 5"."""
    parts: list[list[int]] = []
    for n in sorted(numbers):
        if parts and parts[-1][-1] == n - 1:
            parts[-1].append(n)
        else:
            parts.append([n])
    texts = [f"{p[0]}-{p[-1]}" if len(p) > 2 else ", ".join(map(str, p)) for p in parts]
    return f"rank{'s' * (len(numbers) > 1)} {', '.join(texts)}"


def serve(count: int, timeout: float, token: str) -> int:
    """Look after ``count`` ranks until all are gone; print the port first. Return 1 after a fault."""
    monitor = Monitor(count, timeout, token)
    listener = socket.create_server(("", 0), backlog=2 * count)
    print(listener.getsockname()[1], flush=True)
    sys.stdout.close()
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    parent = os.getppid()
    while len(monitor.gone) < count and (monitor.ranks or os.getppid() == parent):
        for key, _ in selector.select(0.5):
            if key.fileobj is listener:
                connection, _ = listener.accept()
                monitor.peers[connection] = Peer(connection)
                selector.register(connection, selectors.EVENT_READ)
                continue
            peer = monitor.peers.get(key.fileobj)
            if peer is not None:
                monitor.read(peer)
            if key.fileobj not in monitor.peers:
                selector.unregister(key.fileobj)
        monitor.judge()
    return int(bool(monitor.reason))


# *** the agent of a host ***


def process(pid: int) -> tuple[str, float] | None:
    """Return the state of a process, a letter as in ``ps``, and its CPU seconds; None if there is none.

    >>> process(os.getpid())[0]
    'R'
    """
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return fields[0], (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except OSError:
        if os.path.exists("/proc/self/stat"):
            return None
    line = subprocess.run(["ps", "-o", "state=,time=", "-p", str(pid)], capture_output=True, text=True,
                          check=False).stdout.split()
    if len(line) < 2:
        return None
    seconds = 0.0
    for part in line[1].replace("-", ":").split(":"):
        seconds = seconds * 60 + float(part)
    return line[0][0], seconds


def tell(address: tuple[str, int], token: str, host: str, pids: Sequence[int]) -> int:
    """Report the processes of this host to the monitor until it exits; after a fault, kill the remaining ones."""
    with socket.create_connection(address, timeout=30) as connection:
        connection.settimeout(AGENT)
        message: dict[str, Any] = {"token": token, "rank": -1, "host": host, "pid": os.getpid()}
        heard = b""
        with contextlib.suppress(OSError):
            while True:
                connection.sendall(json.dumps(message).encode() + b"\n")
                found = {str(pid): state for pid in pids if (state := process(pid)) and state[0] not in "ZX"}
                message = {"processes": found}
                if not found:
                    return 0
                try:
                    data = connection.recv(1 << 16)
                except TimeoutError:
                    continue
                heard += data
                if not data or b'"end"' in heard:
                    break
    if b'"end"' in heard:  # those that cannot hear it: stopped, or in native code
        time.sleep(LEFT)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
    return 0


def main(arguments: Sequence[str]) -> int:
    """Run as the monitor, given COUNT and TIMEOUT, with the token in standard input; without arguments as an agent,
    with token, host, port, name of this host and process ids there."""
    words = sys.stdin.read().split()
    if arguments:
        return serve(int(arguments[0]), float(arguments[1]), words[0])
    if len(words) < 5:
        return 0  # not needed
    token, host, port, name, *pids = words
    return tell((host, int(port)), token, name, [int(pid) for pid in pids])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
