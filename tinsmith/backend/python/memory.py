"""Memory of interpreted kernels: named, bounds-checked, and watched for races where threads share it."""
from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.backend.python.watch import REPORT, Clock, Watch
from tinsmith.core.errors import KernelError
from tinsmith.ir.ops.op import Array


def poison(elements: int, dtype: Any, is_float: bool) -> Array:
    """Return the contents of unwritten local memory: NaN, or bytes that no integer is likely to have."""
    return (np.full(elements, np.nan, dtype) if is_float else
            np.full(elements * np.dtype(dtype).itemsize, 0xA5, np.uint8).view(dtype))


class Memory:
    """A buffer argument or local memory, with its name for error messages; if watched, as one warp accesses it."""

    __slots__ = ("clock", "data", "kernel", "name", "size", "watch")

    def __init__(self, kernel: str, name: str, data: Array, watch: Watch | None = None,
                 clock: Clock | None = None) -> None:
        self.kernel, self.name, self.data, self.size = kernel, name, data, data.size
        self.watch, self.clock = watch, clock

    def seen_by(self, watch: Watch | None, clock: Clock) -> Memory:
        """Return the same memory, with accesses recorded for a warp's clock."""
        return self if watch is None else Memory(self.kernel, self.name, self.data, watch, clock)

    def outside(self, index: Any, verb: str) -> KernelError:
        return KernelError(self.kernel, f"index {int(index)} of {self.name}, which has {self.size} elements, is {verb}",
                           REPORT)

    def read(self, at: Array, mask: Array, statement: int) -> Array:
        """Return the elements at ``at`` where ``mask`` holds, 0 elsewhere."""
        if self.watch is not None and self.clock is not None:
            self.watch.read(self.clock, at, mask, statement)
        out = np.zeros(at.shape, self.data.dtype)
        out[mask] = self.data[at[mask]]
        return out

    def write(self, at: Array, mask: Array, value: Array, statement: int) -> None:
        if self.watch is not None and self.clock is not None:
            self.watch.write(self.clock, at, mask, statement, self.data, value)
        else:
            self.data[at[mask]] = value[mask]
