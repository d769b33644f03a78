"""Threads take turns with the state of tensors, and nobody has the turn while a kernel or code of the user's runs.

To record a write, to plan and compile a program and to note what it computed is done ``with state``. Kernels, captured
functions and reads on the host run ``Unlocked``. Memory that they work on is theirs by two rules:

- Who reads a buffer refers to its ``Buffer``, as long as it reads. A new version of a value takes over the memory of an
  old one only where reference counts say that nobody else does (``is_held``).
- Who takes over memory names it in ``overwritten`` before it looks at the counts, and until the new version stands. Who
  wants to read it waits for that, and looks at the tensors again.

A device that cannot launch from several threads at a time has a turn of its own, which is held while it launches.
"""
from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from tinsmith.backend.device import Compiled
from tinsmith.backend.memory import Buffer
from tinsmith.backend.shards import Shards
from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.uop import toposort

state: Final = threading.RLock()
changed: Final = threading.Condition(state)  # somebody has done with memory that was taken over
overwritten: Final[dict[int, int]] = {}  # id of a buffer → the thread that writes a new version over it

release_all: Final[Callable[[], Any]] = getattr(state, "_release_save")  # noqa: B009  as Condition.wait does
take_again: Final[Callable[[Any], None]] = getattr(state, "_acquire_restore")  # noqa: B009
has_turn: Final[Callable[[], bool]] = getattr(state, "_is_owned")  # noqa: B009
_COUNTED: Final = hasattr(sys, "getrefcount")  # else nobody can tell
_references: Final[Callable[[Any], int]] = getattr(sys, "getrefcount", lambda _: -1)


class Unlocked:
    """A block in which other threads have their turns, however often this one has begun its own."""

    __slots__ = ("_saved",)

    def __enter__(self) -> None:
        self._saved = release_all() if has_turn() else None

    def __exit__(self, *error: object) -> None:
        if self._saved is not None:
            take_again(self._saved)


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


def wait_to_write(node: UOp) -> None:
    """Wait until no other thread puts a new version in the place of what a tensor is. To be called ``with state``,
    before the tensor is looked at."""
    if overwritten:
        while wait_for(n.arg for n in toposort(node) if n.op is Ops.BUFFER):
            pass


def settled(buffer: Buffer) -> Buffer:
    """A buffer that nobody writes over, and that nobody will as long as the caller refers to it."""
    if overwritten:
        with state:
            while wait_for([buffer]):
                pass
    return buffer


def is_held(node: UOp) -> bool:
    """Whether anything but the graph refers to the memory of a BUFFER."""
    buffer = node.arg
    parts = buffer.parts if isinstance(buffer, Shards) else ()
    own, part = _free_counts()
    return not _COUNTED or _references(buffer) != own or any(n != part for n in map(_references, parts))


@functools.cache
def _free_counts() -> tuple[int, int]:
    """The counts of a buffer that only the graph refers to, and of a part of such a one."""
    node = UOp(Ops.BUFFER, dtypes.float32, (), Buffer("NPY", 1, dtypes.float32))
    buffer = node.arg
    parts = [Buffer("NPY", 1, dtypes.float32)]
    return _references(buffer), next(map(_references, parts))


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
