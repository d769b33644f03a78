"""The other stages of a pipeline in a simulation: each is a process that simulates another rank of the same script.

What a stage does depends on the others: they tell it shapes, and when their messages are sent. So the first group of
processes that exchange messages starts a simulation of each of its other ranks. They tell each other what the stages of
a real program do, and the time at which each message is sent or a collective begins, by the clock of the sender.
"""
from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from tinsmith.core.errors import CommunicationError
from tinsmith.distributed.transport.rendezvous import Store, StoreGroup
from tinsmith.distributed.world import ProcessGroup

_CLOCK: Final = 1 << 20  # added to the tag of a message, for that with its time

# Starts the simulation of a rank in a group that is described by a word: port, secret, ranks, and the rank.
Start = Callable[[str], "subprocess.Popen[str]"]


class Peers:
    """The processes that simulate a group of ranks.

    Args:
        rank: the rank that this process simulates.
        start: starts the simulation of another rank; None if it cannot be started.
        given: the word of the process that started this one; "" in the first.
    """

    def __init__(self, rank: int, start: Start | None, given: str = "") -> None:
        self.rank, self.start = rank, start
        self.ranks: tuple[int, ...] = ()
        self.group: StoreGroup | None = None
        self.processes: list[subprocess.Popen[str]] = []
        self.ended = False
        self.given = tuple(given.split(":")[:3]) if given else ()

    def of(self, group: ProcessGroup | None) -> StoreGroup:
        """Return the connection to the others of a group, which are started at the first call.

        Raises:
            CommunicationError: for a second group, or in a program that is simulated without the command.
        """
        ranks = group.ranks if group is not None else ()
        if self.group is None and group is not None and (self.given or self.start is not None):
            self._connect(ranks)
        if self.group is None or ranks != self.ranks:
            raise CommunicationError("tinsmith simulate", f"messages between {group}, which are not simulated together",
                                     "stages of one dist.pipeline")
        return self.group

    def knows(self, group: ProcessGroup) -> StoreGroup | None:
        """Return the connection to a group if its ranks are simulated."""
        return self.group if group.ranks == self.ranks else None

    def _connect(self, ranks: tuple[int, ...]) -> None:
        self.ranks = ranks
        if self.given:
            port, word, known = self.given
            if known != ",".join(map(str, ranks)):
                raise CommunicationError("tinsmith simulate", f"rank {self.rank} exchanges messages with {ranks}, "
                                         f"another rank with {known}", "stages of one dist.pipeline")
            number = 1
        else:
            with socket.create_server(("127.0.0.1", 0)) as found:
                port = str(min(found.getsockname()[1], 65000))
            word, number = secrets.token_hex(8), 0
        variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": word}
        store = Store(number, variables)
        self.group = StoreGroup(store, "stages", len(ranks), ranks.index(self.rank))
        if not self.given and self.start is not None:
            told = f"{port}:{word}:{','.join(map(str, ranks))}"
            self.processes = [self.start(f"{told}:{r}") for r in ranks if r != self.rank]
            for process in self.processes:
                threading.Thread(target=self._end_with, args=(process,), daemon=True).start()

    def _end_with(self, process: subprocess.Popen[str]) -> None:
        """End this process if the simulation of another stage fails: messages from it do not come."""
        if process.wait() and not self.ended:
            print("tinsmith simulate: the simulation of another stage failed", file=sys.stderr, flush=True)
            self.end()
            os._exit(1)

    def reports(self) -> list[dict[str, Any]]:
        """Return the reports of the other ranks, when they have ended, in order."""
        return [json.loads(process.communicate()[0]) for process in self.processes]

    def end(self) -> None:
        """End the simulations of other ranks that go on after an error."""
        self.ended = True
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()

    # *** times ***

    def send(self, group: ProcessGroup, target: int, tag: int, seconds: float) -> None:
        """Tell a stage the time of a message."""
        self.of(group).isend(seconds, target, tag + _CLOCK)

    def receive(self, group: ProcessGroup, source: int, tag: int) -> float:
        """Return the time of the next message from a stage."""
        return float(self.of(group).recv(source, tag + _CLOCK))

    def all(self, group: StoreGroup, own: Any) -> Sequence[Any]:
        """Return the value of each stage."""
        return group.allgather(own)


class SimulatedCommunicator:
    """MPI's communicator of a simulated group: only stages of a pipeline answer."""

    def __init__(self, peers: Peers) -> None:
        self.peers = peers
        self.group: ProcessGroup | None = None

    def Dup(self) -> SimulatedCommunicator:
        return SimulatedCommunicator(self.peers)

    def Split(self, color: int, key: int) -> SimulatedCommunicator:
        return SimulatedCommunicator(self.peers)

    def isend(self, value: Any, dest: int, tag: int) -> None:
        self.peers.of(self.group).isend(value, dest, tag)

    def recv(self, source: int, tag: int) -> Any:
        return self.peers.of(self.group).recv(source, tag)

    def bcast(self, value: Any, root: int) -> Any:
        return self.peers.of(self.group).bcast(value, root)
