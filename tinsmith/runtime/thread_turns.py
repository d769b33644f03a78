"""Thread safety: one lock for the state of tensors, released while kernels or user code run.

Recording a write, planning and compiling a program, and noting its results happen ``with state``. Kernels, captured
functions and reads on the host run after ``let_go``. Two rules protect the memory they work on:

- A reader lists its buffers in ``under_way`` while it reads. A new version overwrites the memory of an old one only if
  no reader lists it (``is_read``).
- A writer lists the memory it overwrites in ``overwritten`` before it looks for readers, and until the new version is
  complete. A reader waits for that, and then reads the state of the tensors again.

A device that cannot launch from several threads at a time has its own lock, held while it launches.
"""
from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Protocol

from tinsmith.backend.device import Compiled
from tinsmith.backend.memory import Buffer
from tinsmith.backend.shards import Shards
from tinsmith.core.object_lifetime import WeakTable
from tinsmith.ir import Ops, UOp
from tinsmith.ir.uop import toposort

state: Final = threading.RLock()
changed: Final = threading.Condition(state)  # notified when a thread has finished overwriting memory
overwritten: Final[dict[int, int]] = {}  # id of a buffer → the thread that writes a new version over it

release_all: Final[Callable[[], Any]] = getattr(state, "_release_save")  # noqa: B009  as Condition.wait does
take: Final[Callable[[Any], None]] = getattr(state, "_acquire_restore")  # noqa: B009
has_turn: Final[Callable[[], bool]] = getattr(state, "_is_owned")  # noqa: B009
under_way: Final[dict[int, Sequence[Buffer]]] = {}  # id of the list → buffers that a running program or read uses
_looks: Final[WeakTable[Any, Buffer]] = WeakTable()


def let_go(saved: list[Any]) -> None:
    """Release ``state``, however often this thread has acquired it.

    Acquire it again by ``finally: if saved: take(saved[0])`` around this call. A signal handler may raise after every
    call, so the list is filled before this one returns to Python, and no function call precedes ``take``.
    """
    if has_turn():
        saved.extend(itertools.islice(iter(release_all, None), 1))


def _with_parts(buffers: Iterable[Buffer]) -> Iterator[Buffer]:
    for b in buffers:
        yield b
        if isinstance(b, Shards):
            yield from b.parts


@contextlib.contextmanager
def overwriting(buffers: Iterable[Buffer]) -> Iterator[None]:
    """Mark ``buffers`` as being overwritten during this block. Enter and leave it ``with state``."""
    # ids, since a reference would change the reference count
    mine = {id(b) for b in _with_parts(buffers)} - overwritten.keys()
    overwritten.update(dict.fromkeys(mine, threading.get_ident()))
    try:
        yield
    finally:
        for key in mine:
            del overwritten[key]
        with state:
            changed.notify_all()


def wait_for(buffers: Iterable[Buffer]) -> bool:
    """Return True after waiting if another thread was overwriting one of ``buffers``; else
    False. Call it ``with state``."""
    if not overwritten:
        return False
    me = threading.get_ident()
    if all(overwritten.get(id(b), me) == me for b in _with_parts(buffers)):
        return False
    changed.wait()
    return True


def wait_below(nodes: Iterable[UOp]) -> bool:
    """Call ``wait_for`` for all buffers below ``nodes``."""
    return bool(overwritten) and wait_for(n.arg for n in toposort(list(nodes)) if n.op is Ops.BUFFER)


class _HasNode(Protocol):
    """A tensor."""

    uop: UOp


@contextlib.contextmanager
def writing(t: _HasNode) -> Iterator[None]:
    """Return a context manager in which no other thread writes a tensor: its reads and writes are atomic for other
    threads."""
    with state:
        while wait_below([t.uop]):
            pass
        yield


@contextlib.contextmanager
def reading(buffer: Buffer) -> Iterator[None]:
    """Return a context manager in which no other thread overwrites a buffer; entry waits for a current writer."""
    mine = [buffer]
    under_way[id(mine)] = mine
    try:
        if overwritten:
            wait_to_read(mine)
        yield
    finally:
        del under_way[id(mine)]


def wait_to_read(buffers: Sequence[Buffer]) -> None:
    """Wait until no other thread overwrites ``buffers``, which this thread has listed in ``under_way``."""
    with state:
        while wait_for(buffers):
            pass


def looked_at(view: Any, buffer: Buffer) -> None:
    """Protect a buffer from being overwritten as long as ``view``, a host view of its memory, lives; see
    ``reading``."""
    # TypeError: memory that no kernel writes (bytes, a mapped file) has no weak references
    with contextlib.suppress(TypeError):
        _looks[view] = buffer


def is_read(node: UOp) -> bool:
    """Return True if another thread, or the host, currently reads the memory of a BUFFER."""
    if not under_way and not len(_looks):
        return False
    wanted = {id(b) for b in _with_parts([node.arg])}
    named = [*under_way.values(), [b for _, b in _looks.items()]]
    return any(id(b) in wanted for buffers in named for b in _with_parts(list(buffers)))


_turns: Final[dict[str, contextlib.AbstractContextManager[Any]]] = {}


def turn_of(device: Compiled) -> contextlib.AbstractContextManager[Any] | None:
    """Return the lock to hold while a device launches, shared by all devices of one worker; None if several threads may
    launch at the same time."""
    return None if device.concurrent else _turns.setdefault(device.worker, threading.RLock())


def _before_fork() -> None:
    """Wait until other threads finish overwriting: the child has no thread that would do it."""
    state.acquire()
    while any(thread != threading.get_ident() for thread in overwritten.values()):
        changed.wait()


def _in_child() -> None:
    _turns.clear()
    state.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=state.release, after_in_child=_in_child)
