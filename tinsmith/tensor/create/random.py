"""Counter-based random numbers: bits = threefry(key=seed, counter=(element, call)) (Salmon et al. 2011).

The call number is fixed when the method is called, so the bits do not depend on the order of realization, device,
fusion or sharding. Functions of the bits may round differently per device: see the normal numbers of a GPU
(``Tensor.randn``).
Seed and call number are bound variables of the graph: another draw runs the same compiled kernel.
"""
from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

from tinsmith.backend.device import Device, DeviceName, members
from tinsmith.core.dtypes import DType, DTypeLike, dtypes, to_dtype
from tinsmith.core.errors import DTypeError, ShapeError
from tinsmith.core.object_lifetime import OfThread
from tinsmith.ir import Op, Ops, UOp
from tinsmith.ir.algebra.sizes import normal_size, size_text
from tinsmith.ir.graphs import threefry2x32
from tinsmith.ir.ops.elementwise import ROUGH
from tinsmith.tensor.arguments import number
from tinsmith.tensor.base import device_name
from tinsmith.tensor.helpers import muladd, product, sizes

_SINE = (-0.0000000239, 0.0000027526, -0.0001984090, 0.0083333315, -0.1666666664, 1.0)  # sin(x)/x in powers of x²
_LARGEST = (1 << 31) - 1
Size = int | UOp


class _Stream:
    """The state of the random stream: the seed and the number of the next call."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.resets = 0
        self.reset(time.time_ns() & ((1 << 62) - 1))

    def reset(self, seed: int) -> None:
        self.seed, self.calls = seed, 0
        self.resets += 1

    def next_call(self) -> tuple[UOp, UOp, UOp]:
        """Return (low half of the seed, high half, call number) as uint32 scalars of the graph, and count the call."""
        with self.lock:
            call = self.calls
            self.calls += 1
        numbers = {"seed_low": self.seed & _LARGEST, "seed_high": (self.seed >> 31) & _LARGEST, "call": call & _LARGEST}
        low, high, number = (_bound(name, value) for name, value in numbers.items())
        return low, high, number


def _bound(name: str, value: int) -> UOp:
    return UOp(Ops.BIND, None, (UOp.variable(name, 0, _LARGEST), UOp.index(value))).cast(dtypes.uint32)


_stream = _Stream()


# The last one: number and count of the parts of a batch, if each process has one. Dropout draws its part of the whole.
rows: Final[OfThread[tuple[int, int]]] = OfThread()


def state() -> tuple[int, int]:
    """Return (seed, number of the next call): the full state of the random stream."""
    return _stream.seed, _stream.calls


def restore(state: tuple[int, int]) -> None:
    """Restore a ``state()``."""
    with _stream.lock:
        _stream.seed, _stream.calls = state


def move_to(state: tuple[int, int]) -> None:
    """Continue from a ``state()`` by the user's wish, which counts as setting a seed: see ``resets``."""
    with _stream.lock:
        _stream.seed, _stream.calls = state
        _stream.resets += 1


def resets() -> int:
    """Return the number of times a seed was set: equal counts mean that the stream was not restarted in between."""
    return _stream.resets


def advance(calls: int) -> None:
    """Skip ``calls`` call numbers, as if ``calls`` draws had been made."""
    with _stream.lock:
        _stream.calls += calls


def rebound(name: str, value: int, captured_first: int, seed: int, first: int) -> int:
    """Return the value of a captured draw's bound variable for a replay with ``seed`` from call ``first`` on."""
    now = {"seed_low": seed & _LARGEST, "seed_high": (seed >> 31) & _LARGEST, "call": (value - captured_first + first)}
    return now[name] & _LARGEST if name in now else value


def fixed_sizes(op: str, shape: Sequence[Any]) -> tuple[int, ...]:
    """Return a shape of fixed sizes.

    Raises:
        ShapeError: if a size is symbolic.
    """
    wanted = sizes(op, shape)
    if any(isinstance(s, UOp) for s in wanted):
        raise ShapeError(op, f"shape ({', '.join(map(size_text, wanted))}) has a symbolic size",
                         "the greatest size, and a slice of the result")
    return wanted


def _words(count: Size) -> tuple[UOp, UOp]:
    """Return the two 32-bit words of ``count`` counters; this is a new call of the stream."""
    most = int(count.vmax) if isinstance(count, UOp) else count
    if most >= 1 << 32:
        raise ShapeError("rand", f"{most} counters are more than one call can number", "several tensors")
    shape = (count,)
    low, high, call = (u.expand_to(shape) for u in _stream.next_call())
    return threefry2x32((low, high), (UOp.iota(count, dtypes.uint32), call))


def _half(count: Size) -> Size:
    """Return half of ``count``, rounded up."""
    half: Size = normal_size((count + 1) // 2)
    return half


def _pairs(count: Size) -> UOp:
    """Return random 32-bit words of shape (2, ceil(count / 2)): the two words of a column share a counter."""
    half = _half(count)
    x, y = (w.reshape((1, half)).expand((2, half)) for w in _words(half))
    return UOp.iota(2).reshape((2, 1)).expand((2, half)).eq(0).where(x, y)


def _flat(pairs: UOp, count: Size) -> UOp:
    """Return the first ``count`` elements of both rows: elements i and i + half share a counter."""
    return pairs.reshape((pairs.size,)).shrink(((0, count),))


def draw_bits(count: Size) -> UOp:
    """Return ``count`` random 32-bit words."""
    return _flat(_pairs(count), count)


def fractions(count: Size, dtype: DType) -> UOp:
    """Return ``count`` uniform numbers in [0, 1), each exactly representable in ``dtype``."""
    if dtype is dtypes.float64:
        x, y = _words(count)
        return ((x >> 5).cast(dtype) * 67108864.0 + (y >> 6).cast(dtype)) * (1 / 9007199254740992.0)
    bits = dtypes.finfo(dtype).mantissa + 1
    scale = 2.0**-bits
    work = dtypes.float32
    return _flat(((_pairs(count) >> (32 - bits)).cast(work) * scale).cast(dtype), count)


def gaussian(count: Size, dtype: DType, device: DeviceName | None) -> UOp:
    """Return ``count`` standard normal numbers by the Box–Muller transform: one counter gives two numbers.

    On a device with approximate math instructions (``target.rough``), accuracy is as documented in ``Tensor.randn``.
    """
    half = _half(count)
    x, y = _words(half)
    work = dtypes.float64 if dtype is dtypes.float64 else dtypes.float32
    if work is dtypes.float32 and Device[members(device_name(device))[0]].target.rough:
        return _flat(_rough_pairs(x, y).cast(dtype), count)
    bits = 32 if work is dtypes.float64 else 24
    above_zero = muladd((x >> (32 - bits)).cast(work), 2.0**-bits, 2.0**-bits)
    turns = (y >> (32 - bits)).cast(work) * 2.0**-bits
    radius = (above_zero.alu(Ops.LOG) * -2.0).alu(Ops.SQRT).reshape((1, half)).expand((2, half))
    return _flat((radius * sine_and_cosine(turns)).cast(dtype), count)


def _rough_pairs(x: UOp, y: UOp) -> UOp:
    """Return two normal numbers per pair of words, shape (2, n); a signed 32-bit word is an angle in [-π, π)."""
    above_zero = muladd((x >> 8).cast(dtypes.float32), 2.0**-24, 2.0**-24)
    radius = _rough(Ops.SQRT, _rough(Ops.LOG2, above_zero) * (-2 * math.log(2)))
    angle = y.bitcast(dtypes.int32).cast(dtypes.float32) * (math.pi * 2.0**-31)
    radius, angle = (u.reshape((1, u.size)).expand((2, u.size)) for u in (radius, angle))
    return radius * UOp.iota(2).reshape((2, 1)).expand(angle.shape).eq(0).where(
        _rough(Ops.SIN, angle), _rough(Ops.COS, angle))


def _rough(op: Op, x: UOp) -> UOp:
    return UOp(op, None, (x,), ROUGH)


def sine_and_cosine(turns: UOp) -> UOp:
    """Return sine and cosine, of shape (2, n), of n angles given in turns, in [0, 1).

    Both are sines of at most a quarter turn. In float32 they use the polynomial of Abramowitz and Stegun, Handbook of
    Mathematical Functions, 4.3.97 (error below 2e-9): no argument reduction as in SIN is needed.
    """
    shape = (2, turns.size)
    z = turns - 0.5
    fold = _size(z) - 0.25
    rise = 0.25 - _size(fold)
    first = UOp.iota(2).reshape((2, 1)).expand(shape).eq(0)
    sine, cosine = (u.reshape((1, turns.size)).expand(shape) for u in (z.lt(0).where(rise, rise * -1.0), fold))
    angle = first.where(sine, cosine) * (2 * math.pi)
    if turns.dtype is dtypes.float64:
        return angle.alu(Ops.SIN)
    square, series = angle * angle, angle.const_like(_SINE[0])
    for coefficient in _SINE[1:]:
        series = muladd(series, square, coefficient)
    return angle * series


def _size(x: UOp) -> UOp:
    """abs(x): the sign bit cleared."""
    bits = x.bitcast(dtypes.uint64 if x.dtype is dtypes.float64 else dtypes.uint32)
    return (bits & ((1 << (x.dtype.bits - 1)) - 1)).bitcast(x.dtype)


def float_kind(op: str, dtype: DTypeLike | None) -> DType:
    kind = dtypes.default_float if dtype is None else to_dtype(dtype)
    if not kind.is_float:
        raise DTypeError(op, f"random floats cannot be {kind!r}", "randint")
    return kind


def kaiming(op: str, shape: tuple[Any, ...], a: float) -> float:
    a = number(op, "a", a)
    return math.sqrt(2 / (1 + a * a)) / math.sqrt(max(product(fixed_sizes(op, shape)[1:]), 1))
