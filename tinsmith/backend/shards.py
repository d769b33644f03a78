"""A value sharded over several devices, as one buffer: a tuple of parts and their layout."""
from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tinsmith.backend.memory import Buffer, ShardLayout


class Shards(Buffer):
    """The parts of one value, each a buffer on its own device.

    >>> parts = [Buffer("CPU", 2, dtypes.int32), Buffer("CPU:1", 1, dtypes.int32)]
    >>> for p, values in zip(parts, ([3, 4], [5])):
    ...     _ = p.copyin(memoryview(np.array(values, np.int32)))
    >>> Shards(parts, ShardLayout(("CPU", "CPU:1"), (3,), 0, (0, 2, 3))).numpy()
    array([3, 4, 5], dtype=int32)
    """

    __slots__ = ("layout", "parts")
    layout: ShardLayout

    def __init__(self, parts: Sequence[Buffer], layout: ShardLayout) -> None:
        super().__init__(",".join(layout.devices), math.prod(layout.shape), parts[0].dtype)
        self.parts, self.layout = tuple(parts), layout

    @property
    def shape(self) -> tuple[int, ...]:
        return self.layout.shape

    def is_allocated(self) -> bool:
        return all(p.is_allocated() for p in self.parts)

    @property
    def opaque(self) -> Any:
        """The handles of the parts."""
        return tuple(p.opaque for p in self.parts)

    def allocate(self) -> Buffer:
        """Allocate the memory of all parts."""
        for p in self.parts:
            p.allocate()
        return self

    def check(self) -> None:
        """Raise if the kernel that should have written one of the parts failed."""
        for p in self.parts:
            p.check()

    def joined(self, parts: Sequence[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
        """Return the full value, flat, from the flat arrays of the parts (from the first part if replicated)."""
        layout = self.layout
        if layout.axis is None:
            return parts[0]
        shaped = [p.reshape(layout.part_shape(n)) for n, p in enumerate(parts)]
        return np.concatenate(shaped, layout.axis).reshape(-1)

    def needed(self) -> tuple[Buffer, ...]:
        """Return the parts that together hold the full value."""
        return self.parts[:1] if self.layout.axis is None else self.parts

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return a copy of the full value as a one-dimensional NumPy array."""
        return self.joined([p.numpy() for p in self.needed()])

    def copyout(self, target: memoryview) -> memoryview:
        """Copy the full value into host memory of the same size."""
        self.check()
        if target.nbytes:
            target.cast("B")[:] = self.numpy().view(np.uint8).data
        return target

    def copyin(self, source: memoryview) -> Buffer:
        """Fill all parts from host memory that holds the full value."""
        whole = np.frombuffer(source, self.dtype.numpy).reshape(self.shape)
        layout = self.layout
        for n, p in enumerate(self.parts):
            piece = whole
            if layout.axis is not None:
                piece = np.take(whole, range(layout.bounds[n], layout.bounds[n + 1]), layout.axis)
            p.copyin(np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data)
        return self

    def host_view(self) -> memoryview | None:
        """Return None: the bytes are not contiguous in one memory."""
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        return Shards, (self.parts, self.layout)

    def __repr__(self) -> str:
        return f"<Shards {self.device} {self.shape} x {self.dtype!r} axis {self.layout.axis}>"


def flattened(buffers: Iterable[Buffer]) -> list[Buffer]:
    """Return the buffers with each sharded one replaced by its parts."""
    return [p for b in buffers for p in (b.parts if isinstance(b, Shards) else (b,))]
