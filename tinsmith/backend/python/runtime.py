"""What kernels written in Python call, and the loop that runs the warps of a block in turns."""
from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Final

import numpy as np

from tinsmith.core.dtypes import DType, dtypes, to_dtype
from tinsmith.core.errors import KernelError
from tinsmith.ir import Ops, UOp
from tinsmith.ir.ops.op import Array
from tinsmith.ir.units import Fragment, MatrixUnit

WARP: Final = 32
_POISON: Final = 0xA5  # what near memory holds before it is written
Warp = Generator[None, None, None]


class Memory:
    """A buffer argument or near memory, which knows its name for error messages."""

    __slots__ = ("data", "kernel", "name", "size")

    def __init__(self, kernel: str, name: str, data: Array) -> None:
        self.kernel, self.name, self.data, self.size = kernel, name, data, data.size

    def outside(self, index: Any, verb: str) -> KernelError:
        return KernelError(self.kernel, f"index {int(index)} of {self.name}, which has {self.size} elements, is {verb}",
                           "report it, unless the program was built by hand: this is a bug of tinsmith")


# *** called by kernels ***


def load_one(memory: Memory, index: int) -> Array:
    """One element, at a place that all threads share."""
    if not 0 <= index < memory.size:
        raise memory.outside(index, "read")
    return memory.data[index : index + 1].copy().reshape(1, 1)


def _places(memory: Memory, count: int, index: Any, ok: Any, verb: str) -> tuple[Array, Array]:
    """Places and conditions of all threads and lanes, of one shape; those that hold are checked."""
    at = np.asarray(index).reshape(-1, np.asarray(index).size) if np.ndim(index) < 2 else index
    if at.shape[1] != count:
        at = at + np.arange(count)
    at, mask = np.broadcast_arrays(at, np.asarray(ok))
    used = at[mask]
    if used.size and not (used.min() >= 0 and used.max() < memory.size):
        raise memory.outside(used[(used < 0) | (used >= memory.size)][0], verb)
    return at, mask


def load(memory: Memory, count: int, index: Any, ok: Any = True) -> Array:
    """``count`` elements per thread, from one place on or from a place per lane; 0 where ``ok`` is false."""
    at, mask = _places(memory, count, index, ok, "read")
    out = np.zeros(at.shape, memory.data.dtype)
    out[mask] = memory.data[at[mask]]
    return out


def store(memory: Memory, count: int, index: Any, value: Array, ok: Any = True) -> None:
    """Write where ``ok`` holds; of several lanes at one place the last one wins."""
    at, mask = _places(memory, count, index, ok, "written")
    threads = max(at.shape[0], value.shape[0])
    at, mask, value = (np.broadcast_to(a, (threads, count)) for a in (at, mask, value))
    memory.data[at[mask]] = value[mask]


def load_tile(memory: Memory, index: int, pitch: int, rows: int, columns: int) -> Array:
    """A tile's elements in order, its rows ``pitch`` apart."""
    at = _tile_places(memory, index, pitch, rows, columns, "read")
    return memory.data[at].reshape(1, -1)


def store_tile(memory: Memory, index: int, pitch: int, rows: int, columns: int, value: Array) -> None:
    memory.data[_tile_places(memory, index, pitch, rows, columns, "written")] = value.reshape(rows, columns)


def _tile_places(memory: Memory, index: int, pitch: int, rows: int, columns: int, verb: str) -> Array:
    at: Array = index + pitch * np.arange(rows)[:, None] + np.arange(columns)
    if at.min() < 0 or at.max() >= memory.size:
        raise memory.outside(at.min() if at.min() < 0 else at.max(), verb)
    return at


def const(dtype: str, count: int, value: Any) -> Array:
    return np.full((1, count), value, to_numpy(dtype))


def lift(value: int, dtype: str) -> Array:
    """A Python integer as an array."""
    return np.full((1, 1), value, to_numpy(dtype))


def spread(value: Array, times: int) -> Array:
    return np.tile(value, (1, times))


def join(*parts: Array) -> Array:
    """A vector of all lanes of ``parts``."""
    threads = max(p.shape[0] for p in parts)
    return np.concatenate([np.broadcast_to(p, (threads, p.shape[1])) for p in parts], 1)


def meaning(op: str, dtype: str, *sources: str, arg: Any = None) -> Callable[..., Array]:
    """The meaning of an op's row for these element types."""
    row = getattr(Ops, op)
    node = UOp(row, _dtype(dtype), tuple(UOp(Ops.PARAM, _dtype(s), (), (n, ())) for n, s in enumerate(sources)), arg)
    return lambda *values: np.asarray(row.meaning(node, *values))


def floor_div(x: int, y: int) -> int:
    return x // y if y else 0


def floor_mod(x: int, y: int) -> int:
    return x % y if y else 0


def whole_warp(mask: Array) -> None:
    """A barrier that some threads of a warp do not reach never opens."""
    if not mask.all():
        raise KernelError("PYTHON", "deadlock: a barrier stands where only some threads of a warp come",
                          "move the barrier out of the condition")


def shuffle(value: Array, dtype: str, bits: int) -> Array:
    """What the threads hold whose numbers in the warp differ in ``bits``.

    Raises:
        KernelError: if one of them does not exist.
    """
    if len(value) > 1 and len(value) % (2 * bits):
        raise KernelError("PYTHON", f"a shuffle by {bits} in a warp of {len(value)} threads", "a smaller power of two")
    return meaning("SHUFFLE", dtype, dtype, arg=bits)(value)


def _dtype(name: str) -> DType:
    return dtypes.index if name == "index" else to_dtype(name)


def to_numpy(name: str) -> Any:
    return _dtype(name).numpy


NAMES: Final = {f.__name__: f for f in (load_one, load, store, const, lift, spread, join, meaning, floor_div, floor_mod,
                                        whole_warp, shuffle, load_tile, store_tile, MatrixUnit, Fragment)} | {
                                            "where": np.where, "dtypes": dtypes}


# *** launching ***


def launch(symbol: str, module: dict[str, Any], arguments: Sequence[Any], threads: int) -> None:
    """Run all blocks of a kernel one after the other, for each of ``threads`` CPU-style workers."""
    sizes: dict[str, int] = module["SIZES"]
    grid = {n: s for n, s in sizes.items() if not n.startswith("lidx")}
    takes = module[symbol].__code__.co_varnames[: module[symbol].__code__.co_argcount]
    given = dict(zip(takes, arguments))
    with np.errstate(all="ignore"):
        for tid in range(threads):
            for place in itertools.product(*(range(s) for s in grid.values())):
                numbers = {"tid": tid, "nthreads": threads, **dict(zip(grid, place))}
                block = {**given, **numbers, **_near_memory(symbol, module["LOCALS"])}
                run_block([module[symbol](*({**block, **lanes}[name] for name in takes)) for lanes in _warps(sizes)])


def _near_memory(symbol: str, wanted: list[tuple[str, str, int]]) -> dict[str, Memory]:
    out = {}
    for name, dtype, elements in wanted:
        data = np.full(elements * to_numpy(dtype).itemsize, _POISON, np.uint8)
        out[name] = Memory(symbol, name, data.view(to_numpy(dtype)))
    return out


def _warps(sizes: dict[str, int]) -> Iterator[dict[str, Array]]:
    """For each warp of a block, its threads' coordinates as columns; ``lidx0`` runs fastest."""
    block = {n: s for n, s in sorted(sizes.items()) if n.startswith("lidx")}
    total = int(np.prod(list(block.values()), dtype=np.int64))
    for first in range(0, total, WARP):
        number = np.arange(first, min(first + WARP, total)).reshape(-1, 1)
        lanes = {}
        for name, size in block.items():
            lanes[name] = number % size
            number = number // size
        yield lanes


def run_block(warps: list[Warp]) -> None:
    """Run warps to their next barrier in turns.

    Raises:
        KernelError: for a deadlock: some warps wait at a barrier, others have come to their end.
    """
    while warps:
        waiting = [w for w in warps if next(w, w) is not w]
        if waiting and len(waiting) < len(warps):
            raise KernelError("PYTHON", f"deadlock: {len(waiting)} of {len(warps)} warps wait at a barrier that "
                              "the others never reach", "place barriers where all warps of a block come")
        warps = waiting
