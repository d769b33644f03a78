"""Threads take turns with the state of tensors, and nobody has the turn while a kernel or code of the user's runs.

To record a write, to plan and compile a program and to note what it computed is done ``with state``. Kernels, captured
functions and reads on the host run after ``let_go``. Memory that they work on is theirs by two rules:

- Who reads buffers names them in ``under_way`` as long as it reads. A new version of a value takes over the memory of
  an old one only where nobody does (``is_read``).
- Who takes over memory names it in ``overwritten`` before it looks who reads, and until the new version stands. Who
  wants to read it waits for that, and looks at the tensors again.

A device that cannot launch from several threads at a time has a turn of its own, which is held while it launches.
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
from tinsmith.core.weak import WeakTable
from tinsmith.ir import Ops, UOp
from tinsmith.ir.uop import toposort

state: Final = threading.RLock()
changed: Final = threading.Condition(state)  # somebody has done with memory that was taken over
overwritten: Final[dict[int, int]] = {}  # id of a buffer → the thread that writes a new version over it

release_all: Final[Callable[[], Any]] = getattr(state, "_release_save")  # noqa: B009  as Condition.wait does
take: Final[Callable[[Any], None]] = getattr(state, "_acquire_restore")  # noqa: B009
has_turn: Final[Callable[[], bool]] = getattr(state, "_is_owned")  # noqa: B009
under_way: Final[dict[int, Sequence[Buffer]]] = {}  # by id of the list
_looks: Final[WeakTable[Any, Buffer]] = WeakTable()


def let_go(saved: list[Any]) -> None:
    """Let other threads have their turns, however often this one has begun its own.

    The turn is taken again by ``finally: if saved: take(saved[0])`` around this call. A signal's handler may raise
    after every call, so the list is filled before this one returns to Python, and no function stands before ``take``.
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
    """Memory that new versions take over in this block, if nobody reads it. To be entered and left ``with state``."""
    mine = {id(b) for b in _with_parts(buffers)} - overwritten.keys()  # ids, for a reference would count
    overwritten.update(dict.fromkeys(mine, threading.get_ident()))
    try:
        yield
    finally:
        for key in mine:
            del overwritten[key]
        with state:
            changed.notify_all()


def wait_for(buffers: Iterable[Buffer]) -> bool:
    """Whether another thread was writing over one of ``buffers``: it may be done now. To be called ``with state``."""
    if not overwritten:
        return False
    me = threading.get_ident()
    if all(overwritten.get(id(b), me) == me for b in _with_parts(buffers)):
        return False
    changed.wait()
    return True


def wait_below(nodes: Iterable[UOp]) -> bool:
    """The same for all buffers below some nodes."""
    return bool(overwritten) and wait_for(n.arg for n in toposort(list(nodes)) if n.op is Ops.BUFFER)


class _HasNode(Protocol):
    """A tensor."""

    uop: UOp


@contextlib.contextmanager
def writing(t: _HasNode) -> Iterator[None]:
    """A block in which nobody else writes a tensor: what is read and written there is one step for others."""
    with state:
        while wait_below([t.uop]):
            pass
        yield


@contextlib.contextmanager
def reading(buffer: Buffer) -> Iterator[None]:
    """A block in which nobody writes over a buffer; who does so now ends first."""
    mine = [buffer]
    under_way[id(mine)] = mine
    try:
        if overwritten:
            with state:
                while wait_for(mine):
                    pass
        yield
    finally:
        del under_way[id(mine)]


def looked_at(view: Any, buffer: Buffer) -> None:
    """Nobody writes over a buffer as long as ``view``, the host's look at its memory, lives; see ``reading``."""
    with contextlib.suppress(TypeError):  # memory that no kernel writes: bytes, a mapped file
        _looks[view] = buffer


def is_read(node: UOp) -> bool:
    """Whether another thread, or the host, reads the memory of a BUFFER now."""
    if not under_way and not len(_looks):
        return False
    wanted = {id(b) for b in _with_parts([node.arg])}
    named = [*under_way.values(), [b for _, b in _looks.items()]]
    return any(id(b) in wanted for buffers in named for b in _with_parts(list(buffers)))


_turns: Final[dict[str, contextlib.AbstractContextManager[Any]]] = {}


def turn_of(device: Compiled) -> contextlib.AbstractContextManager[Any]:
    """What to hold while a device launches: all devices of one worker have it in common."""
    if device.concurrent:
        return _NOTHING
    return _turns.setdefault(device.worker, threading.RLock())


_NOTHING: Final = contextlib.nullcontext()


def _before_fork() -> None:
    """A child has no other thread that would end what this process's threads are writing."""
    state.acquire()
    while any(thread != threading.get_ident() for thread in overwritten.values()):
        changed.wait()


def _in_child() -> None:
    _turns.clear()
    state.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=state.release, after_in_child=_in_child)
