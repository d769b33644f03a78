"""The intern table (hash consing) of UOps: equal nodes are one object while alive."""
from __future__ import annotations

import weakref
from collections import deque
from typing import Any


class Ref(weakref.ref[Any]):
    """A weak reference to a node that keeps the node's key in the intern table."""

    __slots__ = ("key",)
    key: Any


interned: dict[Any, Ref] = {}
dead: deque[Any] = deque()  # references to collected nodes whose table entries are not yet removed (see core.weak)
bury = dead.append


def forget_dead() -> None:
    """Remove the entries of dead nodes from the intern table, which frees the sources and buffers that only they held.

    Node creation and every allocation call this; other code needs it only before inspecting memory use.
    """
    while dead:
        try:
            ref = dead.popleft()
        except IndexError:  # another thread took it
            return
        key = ref.key
        # No call between test and deletion, so that no other thread can run between them.
        try:
            if interned[key] is ref:
                del interned[key]
        except KeyError:
            pass
        del key, ref  # frees the sources, whose references join `dead` before the next iteration
