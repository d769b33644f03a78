"""Counter-based random numbers: bits = threefry(key=seed, counter=(element, call)) (Salmon et al. 2011).

The call number is fixed when the method is called, so the bits do not depend on the order of realization, device,
fusion or sharding. Functions of the bits may round differently per device: see the normal numbers of a GPU
(``Tensor.randn``).
Seed and call number are bound variables of the graph: another draw runs the same compiled kernel.
"""
# mypy: disable-error-code=misc
# ``cls`` is the Tensor that this class is mixed into.
from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tinsmith.backend.device import Device, DeviceName, members
from tinsmith.core.dtypes import DType, DTypeLike, dtypes, to_dtype
from tinsmith.core.errors import ArgumentError, DTypeError, ShapeError
from tinsmith.ir import Op, Ops, UOp
from tinsmith.ir.algebra.sizes import size_text
from tinsmith.ir.graphs import threefry2x32
from tinsmith.ir.ops.elementwise import ROUGH
from tinsmith.tensor.arguments import flag, integer, number, size
from tinsmith.tensor.base import device_name
from tinsmith.tensor.helpers import muladd, product, sizes
from tinsmith.tensor.host_data import check_range

if TYPE_CHECKING:
    from tinsmith.tensor.tensor import Tensor

_SINE = (-0.0000000239, 0.0000027526, -0.0001984090, 0.0083333315, -0.1666666664, 1.0)  # sin(x)/x in powers of x²
_LARGEST = (1 << 31) - 1


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


def state() -> tuple[int, int]:
    """Return (seed, number of the next call): the full state of the random stream."""
    return _stream.seed, _stream.calls


def restore(state: tuple[int, int]) -> None:
    """Restore a ``state()``."""
    with _stream.lock:
        _stream.seed, _stream.calls = state


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


def _fixed_sizes(op: str, shape: Sequence[Any]) -> tuple[int, ...]:
    """Return a shape of fixed sizes.

    Raises:
        ShapeError: if a size is symbolic: the stream advances by the number of counters of a call.
    """
    wanted = sizes(op, shape)
    if any(isinstance(s, UOp) for s in wanted):
        raise ShapeError(op, f"shape ({', '.join(map(size_text, wanted))}) has a symbolic size",
                         "the greatest size, and a slice of the result")
    return wanted


def _words(count: int) -> tuple[UOp, UOp]:
    """Return the two 32-bit words of ``count`` counters; this is a new call of the stream."""
    if count >= 1 << 32:
        raise ShapeError("rand", f"{count} counters are more than one call can number", "several tensors")
    shape = (count,)
    low, high, call = (u.expand_to(shape) for u in _stream.next_call())
    return threefry2x32((low, high), (UOp.iota(count, dtypes.uint32), call))


def _pairs(count: int) -> UOp:
    """Return random 32-bit words of shape (2, ceil(count / 2)): the two words of a column share a counter."""
    half = -(-count // 2)
    x, y = (w.reshape((1, half)).expand((2, half)) for w in _words(half))
    return UOp.iota(2).reshape((2, 1)).expand((2, half)).eq(0).where(x, y)


def _flat(pairs: UOp, count: int) -> UOp:
    """Return the first ``count`` elements of both rows: elements i and i + half share a counter."""
    return pairs.reshape((pairs.size,)).shrink(((0, count),))


def _bits(count: int) -> UOp:
    """Return ``count`` random 32-bit words."""
    return _flat(_pairs(count), count)


def _fractions(count: int, dtype: DType) -> UOp:
    """Return ``count`` uniform numbers in [0, 1), each exactly representable in ``dtype``."""
    if dtype is dtypes.float64:
        x, y = _words(count)
        return ((x >> 5).cast(dtype) * 67108864.0 + (y >> 6).cast(dtype)) * (1 / 9007199254740992.0)
    bits = dtypes.finfo(dtype).mantissa + 1
    scale = 2.0**-bits
    work = dtypes.float32
    return _flat(((_pairs(count) >> (32 - bits)).cast(work) * scale).cast(dtype), count)


def _gaussian(count: int, dtype: DType, device: DeviceName | None) -> UOp:
    """Return ``count`` standard normal numbers by the Box–Muller transform: one counter gives two numbers.

    On a device with approximate math instructions (``target.rough``), accuracy is as documented in ``Tensor.randn``.
    """
    half = -(-count // 2)
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


def _float_kind(op: str, dtype: DTypeLike | None) -> DType:
    kind = dtypes.default_float if dtype is None else to_dtype(dtype)
    if not kind.is_float:
        raise DTypeError(op, f"random floats cannot be {kind!r}", "randint")
    return kind


class Random:
    """Methods that create tensors of random numbers."""

    __slots__ = ()

    @staticmethod
    def manual_seed(seed: int = 0) -> None:
        """Restart the random stream from ``seed``: an integer, or an array or tensor with one element.

        >>> Tensor.manual_seed(1); a = Tensor.rand(3).tolist()
        >>> Tensor.manual_seed(1); a == Tensor.rand(3).tolist()
        True
        """
        one = getattr(seed, "shape", ()) not in ((), None) and math.prod(seed.shape) == 1  # type: ignore[attr-defined]
        number = seed.reshape(()).item() if one else seed  # type: ignore[attr-defined]
        _stream.reset(integer("manual_seed", "seed", number) & ((1 << 62) - 1))

    @classmethod
    def random_bits(cls: type[Tensor], *shape: Any, device: DeviceName | None = None) -> Tensor:
        """Random uint32 words: 32 random bits per element.

        >>> Tensor.random_bits(2).dtype
        dtypes.uint
        """
        wanted = _fixed_sizes("random_bits", shape)
        if 0 in wanted:
            return cls.zeros(wanted, dtype=dtypes.uint32, device=device)
        return cls._made(_bits(product(wanted)).reshape(wanted), device, False)

    @classmethod
    def rand(cls: type[Tensor], *shape: Any, dtype: DTypeLike | None = None, device: DeviceName | None = None,
             requires_grad: bool | None = None) -> Tensor:
        """Uniform random numbers in [0, 1).

        >>> Tensor.rand(2, 3).shape
        (2, 3)
        """
        wanted, kind = _fixed_sizes("rand", shape), _float_kind("rand", dtype)
        if 0 in wanted:
            return cls.zeros(wanted, dtype=kind, device=device, requires_grad=requires_grad)
        return cls._made(_fractions(product(wanted), kind).reshape(wanted), device, requires_grad)

    @classmethod
    def randn(cls: type[Tensor], *shape: Any, dtype: DTypeLike | None = None, device: DeviceName | None = None,
              requires_grad: bool | None = None) -> Tensor:
        """Standard normal random numbers (Box and Muller 1958): two from two uniform numbers.

        A GPU uses its approximate logarithm, sine and cosine instructions: numbers differ from the CPU's by 1e-7 on
        average, one in 160,000 by more than 1e-5, the worst of 64 million by 2e-4.

        >>> Tensor.randn(2, 3).shape
        (2, 3)
        """
        wanted, kind = _fixed_sizes("randn", shape), _float_kind("randn", dtype)
        if 0 in wanted:
            return cls.zeros(wanted, dtype=kind, device=device, requires_grad=requires_grad)
        return cls._made(_gaussian(product(wanted), kind, device).reshape(wanted), device, requires_grad)

    @classmethod
    def uniform(cls: type[Tensor], *shape: Any, low: float = 0.0, high: float = 1.0, dtype: DTypeLike | None = None,
                device: DeviceName | None = None, requires_grad: bool | None = None) -> Tensor:
        """Uniform random numbers in [low, high).

        >>> bool((Tensor.uniform(9, low=2, high=3) >= 2).all())
        True
        """
        wanted, kind = _fixed_sizes("uniform", shape), _float_kind("uniform", dtype)
        low, high = number("uniform", "low", low), number("uniform", "high", high)
        if 0 in wanted:
            return cls.zeros(wanted, dtype=kind, device=device, requires_grad=requires_grad)
        x = _fractions(product(wanted), kind).reshape(wanted)
        return cls._made(x * (high - low) + low, device, requires_grad)

    @classmethod
    def normal(cls: type[Tensor], *shape: Any, mean: float = 0.0, std: float = 1.0, dtype: DTypeLike | None = None,
               device: DeviceName | None = None, requires_grad: bool | None = None) -> Tensor:
        """Normal random numbers with the given mean and standard deviation.

        >>> Tensor.normal(3, mean=5, std=0).tolist()
        [5.0, 5.0, 5.0]
        """
        wanted, kind = _fixed_sizes("normal", shape), _float_kind("normal", dtype)
        mean, std = number("normal", "mean", mean), number("normal", "std", std, least=0)
        if 0 in wanted:
            return cls.zeros(wanted, dtype=kind, device=device, requires_grad=requires_grad)
        x = _gaussian(product(wanted), kind, device).reshape(wanted)
        return cls._made(x * std + mean, device, requires_grad)

    @classmethod
    def randint(cls: type[Tensor], *shape: Any, low: int = 0, high: int = 10, dtype: DTypeLike | None = None,
                device: DeviceName | None = None, requires_grad: bool | None = None) -> Tensor:
        """Random integers in [low, high).

        >>> bool((Tensor.randint(9, low=2, high=5) < 5).all())
        True

        Raises:
            ArgumentError: if the range is empty or larger than 2**32.
            RangeError: if the dtype cannot hold the range.
        """
        kind = dtypes.default_int if dtype is None else to_dtype(dtype)
        low, high = integer("randint", "low", low), integer("randint", "high", high)
        wanted, span = _fixed_sizes("randint", shape), high - low
        if not kind.is_int:
            raise DTypeError("randint", f"random integers cannot be {kind!r}", "rand or randn")
        if span < 1:
            raise ArgumentError("randint", f"no integers from {low} up to but without {high}", "low < high")
        check_range("randint", low, kind)
        check_range("randint", high - 1, kind)
        if span > 1 << 32:
            raise ArgumentError("randint", f"{span} integers from {low} up to but without {high}, more than the 2**32 "
                                "that 32 random bits tell apart", "high - low <= 2**32")
        if 0 in wanted:
            return cls.zeros(wanted, dtype=kind, device=device, requires_grad=bool(requires_grad))
        scaled = (_bits(product(wanted)).cast(dtypes.uint64) * span) >> 32
        return cls._made((scaled.cast(dtypes.int64) + low).cast(kind).reshape(wanted), device, bool(requires_grad))

    @classmethod
    def randperm(cls: type[Tensor], n: int, *, dtype: DTypeLike | None = None,
                 device: DeviceName | None = None) -> Tensor:
        """Return a random permutation of the integers below ``n``: the indices that sort random bits.

        >>> sorted(Tensor.randperm(5).tolist())
        [0, 1, 2, 3, 4]
        """
        kind = dtypes.default_int if dtype is None else to_dtype(dtype)
        n = size("randperm", "n", n)
        if not n:
            return cls.zeros(0, dtype=kind, device=device)
        return cls.random_bits(n, device=device).argsort().cast(kind)

    @classmethod
    def scaled_uniform(cls: type[Tensor], *shape: Any, dtype: DTypeLike | None = None,
                       device: DeviceName | None = None, requires_grad: bool | None = None) -> Tensor:
        """Uniform random numbers in [-1, 1), divided by the square root of the number of elements.

        >>> bool((Tensor.scaled_uniform(4, 4).abs() <= 0.25).all())
        True
        """
        bound = 1 / math.sqrt(max(product(_fixed_sizes("scaled_uniform", shape)), 1))
        return cls.uniform(*shape, low=-bound, high=bound, dtype=dtype, device=device, requires_grad=requires_grad)

    @classmethod
    def glorot_uniform(cls: type[Tensor], *shape: Any, dtype: DTypeLike | None = None,
                       device: DeviceName | None = None, requires_grad: bool | None = None) -> Tensor:
        """Uniform random numbers within the bound of Glorot and Bengio (2010), ``sqrt(6 / (fan_in + fan_out))``.

        >>> Tensor.glorot_uniform(4, 4).shape
        (4, 4)
        """
        wanted = _fixed_sizes("glorot_uniform", shape)
        bound = math.sqrt(6 / max(wanted[0] + product(wanted[1:]), 1)) if wanted else 1.0
        return cls.uniform(*shape, low=-bound, high=bound, dtype=dtype, device=device, requires_grad=requires_grad)

    @classmethod
    def kaiming_uniform(cls: type[Tensor], *shape: Any, a: float = 0.01, dtype: DTypeLike | None = None,
                        device: DeviceName | None = None, requires_grad: bool | None = None) -> Tensor:
        """Uniform random numbers within the bound of He et al. (2015); fan-in: the product of all axes but the first.

        >>> Tensor.kaiming_uniform(4, 4).shape
        (4, 4)
        """
        bound = math.sqrt(3) * _kaiming("kaiming_uniform", shape, a)
        return cls.uniform(*shape, low=-bound, high=bound, dtype=dtype, device=device, requires_grad=requires_grad)

    @classmethod
    def kaiming_normal(cls: type[Tensor], *shape: Any, a: float = 0.01, dtype: DTypeLike | None = None,
                       device: DeviceName | None = None, requires_grad: bool | None = None) -> Tensor:
        """Normal random numbers with the deviation of He et al. (2015); fan-in: the product of all axes but the first.

        >>> Tensor.kaiming_normal(4, 4).shape
        (4, 4)
        """
        std = _kaiming("kaiming_normal", shape, a)
        return cls.normal(*shape, std=std, dtype=dtype, device=device, requires_grad=requires_grad)

    def multinomial(self: Tensor, num_samples: int = 1, replacement: bool = False) -> Tensor:
        """Draw indices with probabilities proportional to the weights; a matrix holds one distribution per row.

        With replacement, an index is found by searching a uniform number in the cumulative sums of the weights. Without
        replacement, the indices with the largest ``weight ** (1 / uniform)`` are drawn, computed in logarithms
        (Efraimidis and Spirakis, 2006).

        >>> Tensor([0., 1., 0.]).multinomial(2, replacement=True).tolist()
        [1, 1]

        Raises:
            ShapeError: if the tensor is not a vector or a matrix.
            ArgumentError: if there are fewer weights than draws without replacement.
        """
        if self.ndim not in (1, 2) or not self.shape[-1]:
            raise ShapeError("multinomial", f"weights of shape {self.shape}", "a vector or a matrix of weights")
        num_samples = integer("multinomial", "num_samples", num_samples, least=1)
        replacement = flag("multinomial", "replacement", replacement)
        if not (replacement or num_samples <= self.shape[-1]):
            raise ArgumentError("multinomial", f"{num_samples} of {self.shape[-1]} without replacement",
                                "fewer samples, or replacement=True")
        weights = self.detach().cast(dtypes.float32)
        rows = weights.reshape(-1, weights.shape[-1])
        count = rows.shape[0]
        if replacement:
            ends = rows.cumsum(1)
            drawn = type(self).rand(count, num_samples, 1, device=self.device) * ends[:, -1:].unsqueeze(1)
            found = (ends.unsqueeze(1) <= drawn).cast(dtypes.int32).sum(-1)
            last = (rows > 0).cast(dtypes.int32).mul(type(self).arange(rows.shape[1], device=self.device)).max(1)
            found = found.minimum(last.unsqueeze(1))  # rounding may place a number after the last weight
        else:
            noise = type(self).rand(*rows.shape, device=self.device).maximum(1e-30).log()
            found = (rows > 0).where(rows.log() - noise.neg().log(), -math.inf).topk(num_samples).indices
        return found.reshape(*self.shape[:-1], num_samples).cast(dtypes.default_int)

    def rand_like(self: Tensor, dtype: DTypeLike | None = None, device: DeviceName | None = None,
                  requires_grad: bool | None = None) -> Tensor:
        """Uniform random numbers in [0, 1), with this tensor's shape, dtype and device.

        >>> Tensor([1., 2.]).rand_like().shape
        (2,)
        """
        return type(self).rand(*self.shape, dtype=self.dtype if dtype is None else dtype,
                          device=self.device if device is None else device, requires_grad=requires_grad)

    def randn_like(self: Tensor, dtype: DTypeLike | None = None, device: DeviceName | None = None,
                   requires_grad: bool | None = None) -> Tensor:
        """Standard normal random numbers, with this tensor's shape, dtype and device.

        >>> Tensor([1., 2.]).randn_like().shape
        (2,)
        """
        return type(self).randn(*self.shape, dtype=self.dtype if dtype is None else dtype,
                           device=self.device if device is None else device, requires_grad=requires_grad)


def _kaiming(op: str, shape: tuple[Any, ...], a: float) -> float:
    a = number(op, "a", a)
    return math.sqrt(2 / (1 + a * a)) / math.sqrt(max(product(_fixed_sizes(op, shape)[1:]), 1))
