"""The table of all nodes alive, in which equal nodes are one."""
from __future__ import annotations

import weakref
from collections import deque
from typing import Any


class Ref(weakref.ref[Any]):
    """A weak reference that knows its node's place in the intern table."""

    __slots__ = ("key",)
    key: Any


interned: dict[Any, Ref] = {}
dead: deque[Any] = deque()  # references to nodes that died and still have an entry (see core.weak)
bury = dead.append


def forget_dead() -> None:
    """Take dead nodes out of the intern table; with them go the sources and buffers that only they held.

    Whoever asks for a node does this, and so does every allocation: only who looks at memory itself needs to call it.
    """
    while dead:
        try:
            ref = dead.popleft()
        except IndexError:  # another thread took it
            return
        key = ref.key
        # Test and deletion without a call in between, so that no other thread comes between them.
        try:
            if interned[key] is ref:
                del interned[key]
        except KeyError:
            pass
        del key, ref  # now the sources die, and are noted as dead before the next look
