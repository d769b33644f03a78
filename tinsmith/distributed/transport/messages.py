"""Sends that do not wait: the message is copied, and MPI transfers it while the program goes on.

A thread looks after transfers that need both ends (MPI's rendezvous): it calls MPI for a moment whenever the program
does not, so a receiver never waits for a kernel of the sender to end.
"""
from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

from tinsmith.distributed import watch
from tinsmith.distributed.world import ProcessGroup, world

Array = np.ndarray[Any, Any]

_PAUSE: Final = 0.0005  # seconds between two looks at transfers: a tenth of a small kernel's launch per look


class Message(NamedTuple):
    """A message on its way.

    Attributes:
        requests: of MPI, one for each part.
        buffer: the copy that MPI reads.
        target: rank in the world of the receiver.
    """

    requests: list[Any]
    buffer: Array
    target: int


class Outbox:
    """The messages of this process that are on their way, and the buffers of those that have arrived."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.free: dict[int, list[Array]] = {}
        self.news = threading.Condition()
        self.thread: threading.Thread | None = None
        self.ended = False

    def post(self, group: ProcessGroup, x: Array, target: int, send: Callable[[Array], list[Any]]) -> None:
        """Send a copy of ``x``, which may be overwritten at once; the caller holds ``World.turn``."""
        self.collect()
        line = x.reshape(-1).view(np.uint8)
        kept = self.free.get(len(line))
        buffer = kept.pop() if kept else np.empty(len(line), np.uint8)
        buffer[...] = line
        self.sent.append(Message(send(buffer.view(f"u{x.dtype.itemsize}")), buffer, group.ranks[target]))
        watch.sending[:] = [m.target for m in self.sent]
        self._start()
        with self.news:
            self.news.notify()

    def collect(self) -> None:
        """Take back the buffers of messages that have arrived; the caller holds ``World.turn``."""
        mpi = world().mpi
        left = []
        for message in self.sent:
            if mpi.Request.Testall(message.requests):
                self.free.setdefault(len(message.buffer), []).append(message.buffer)
            else:
                left.append(message)
        self.sent[:] = left
        watch.sending[:] = [m.target for m in left]

    def wait(self) -> None:
        """Wait until all messages have arrived."""
        with world().turn:
            for message in self.sent:
                world().mpi.Request.Waitall(message.requests)
            self.collect()

    def _start(self) -> None:
        mpi = world().mpi
        if self.thread is None and mpi.Query_thread() >= mpi.THREAD_SERIALIZED:
            self.thread = threading.Thread(target=self._work, name="tinsmith-messages", daemon=True)
            self.thread.start()
            atexit.register(self.end)

    def _work(self) -> None:
        turn = world().turn
        while not self.ended:
            with self.news:
                while not self.sent and not self.ended:
                    self.news.wait()
            if turn.acquire(blocking=False):  # else the program is in MPI, which looks after all transfers
                try:
                    self.collect()
                finally:
                    turn.release()
            time.sleep(_PAUSE)

    def end(self) -> None:
        """Wait for all messages, and for the thread: MPI ends after this."""
        self.wait()
        with self.news:
            self.ended = True
            self.news.notify()
        if self.thread is not None:
            self.thread.join()


OUTBOX: Final = Outbox()
