"""Creation of tensors (constants, ranges, patterns), in-place fills and random draws, and ``new_*`` constructors.

Created tensors are lazy: none has memory before it is realized. PyTorch's queries of device and dtype are here, too.
"""
from __future__ import annotations

import math
from typing import Any, Self, TypeVar

import numpy as np

from tinsmith.backend.device import DeviceName, members
from tinsmith.backend.memory import Buffer
from tinsmith.core.dtypes import DType, DTypeLike, dtypes, promote, to_dtype
from tinsmith.core.errors import ArgumentError, DTypeError, ShapeError
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.sizes import check_bound, size_text, value_of_size
from tinsmith.runtime.thread_turns import writing
from tinsmith.tensor.arguments import Scalar, flag, integer, number, shown, size, symbolic
from tinsmith.tensor.autograd.history import is_computed
from tinsmith.tensor.base import TensorBase, check_tensors, device_name, leaf
from tinsmith.tensor.create.random import _stream, draw_bits, fixed_sizes, float_kind, fractions, gaussian, kaiming
from tinsmith.tensor.fft import cosines, host_constant, sample_points
from tinsmith.tensor.helpers import (
    constant,
    operand,
    product,
    sizes,
    symbolic_size,
)
from tinsmith.tensor.host_data import check_range, from_size
from tinsmith.tensor.indexing.indexing import Indexing
from tinsmith.tensor.interop import files

T = TypeVar("T", bound="Creation")
Device_ = DeviceName | None
DType_ = DTypeLike | None


class Creation(Indexing):
    """Constructors: constants, ranges, data of other libraries, windows, random numbers."""

    __slots__ = ()

    # *** constructors ***

    @classmethod
    def _made(cls, uop: UOp, device: DeviceName | None, requires_grad: bool | None) -> Self:
        """Return a tensor that was not computed from others (a leaf)."""
        if requires_grad is not False:
            uop = leaf(uop)
        name = device_name(device)
        made = cls._wrap(uop, "CPU" if device is not None and files.on_disk(name) else name)
        made.requires_grad = requires_grad
        return made.to(name)

    @classmethod
    def full(cls, shape: Any, fill_value: Any, dtype: DType_ = None, device: Device_ = None,
             requires_grad: bool | None = None) -> Self:
        """Return a tensor filled with ``fill_value``.

        >>> Tensor.full((2, 2), 7).tolist()
        [[7, 7], [7, 7]]
        """
        if isinstance(fill_value, UOp) and fill_value.dtype is dtypes.index:
            check_bound("full", fill_value)
            scalar = from_size(fill_value, None if dtype is None else to_dtype(dtype))
            return cls._made(scalar.expand_to(sizes("full", (shape,))), device, requires_grad)
        if not isinstance(fill_value, Scalar):
            raise DTypeError("full", f"takes a number, got {shown(fill_value)}",
                             "Tensor(...).expand(shape)")
        kind = dtypes.of(fill_value) if dtype is None else to_dtype(dtype)
        value = constant("full", fill_value, kind).expand_to(sizes("full", (shape,)))
        return cls._made(value, device, requires_grad)

    @classmethod
    def zeros(cls, *shape: Any, dtype: DType_ = None, device: Device_ = None,
              requires_grad: bool | None = None) -> Self:
        """Return a tensor of zeros; dtype: the default float.

        >>> Tensor.zeros(2, 3).shape
        (2, 3)
        """
        kind = dtypes.default_float if dtype is None else dtype
        return cls.full(sizes("zeros", shape), 0, dtype=kind, device=device, requires_grad=requires_grad)

    @classmethod
    def ones(cls, *shape: Any, dtype: DType_ = None, device: Device_ = None,
             requires_grad: bool | None = None) -> Self:
        """Return a tensor of ones; dtype: the default float.

        >>> Tensor.ones(3).tolist()
        [1.0, 1.0, 1.0]
        """
        kind = dtypes.default_float if dtype is None else dtype
        return cls.full(sizes("ones", shape), 1, dtype=kind, device=device, requires_grad=requires_grad)

    @classmethod
    def empty(cls, *shape: Any, dtype: DType_ = None, device: Device_ = None,
              requires_grad: bool | None = None) -> Self:
        """Return a tensor of uninitialized memory.

        >>> Tensor.empty(2, 3).shape
        (2, 3)
        """
        wanted = sizes("empty", shape, bound=False)
        kind = dtypes.default_float if dtype is None else to_dtype(dtype)
        if 0 in wanted:
            return cls.full(wanted, 0, dtype=kind, device=device, requires_grad=requires_grad)
        name = device_name(device)
        if files.on_disk(name):
            node = files.part(name, product(wanted), kind).reshape(wanted)
        else:
            greatest = tuple(s.vmax if isinstance(s, UOp) else s for s in wanted)
            buffer = Buffer(members(name)[0], product(greatest), kind)
            node = UOp(Ops.BUFFER, kind, (), buffer).reshape(greatest).copy_to(name)
            if wanted != greatest:
                node = node.shrink(tuple((0, s) for s in wanted))
        made = cls._wrap(node, name)
        made.requires_grad = requires_grad
        return made

    @classmethod
    def arange(cls, start: float, stop: float | None = None, step: float = 1, dtype: DType_ = None,
               device: Device_ = None, requires_grad: bool | None = None) -> Self:
        """Return the numbers from ``start`` (default 0) to ``stop``, excluded, in steps of ``step``.

        Integers have the default int dtype, or int64 if a value requires it.

        >>> Tensor.arange(1, 8, 3).tolist()
        [1, 4, 7]
        """
        first, last = (0, start) if stop is None else (start, stop)
        if any(isinstance(v, UOp) for v in (first, last, step)):
            return cls._made(_symbolic_line(first, last, step, dtype), device, requires_grad)
        first, last = number("arange", "start", first), number("arange", "stop", last)
        step = number("arange", "step", step)
        if step == 0:
            raise ArgumentError("arange", "a step of 0 never arrives", "another step")
        if not all(map(math.isfinite, (first, last, step))):
            raise ArgumentError("arange", f"no line of numbers from {first} to {last} by {step}", "finite numbers")
        kind = None if dtype is None else to_dtype(dtype)
        if kind is not None and kind.is_int and not kind.is_bool:
            first, last, step = _integer_line(first, last, step, kind)
        whole = not any(isinstance(v, float) for v in (first, last, step))
        count = max(int(-((first - last) // step)) if whole else math.ceil((last - first) / step), 0)
        shown = (first, first + (count - 1) * step) if count else ()
        if kind is None:
            kind = promote(dtypes.default_int, *map(dtypes.of, shown)) if whole else dtypes.default_float
        for end in shown:
            check_range("arange", end, kind)
        return cls._made(_line(count, first, step if count > 1 else 1, kind), device, requires_grad)

    @classmethod
    def linspace(cls, start: float, stop: float, steps: int, dtype: DType_ = None,
                 device: Device_ = None, requires_grad: bool | None = None) -> Self:
        """Return ``steps`` evenly spaced numbers from ``start`` to ``stop``, both included.

        >>> Tensor.linspace(0, 1, 3).tolist()
        [0.0, 0.5, 1.0]
        """
        steps = steps if isinstance(steps, UOp) else integer("linspace", "the number of steps", steps, least=0)
        start, stop = (v.item() if isinstance(v, TensorBase) else v for v in (start, stop))
        start, stop = number("linspace", "start", start), number("linspace", "stop", stop)
        kind = dtypes.default_float if dtype is None else to_dtype(dtype)
        if kind.is_int:
            start, stop = int(start), int(stop)
        wide = kind if kind is dtypes.float64 else dtypes.float32
        if isinstance(steps, UOp) and (kind.is_int or steps < 2):
            steps = value_of_size(steps)
        if isinstance(steps, UOp):
            place, last = UOp.iota(steps).cast(wide), (steps - 1).cast(wide)
            step = (UOp.const(wide, stop - start) / last).expand_to(place.shape)
            last = last.expand_to(place.shape)
            line = UOp.iota(steps).lt(steps // 2).where(place * step + start, (place - last) * step + stop)
            return cls._made(line.cast(kind), device, requires_grad)
        if steps < 2:
            return cls.full((steps,), start, dtype=kind, device=device, requires_grad=requires_grad)
        if kind.is_int:  # exact integer arithmetic, then truncation towards 0
            total = UOp.iota(steps, dtypes.int64) * int(stop - start) + int(start) * (steps - 1)
            line = total.lt(0).where((total * -1) // (steps - 1) * -1, total // (steps - 1))
        else:  # as PyTorch: each half is computed from its own end
            step, place = (stop - start) / (steps - 1), UOp.iota(steps).cast(wide)
            line = UOp.iota(steps).lt(steps // 2).where(place * step + start, (place - (steps - 1)) * step + stop)
        return cls._made(line.cast(kind), device, requires_grad)

    @classmethod
    def eye(cls, n: int, m: int | None = None, dtype: DType_ = None, device: Device_ = None,
            requires_grad: bool | None = None) -> Self:
        """Return the identity matrix ``[n, m]``: ones on the diagonal, zeros elsewhere.

        >>> Tensor.eye(2).tolist()
        [[1.0, 0.0], [0.0, 1.0]]
        """
        rows, columns = sizes("eye", (n, n if m is None else m))
        kind = dtypes.default_float if dtype is None else to_dtype(dtype)
        if not rows or not columns:
            return cls.full((rows, columns), 0, dtype=kind, device=device, requires_grad=requires_grad)
        row = UOp.iota(rows).reshape((rows, 1)).expand((rows, columns))
        column = UOp.iota(columns).reshape((1, columns)).expand((rows, columns))
        return cls._made(row.eq(column).cast(kind), device, requires_grad)

    def full_like(self, fill_value: Any, dtype: DType_ = None, device: Device_ = None,
                  requires_grad: bool | None = None) -> Self:
        """Return a tensor filled with ``fill_value``, with this tensor's shape, dtype, device and sharding.

        >>> Tensor([1, 2]).full_like(5).tolist()
        [5, 5]
        """
        made = type(self).full(self.shape, fill_value, dtype=self.dtype if dtype is None else dtype,
                               device=self.device if device is None else device, requires_grad=requires_grad)
        return made if device else made.shard_like(self)

    def const_like(self, b: Any, dtype: DType_ = None) -> Self:
        """Return a constant filled with ``b``, with this tensor's shape, dtype and device; it has no gradient and no
        memory.

        >>> Tensor([1.0, 2.0]).const_like(3).tolist()
        [3.0, 3.0]
        """
        return self.full_like(b, dtype, requires_grad=False)

    def zeros_like(self, dtype: DType_ = None, device: Device_ = None,
                   requires_grad: bool | None = None) -> Self:
        """Return a tensor of zeros with this tensor's shape, dtype and device.

        >>> Tensor([1, 2]).zeros_like().tolist()
        [0, 0]
        """
        return self.full_like(0, dtype, device, requires_grad)

    def ones_like(self, dtype: DType_ = None, device: Device_ = None,
                  requires_grad: bool | None = None) -> Self:
        """Return a tensor of ones with this tensor's shape, dtype and device.

        >>> Tensor([1, 2]).ones_like().tolist()
        [1, 1]
        """
        return self.full_like(1, dtype, device, requires_grad)

    def empty_like(self, dtype: DType_ = None, device: Device_ = None,
                   requires_grad: bool | None = None) -> Self:
        """Return a tensor of uninitialized memory with this tensor's shape, dtype and device.

        >>> Tensor([1, 2]).empty_like().shape
        (2,)
        """
        return type(self).empty(self.shape, dtype=self.dtype if dtype is None else dtype,
                                device=self.device if device is None else device, requires_grad=requires_grad)

    def _zeros(self) -> Self:
        """Return a 0-d zero of this tensor's dtype: a Python 0 would promote bools to integers."""
        return self._new(UOp.const(self.dtype, 0))

    def triu(self, diagonal: int = 0) -> Self:
        """Return the upper triangle of the last two axes: elements below the diagonal are set to 0.

        >>> Tensor([[1, 2], [3, 4]]).triu().tolist()
        [[1, 2], [0, 4]]
        """
        return _band("triu", self, symbolic("triu", "diagonal", diagonal)).where(self, self._zeros())

    def tril(self, diagonal: int = 0) -> Self:
        """Return the lower triangle of the last two axes: elements above the diagonal are set to 0.

        >>> Tensor([[1, 2], [3, 4]]).tril().tolist()
        [[1, 0], [3, 4]]
        """
        return _band("tril", self, symbolic("tril", "diagonal", diagonal) + 1).where(self._zeros(), self)

    # *** filling ***

    def fill_(self, value: Any) -> Self:
        """Fill with a number, in place.

        >>> Tensor([1.0, 2.0]).fill_(3).tolist()
        [3.0, 3.0]
        """
        return self._become("fill_", operand("fill_", value, self).cast(self.dtype).broadcast_to(self.shape))

    def zero_(self) -> Self:
        """Fill with zeros, in place.

        >>> Tensor([1.0, 2.0]).zero_().tolist()
        [0.0, 0.0]
        """
        return self.fill_(0)

    def copy_(self, src: Any) -> Self:
        """Copy the values of ``src``, cast to this tensor's dtype and broadcast to its shape, in place.

        >>> Tensor([1, 2]).copy_(Tensor([3.0])).tolist()
        [3, 3]
        """
        value = operand("copy_", src, self)
        return self._become("copy_", value.to(self.device).cast(self.dtype).broadcast_to(self.shape))

    def fill_diagonal_(self, fill_value: float, wrap: bool = False) -> Self:
        """Fill the main diagonal of a matrix, or of a tensor whose axes have equal sizes, in place.

        >>> Tensor([[1, 2], [3, 4]]).fill_diagonal_(0).tolist()
        [[0, 2], [3, 0]]

        Args:
            wrap: start the diagonal again below the square part of a tall matrix.
        """
        if self.ndim < 2 or (self.ndim > 2 and len(set(self.shape)) > 1):
            raise ShapeError("fill_diagonal_", f"shape {self.shape} has no main diagonal", "two axes, or equal ones")
        places = [type(self).arange(s, device=self.device).reshape((1,) * i + (-1,) + (1,) * (self.ndim - i - 1))
                  for i, s in enumerate(self.shape)]
        rows = places[0].mod(self.shape[1] + 1) if wrap and self.ndim == 2 else places[0]
        inside = rows.eq(places[1])
        for p in places[2:]:
            inside = inside & places[1].eq(p)
        with writing(self):
            return self._become("fill_diagonal_", inside.where(operand("fill_diagonal_", fill_value, self), self))

    # *** random draws ***

    def uniform_(self, a: float = 0.0, b: float = 1.0) -> Self:
        """Fill with uniform random numbers from [a, b), in place.

        >>> bool((Tensor.zeros(9).uniform_(2, 3) >= 2).all())
        True
        """
        a, b = number("uniform_", "a", a), number("uniform_", "b", b)
        _check_interval("uniform_", a, b)
        return self._drawn("uniform_", self._uniform().mul(b - a).add(a))

    def normal_(self, mean: float = 0.0, std: float = 1.0) -> Self:
        """Fill with normal random numbers, in place.

        >>> Tensor.zeros(2).normal_(5, 0).tolist()
        [5.0, 5.0]
        """
        draw = type(self).randn(*self.shape, dtype=self.dtype, device=self.device)
        return self._drawn("normal_", draw.mul(number("normal_", "std", std, 0)).add(number("normal_", "mean", mean)))

    def log_normal_(self, mean: float = 1.0, std: float = 2.0) -> Self:
        """Fill with log-normal random numbers (``mean`` and ``std`` of the logarithm), in place.

        >>> Tensor.zeros(2).log_normal_(0, 0).tolist()
        [1.0, 1.0]
        """
        draw = type(self).randn(*self.shape, dtype=self.dtype, device=self.device)
        std, mean = number("log_normal_", "std", std, 0), number("log_normal_", "mean", mean)
        return self._drawn("log_normal_", draw.mul(std).add(mean).exp())

    def exponential_(self, lambd: float = 1.0) -> Self:
        """Fill with exponential random numbers of density ``lambd * exp(-lambd * x)``, in place.

        >>> bool((Tensor.zeros(9).exponential_() >= 0).all())
        True
        """
        return self._drawn("exponential_", self._uniform().neg().log1p().mul(-1 / number(
            "exponential_", "lambd", lambd, zero=False)))

    def cauchy_(self, median: float = 0.0, sigma: float = 1.0) -> Self:
        """Fill with Cauchy random numbers, in place.

        >>> Tensor.zeros(2).cauchy_(3, 0).tolist()
        [3.0, 3.0]
        """
        return self._drawn("cauchy_", self._uniform().sub(0.5).mul(math.pi).tan().mul(sigma).add(median))

    def geometric_(self, p: float) -> Self:
        """Fill with geometric random numbers (the trial of the first success with probability ``p``), in place.

        >>> Tensor.zeros(2).geometric_(1.0).tolist()
        [1.0, 1.0]
        """
        p = number("geometric_", "p", p, 0, 1, zero=False)
        rate = math.log1p(-p) if p < 1 else -math.inf
        return self._drawn("geometric_", self._uniform().neg().log1p().div(rate).floor().add(1))

    def bernoulli_(self, p: Any = 0.5) -> Self:
        """Fill with 1 (probability ``p``) or 0, in place.

        >>> Tensor.zeros(2).bernoulli_(1.0).tolist()
        [1.0, 1.0]
        """
        return self._drawn("bernoulli_", type(self).rand(*self.shape, device=self.device).lt(p))

    def bernoulli(self, p: float | None = None) -> Self:
        """Draw 1 with each element's value as probability (or ``p``), else 0.

        >>> Tensor([0.0, 1.0]).bernoulli().tolist()
        [0.0, 1.0]
        """
        draw = type(self).rand(*self.shape, device=self.device)
        return draw.lt(self.detach() if p is None else number("bernoulli", "p", p, 0, 1)).cast(self.dtype)

    def random_(self, low: int = 0, high: int | None = None) -> Self:
        """Fill with random integers from [low, high), in place; with one argument, from [0, low).

        >>> bool((Tensor([0, 0, 0]).random_(3) < 3).all())
        True
        """
        exact = {2: 1 << 8, 4: 1 << 24, 8: 1 << 32}[self.dtype.itemsize] if self.dtype.is_float else 0
        most = exact or min(int(self.dtype.max), (1 << 32) - 1)
        low, high = (0, low or most) if high is None else (low, high)
        low, high = integer("random_", "low", low), integer("random_", "high", high)
        draw = type(self).randint(*self.shape, low=low, high=high, dtype=dtypes.int64, device=self.device)
        return self._drawn("random_", draw)

    def _uniform(self) -> Self:
        kind = self.dtype if self.dtype.is_float else dtypes.float32
        return type(self).rand(*self.shape, dtype=kind, device=self.device)

    def _drawn(self, op: str, draw: Self) -> Self:
        return self._become(op, draw.detach().cast(self.dtype))

    def randint_like(self, low: int, high: int | None = None, dtype: FillDType = None,
                     device: DeviceName | None = None, requires_grad: bool | None = None) -> Self:
        """Random integers from [low, high), or [0, low) with one bound, with this tensor's shape.

        >>> Tensor([1, 2]).randint_like(5).shape
        (2,)
        """
        low, high = (0, low) if high is None else (low, high)
        draw = type(self).randint(*self.shape, low=low, high=high, dtype=dtype, requires_grad=requires_grad,
                                  device=self.device if device is None else device)
        return draw.cast(self.dtype) if dtype is None else draw

    # *** new_* constructors ***

    def new_zeros(self, *size: Any, dtype: FillDType = None, device: DeviceName | None = None,
                  requires_grad: bool = False) -> Self:
        """Zeros of the given shape, with this tensor's dtype and device.

        >>> Tensor([1]).new_zeros(2).tolist()
        [0, 0]
        """
        return type(self).zeros(*size, dtype=dtype or self.dtype, device=device or self.device,
                              requires_grad=requires_grad)

    def new_ones(self, *size: Any, dtype: FillDType = None, device: DeviceName | None = None,
                 requires_grad: bool = False) -> Self:
        """Ones of the given shape, with this tensor's dtype and device.

        >>> Tensor([1]).new_ones(2).tolist()
        [1, 1]
        """
        return type(self).ones(*size, dtype=dtype or self.dtype, device=device or self.device,
                             requires_grad=requires_grad)

    def new_empty(self, *size: Any, dtype: FillDType = None, device: DeviceName | None = None,
                  requires_grad: bool = False) -> Self:
        """Uninitialized memory of the given shape, with this tensor's dtype and device.

        >>> Tensor([1]).new_empty(2, 3).shape
        (2, 3)
        """
        return type(self).empty(*size, dtype=dtype or self.dtype, device=device or self.device,
                              requires_grad=requires_grad)

    def new_full(self, size: Any, fill_value: float, dtype: FillDType = None, device: DeviceName | None = None,
                 requires_grad: bool = False) -> Self:
        """Return a tensor of shape ``size`` filled with a number, with this tensor's dtype and device.

        >>> Tensor([1]).new_full((2,), 7).tolist()
        [7, 7]
        """
        return type(self).full(size, fill_value, dtype=dtype or self.dtype, device=device or self.device,
                               requires_grad=requires_grad)

    def new_tensor(self, data: Any, dtype: FillDType = None, device: DeviceName | None = None,
                   requires_grad: bool = False) -> Self:
        """Return a tensor made of ``data``, with this tensor's dtype and device.

        >>> Tensor([1.0]).new_tensor([1, 2]).tolist()
        [1.0, 2.0]
        """
        return type(self)(data, dtype=dtype or self.dtype, device=device or self.device, requires_grad=requires_grad)

    # *** device and dtype ***

    def cpu(self) -> Self:
        """Copy to the CPU: ``to("CPU")``.

        >>> Tensor([1]).cpu().device
        'CPU'
        """
        return self.to("CPU")

    def cuda(self, device: int | str | None = None) -> Self:
        """Copy to a GPU: ``to("CUDA")``, or to the GPU of the given number or name.

        >>> try:
        ...     Tensor([1]).cuda().device
        ... except RuntimeError:
        ...     "CUDA"
        'CUDA'
        """
        return self.to("CUDA" if device is None else f"CUDA:{device}" if isinstance(device, int) else device)

    def byte(self) -> Self:
        """Cast to uint8.

        >>> Tensor([1, 2]).byte().dtype
        dtypes.uchar
        """
        return self.cast(dtypes.uint8)

    def char(self) -> Self:
        """Cast to int8.

        >>> Tensor([1, 2]).char().dtype
        dtypes.char
        """
        return self.cast(dtypes.int8)

    def dim(self) -> int:
        """Return the number of axes (``ndim``).

        >>> Tensor([[1]]).dim()
        2
        """
        return self.ndim

    def ndimension(self) -> int:
        """Return the number of axes (``ndim``).

        >>> Tensor([[1]]).ndimension()
        2
        """
        return self.ndim

    @property
    def itemsize(self) -> int:
        """The size of one element in bytes.

        >>> Tensor([1.0]).itemsize
        4
        """
        return self.dtype.itemsize

    @property
    def is_cpu(self) -> bool:
        """True if the tensor is on the CPU.

        >>> Tensor([1]).to("CPU").is_cpu
        True
        """
        return self._device.split(":")[0] == "CPU"

    @property
    def is_cuda(self) -> bool:
        """True if the tensor is on an NVIDIA GPU.

        >>> Tensor([1]).to("CPU").is_cuda
        False
        """
        return self._device.split(":")[0] == "CUDA"

    @property
    def is_leaf(self) -> bool:
        """True if the tensor was made from data, not computed from other tensors.

        >>> Tensor([1.0]).is_leaf, (Tensor([1.0]) * 2).is_leaf
        (True, False)
        """
        return not is_computed(self.uop)

    def is_complex(self) -> bool:
        """Return False: there is no complex dtype.

        >>> Tensor([1.0]).is_complex()
        False
        """
        return False

    def is_signed(self) -> bool:
        """Return True if the dtype has negative values.

        >>> Tensor([1]).is_signed()
        True
        """
        return not self.dtype.is_unsigned

    def positive(self) -> Self:
        """Return the tensor itself (unary plus).

        >>> Tensor([-1]).positive().tolist()
        [-1]
        """
        return self[...]

    def view_as(self, other: Self) -> Self:
        """Reshape to the shape of ``other``.

        >>> Tensor([1, 2]).view_as(Tensor([[0], [0]])).shape
        (2, 1)
        """
        check_tensors("view_as", [other])
        return self.reshape(other.shape)

    # *** window functions ***

    @classmethod
    def fftfreq(cls, n: int, d: float = 1.0, *, dtype: DType | str | None = None,
                device: DeviceName | None = None) -> Self:
        """Return the frequencies of ``fft``'s n values, in cycles per unit of the distance ``d`` of samples.

        >>> Tensor.fftfreq(4).tolist()
        [0.0, 0.25, -0.5, -0.25]
        """
        values = np.fft.fftfreq(integer("fftfreq", "n", n, least=1), d)
        return host_constant(cls, values, dtypes.default_float if dtype is None else to_dtype(dtype), device)

    @classmethod
    def rfftfreq(cls, n: int, d: float = 1.0, *, dtype: DType | str | None = None,
                 device: DeviceName | None = None) -> Self:
        """Return the frequencies of ``rfft``'s values.

        >>> Tensor.rfftfreq(4).tolist()
        [0.0, 0.25, 0.5]
        """
        values = np.fft.rfftfreq(integer("rfftfreq", "n", n, least=1), d)
        return host_constant(cls, values, dtypes.default_float if dtype is None else to_dtype(dtype), device)

    @classmethod
    def hann_window(cls, window_length: int, periodic: bool = True, *, dtype: DType | str | None = None,
                    device: DeviceName | None = None) -> Self:
        """Return ``0.5 - 0.5 cos(2 pi k / n)``, where n is the length, or one less if not ``periodic``.

        >>> Tensor.hann_window(4).numpy().round(4).tolist()
        [0.0, 0.5, 1.0, 0.5]
        """
        return cosines(cls, "hann_window", (0.5, 0.5), window_length, periodic, dtype, device)

    @classmethod
    def hamming_window(cls, window_length: int, periodic: bool = True, alpha: float = 0.54,
                       beta: float = 0.46, *, dtype: DType | str | None = None,
                       device: DeviceName | None = None) -> Self:
        """Return ``alpha - beta cos(2 pi k / n)``.

        >>> Tensor.hamming_window(4).numpy().round(2).tolist()
        [0.07999999821186066, 0.5400000214576721, 1.0, 0.5400000214576721]
        """
        return cosines(cls, "hamming_window", (alpha, beta), window_length, periodic, dtype, device)

    @classmethod
    def blackman_window(cls, window_length: int, periodic: bool = True, *,
                        dtype: DType | str | None = None, device: DeviceName | None = None) -> Self:
        """Return ``0.42 - 0.5 cos(2 pi k / n) + 0.08 cos(4 pi k / n)``.

        >>> Tensor.blackman_window(4).abs().numpy().round(2).tolist()
        [0.0, 0.3400000035762787, 1.0, 0.3400000035762787]
        """
        return cosines(cls, "blackman_window", (0.42, 0.5, 0.08), window_length, periodic, dtype, device)

    @classmethod
    def bartlett_window(cls, window_length: int, periodic: bool = True, *,
                        dtype: DType | str | None = None, device: DeviceName | None = None) -> Self:
        """Return the Bartlett (triangular) window: linear from 0 to 1 and back.

        >>> Tensor.bartlett_window(4).tolist()
        [0.0, 0.5, 1.0, 0.5]
        """
        count = integer("bartlett_window", "window_length", window_length, least=0)
        places = sample_points(count, flag("bartlett_window", "periodic", periodic))
        kind = dtypes.default_float if dtype is None else to_dtype(dtype)
        return host_constant(cls, 1 - np.abs(2 * places - 1) if count != 1 else np.ones(1), kind, device)

    # *** random numbers ***

    @staticmethod
    def manual_seed(seed: int = 0) -> None:
        """Restart the random stream from ``seed``: an integer, or an array or tensor with one element.

        >>> Tensor.manual_seed(1); a = Tensor.rand(3).tolist()
        >>> Tensor.manual_seed(1); a == Tensor.rand(3).tolist()
        True
        """
        given: Any = seed
        one = getattr(given, "shape", ()) not in ((), None) and math.prod(given.shape) == 1
        number = given.reshape(()).item() if one else given
        _stream.reset(integer("manual_seed", "seed", number) & ((1 << 62) - 1))

    @classmethod
    def random_bits(cls, *shape: Any, device: DeviceName | None = None) -> Self:
        """Random uint32 words: 32 random bits per element.

        >>> Tensor.random_bits(2).dtype
        dtypes.uint
        """
        wanted = sizes("random_bits", shape)
        if 0 in wanted:
            return cls.zeros(wanted, dtype=dtypes.uint32, device=device)
        return cls._made(draw_bits(product(wanted)).reshape(wanted), device, False)

    @classmethod
    def rand(cls, *shape: Any, dtype: DTypeLike | None = None, device: DeviceName | None = None,
             requires_grad: bool | None = None) -> Self:
        """Uniform random numbers in [0, 1).

        >>> Tensor.rand(2, 3).shape
        (2, 3)
        """
        wanted, kind = sizes("rand", shape), float_kind("rand", dtype)
        if 0 in wanted:
            return cls.zeros(wanted, dtype=kind, device=device, requires_grad=requires_grad)
        return cls._made(fractions(product(wanted), kind).reshape(wanted), device, requires_grad)

    @classmethod
    def randn(cls, *shape: Any, dtype: DTypeLike | None = None, device: DeviceName | None = None,
              requires_grad: bool | None = None) -> Self:
        """Standard normal random numbers (Box and Muller 1958): two from two uniform numbers.

        A GPU uses its approximate logarithm, sine and cosine instructions: numbers differ from the CPU's by 1e-7 on
        average, one in 160,000 by more than 1e-5, the worst of 64 million by 2e-4.

        >>> Tensor.randn(2, 3).shape
        (2, 3)
        """
        wanted, kind = sizes("randn", shape), float_kind("randn", dtype)
        if 0 in wanted:
            return cls.zeros(wanted, dtype=kind, device=device, requires_grad=requires_grad)
        return cls._made(gaussian(product(wanted), kind, device).reshape(wanted), device, requires_grad)

    @classmethod
    def uniform(cls, *shape: Any, low: float = 0.0, high: float = 1.0, dtype: DTypeLike | None = None,
                device: DeviceName | None = None, requires_grad: bool | None = None) -> Self:
        """Uniform random numbers in [low, high).

        >>> bool((Tensor.uniform(9, low=2, high=3) >= 2).all())
        True
        """
        wanted, kind = sizes("uniform", shape), float_kind("uniform", dtype)
        low, high = number("uniform", "low", low), number("uniform", "high", high)
        _check_interval("uniform", low, high)
        if 0 in wanted:
            return cls.zeros(wanted, dtype=kind, device=device, requires_grad=requires_grad)
        x = fractions(product(wanted), kind).reshape(wanted)
        return cls._made(x * (high - low) + low, device, requires_grad)

    @classmethod
    def normal(cls, *shape: Any, mean: float = 0.0, std: float = 1.0, dtype: DTypeLike | None = None,
               device: DeviceName | None = None, requires_grad: bool | None = None) -> Self:
        """Normal random numbers with the given mean and standard deviation.

        >>> Tensor.normal(3, mean=5, std=0).tolist()
        [5.0, 5.0, 5.0]
        """
        wanted, kind = sizes("normal", shape), float_kind("normal", dtype)
        mean, std = number("normal", "mean", mean), number("normal", "std", std, least=0)
        if 0 in wanted:
            return cls.zeros(wanted, dtype=kind, device=device, requires_grad=requires_grad)
        x = gaussian(product(wanted), kind, device).reshape(wanted)
        return cls._made(x * std + mean, device, requires_grad)

    @classmethod
    def randint(cls, *shape: Any, low: int = 0, high: int = 10, dtype: DTypeLike | None = None,
                device: DeviceName | None = None, requires_grad: bool | None = None) -> Self:
        """Random integers in [low, high).

        >>> bool((Tensor.randint(9, low=2, high=5) < 5).all())
        True

        Raises:
            ArgumentError: if the range is empty or larger than 2**32.
            RangeError: if the dtype cannot hold the range.
        """
        kind = dtypes.default_int if dtype is None else to_dtype(dtype)
        low, high = integer("randint", "low", low), integer("randint", "high", high)
        wanted, span = sizes("randint", shape), high - low
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
        scaled = (draw_bits(product(wanted)).cast(dtypes.uint64) * span) >> 32
        return cls._made((scaled.cast(dtypes.int64) + low).cast(kind).reshape(wanted), device, bool(requires_grad))

    @classmethod
    def randperm(cls, n: int, *, dtype: DTypeLike | None = None,
                 device: DeviceName | None = None) -> Self:
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
    def scaled_uniform(cls, *shape: Any, dtype: DTypeLike | None = None,
                       device: DeviceName | None = None, requires_grad: bool | None = None) -> Self:
        """Uniform random numbers in [-1, 1), divided by the square root of the number of elements.

        >>> bool((Tensor.scaled_uniform(4, 4).abs() <= 0.25).all())
        True
        """
        bound = 1 / math.sqrt(max(product(fixed_sizes("scaled_uniform", shape)), 1))
        return cls.uniform(*shape, low=-bound, high=bound, dtype=dtype, device=device, requires_grad=requires_grad)

    @classmethod
    def glorot_uniform(cls, *shape: Any, dtype: DTypeLike | None = None,
                       device: DeviceName | None = None, requires_grad: bool | None = None) -> Self:
        """Uniform random numbers within the bound of Glorot and Bengio (2010), ``sqrt(6 / (fan_in + fan_out))``.

        >>> Tensor.glorot_uniform(4, 4).shape
        (4, 4)
        """
        wanted = fixed_sizes("glorot_uniform", shape)
        bound = math.sqrt(6 / max(wanted[0] + product(wanted[1:]), 1)) if wanted else 1.0
        return cls.uniform(*shape, low=-bound, high=bound, dtype=dtype, device=device, requires_grad=requires_grad)

    @classmethod
    def kaiming_uniform(cls, *shape: Any, a: float = 0.01, dtype: DTypeLike | None = None,
                        device: DeviceName | None = None, requires_grad: bool | None = None) -> Self:
        """Uniform random numbers within the bound of He et al. (2015); fan-in: the product of all axes but the first.

        >>> Tensor.kaiming_uniform(4, 4).shape
        (4, 4)
        """
        bound = math.sqrt(3) * kaiming("kaiming_uniform", shape, a)
        return cls.uniform(*shape, low=-bound, high=bound, dtype=dtype, device=device, requires_grad=requires_grad)

    @classmethod
    def kaiming_normal(cls, *shape: Any, a: float = 0.01, dtype: DTypeLike | None = None,
                       device: DeviceName | None = None, requires_grad: bool | None = None) -> Self:
        """Normal random numbers with the deviation of He et al. (2015); fan-in: the product of all axes but the first.

        >>> Tensor.kaiming_normal(4, 4).shape
        (4, 4)
        """
        std = kaiming("kaiming_normal", shape, a)
        return cls.normal(*shape, std=std, dtype=dtype, device=device, requires_grad=requires_grad)

    def multinomial(self, num_samples: int = 1, replacement: bool = False) -> Self:
        """Draw indices with probabilities proportional to the weights; a matrix holds one distribution per row.

        With replacement, an index is found by searching a uniform number in the cumulative sums of the weights. Without
        replacement, the indices with the largest ``weight ** (1 / uniform)`` are drawn, computed in logarithms
        (Efraimidis and Spirakis, 2006). Weights are not read to check them: of weights that are negative, NaN, infinite
        or all 0, the indices have no meaning.

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

    def rand_like(self, dtype: DTypeLike | None = None, device: DeviceName | None = None,
                  requires_grad: bool | None = None) -> Self:
        """Uniform random numbers in [0, 1), with this tensor's shape, dtype and device.

        >>> Tensor([1., 2.]).rand_like().shape
        (2,)
        """
        return type(self).rand(*self.shape, dtype=self.dtype if dtype is None else dtype,
                          device=self.device if device is None else device, requires_grad=requires_grad)

    def randn_like(self, dtype: DTypeLike | None = None, device: DeviceName | None = None,
                   requires_grad: bool | None = None) -> Self:
        """Standard normal random numbers, with this tensor's shape, dtype and device.

        >>> Tensor([1., 2.]).randn_like().shape
        (2,)
        """
        return type(self).randn(*self.shape, dtype=self.dtype if dtype is None else dtype,
                           device=self.device if device is None else device, requires_grad=requires_grad)


def _check_interval(op: str, low: float, high: float) -> None:
    if low > high:
        raise ArgumentError(op, f"an interval from {low} to {high}", "the smaller number first")


def _line(count: int, first: float, step: float, dtype: DType) -> UOp:
    """Return ``first + i * step`` for 0 <= i < ``count``, computed in ``dtype`` (at least 32 bits wide) from an
    IOTA."""
    if count == 0:
        return UOp.const(dtype, 0).expand_to((0,))
    work = dtype if dtype.itemsize >= 4 else (dtypes.float32 if dtype.is_float else dtypes.int32)
    line = UOp.iota(count, work) if work.is_int else UOp.iota(count).cast(work)
    if isinstance(step, float) and work.is_int:
        line = UOp.iota(count).cast(dtypes.float64)
    line = line if step == 1 else line * step
    return (line if first == 0 else line + first).cast(dtype)


def _symbolic_line(first: Any, last: Any, step: Any, dtype: DType_) -> UOp:
    """Return an integer range whose bounds and step may be symbolic."""
    first, last, step = (symbolic("arange", what, v) for what, v in (("start", first), ("stop", last), ("step", step)))
    low, high = (step.vmin, step.vmax) if isinstance(step, UOp) else (step, step)
    if low <= 0 <= high:
        raise ArgumentError("arange", f"a step of {size_text(step)}, which may be 0", "a step of one sign")
    way = UOp.index(last) - first if low > 0 else UOp.index(first) - last
    stride = step if low > 0 else -step
    count = symbolic_size("arange", (way + (stride - 1)) // stride)
    ends = [from_size(v).dtype for v in (first, last) if isinstance(v, UOp)]
    kind = promote(dtypes.default_int, *ends) if dtype is None else to_dtype(dtype)
    line = UOp.iota(count).cast(kind)
    begin: UOp = (line * step if isinstance(step, UOp) or step != 1 else line) + first
    return begin


def _band(op: str, x: T, diagonal: int) -> T:
    """Return True where an element lies on or to the right of the given diagonal of the last two axes."""
    if x.ndim < 2:
        raise ShapeError(op, f"takes a matrix or a batch of them, got shape {x.shape}", "at least two axes")
    row, column = x.uop.iota_like(x.ndim - 2), x.uop.iota_like(x.ndim - 1)
    return x._new((row + diagonal).lt(column + 1))


def _integer_line(first: float, last: float, step: float, kind: DType) -> tuple[float, float, float]:
    """Return the (start, stop, step) of an integer range with float arguments, by PyTorch's rule.

    Start and step are truncated. For int64 the stop is truncated, too; other dtypes keep the float range's length."""
    if not any(isinstance(v, float) for v in (first, last, step)):
        return first, last, step
    count = math.ceil((last - first) / step)
    begin, by = int(first), int(step)
    if kind is dtypes.int64:
        last = int(last)
    elif by:
        last = begin + by * max(count, 0)
    if not by:
        raise ArgumentError("arange", f"a step of {step} is 0 in {kind!r}", "another step, or a float dtype")
    return begin, last, by

FillDType = DType | str | None


