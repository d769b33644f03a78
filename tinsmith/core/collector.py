"""Suspension of Python's garbage collector while many live objects are created, which it would scan in vain."""
from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Disable the garbage collector inside the block; reference counting works as always.

    >>> with no_collection():
    ...     gc.isenabled()
    False
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
