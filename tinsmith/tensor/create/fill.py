"""In-place fills and random draws, ``new_*`` constructors, and PyTorch's queries of device and dtype."""
# mypy: disable-error-code=misc
# ``self`` is the Tensor that this class is mixed into.
from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tinsmith.backend.device import DeviceName
from tinsmith.core.dtypes import DType, dtypes, to_dtype
from tinsmith.core.errors import ShapeError
from tinsmith.runtime.thread_turns import writing
from tinsmith.tensor.arguments import integer, number
from tinsmith.tensor.autograd.history import is_computed
from tinsmith.tensor.base import check_tensors
from tinsmith.tensor.helpers import operand

if TYPE_CHECKING:
    from tinsmith.tensor.tensor import Tensor

DType_ = DType | str | None


class Filling:
    """``fill_ zero_ copy_ normal_ uniform_ bernoulli_``, ``new_zeros``, ``cpu cuda``, ``is_leaf`` and others."""

    __slots__ = ()

    def fill_(self: Tensor, value: Any) -> Tensor:
        """Fill with a number, in place.

        >>> Tensor([1.0, 2.0]).fill_(3).tolist()
        [3.0, 3.0]
        """
        return self._become("fill_", operand("fill_", value, self).cast(self.dtype).broadcast_to(self.shape))

    def zero_(self: Tensor) -> Tensor:
        """Fill with zeros, in place.

        >>> Tensor([1.0, 2.0]).zero_().tolist()
        [0.0, 0.0]
        """
        return self.fill_(0)

    def copy_(self: Tensor, src: Any) -> Tensor:
        """Copy the values of ``src``, cast to this tensor's dtype and broadcast to its shape, in place.

        >>> Tensor([1, 2]).copy_(Tensor([3.0])).tolist()
        [3, 3]
        """
        value = operand("copy_", src, self)
        return self._become("copy_", value.to(self.device).cast(self.dtype).broadcast_to(self.shape))

    def fill_diagonal_(self: Tensor, fill_value: float, wrap: bool = False) -> Tensor:
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

    def uniform_(self: Tensor, a: float = 0.0, b: float = 1.0) -> Tensor:
        """Fill with uniform random numbers from [a, b), in place.

        >>> bool((Tensor.zeros(9).uniform_(2, 3) >= 2).all())
        True
        """
        a, b = number("uniform_", "a", a), number("uniform_", "b", b)
        return self._drawn("uniform_", self._uniform().mul(b - a).add(a))

    def normal_(self: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
        """Fill with normal random numbers, in place.

        >>> Tensor.zeros(2).normal_(5, 0).tolist()
        [5.0, 5.0]
        """
        draw = type(self).randn(*self.shape, dtype=self.dtype, device=self.device)
        return self._drawn("normal_", draw.mul(number("normal_", "std", std, 0)).add(number("normal_", "mean", mean)))

    def log_normal_(self: Tensor, mean: float = 1.0, std: float = 2.0) -> Tensor:
        """Fill with log-normal random numbers (``mean`` and ``std`` of the logarithm), in place.

        >>> Tensor.zeros(2).log_normal_(0, 0).tolist()
        [1.0, 1.0]
        """
        draw = type(self).randn(*self.shape, dtype=self.dtype, device=self.device)
        std, mean = number("log_normal_", "std", std, 0), number("log_normal_", "mean", mean)
        return self._drawn("log_normal_", draw.mul(std).add(mean).exp())

    def exponential_(self: Tensor, lambd: float = 1.0) -> Tensor:
        """Fill with exponential random numbers of density ``lambd * exp(-lambd * x)``, in place.

        >>> bool((Tensor.zeros(9).exponential_() >= 0).all())
        True
        """
        return self._drawn("exponential_", self._uniform().neg().log1p().mul(-1 / number(
            "exponential_", "lambd", lambd, zero=False)))

    def cauchy_(self: Tensor, median: float = 0.0, sigma: float = 1.0) -> Tensor:
        """Fill with Cauchy random numbers, in place.

        >>> Tensor.zeros(2).cauchy_(3, 0).tolist()
        [3.0, 3.0]
        """
        return self._drawn("cauchy_", self._uniform().sub(0.5).mul(math.pi).tan().mul(sigma).add(median))

    def geometric_(self: Tensor, p: float) -> Tensor:
        """Fill with geometric random numbers (the trial of the first success with probability ``p``), in place.

        >>> Tensor.zeros(2).geometric_(1.0).tolist()
        [1.0, 1.0]
        """
        p = number("geometric_", "p", p, 0, 1, zero=False)
        rate = math.log1p(-p) if p < 1 else -math.inf
        return self._drawn("geometric_", self._uniform().neg().log1p().div(rate).floor().add(1))

    def bernoulli_(self: Tensor, p: Any = 0.5) -> Tensor:
        """Fill with 1 (probability ``p``) or 0, in place.

        >>> Tensor.zeros(2).bernoulli_(1.0).tolist()
        [1.0, 1.0]
        """
        return self._drawn("bernoulli_", type(self).rand(*self.shape, device=self.device).lt(p))

    def bernoulli(self: Tensor, p: float | None = None) -> Tensor:
        """Draw 1 with each element's value as probability (or ``p``), else 0.

        >>> Tensor([0.0, 1.0]).bernoulli().tolist()
        [0.0, 1.0]
        """
        draw = type(self).rand(*self.shape, device=self.device)
        return draw.lt(self.detach() if p is None else number("bernoulli", "p", p, 0, 1)).cast(self.dtype)

    def random_(self: Tensor, low: int = 0, high: int | None = None) -> Tensor:
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

    def _uniform(self: Tensor) -> Tensor:
        kind = self.dtype if self.dtype.is_float else dtypes.float32
        return type(self).rand(*self.shape, dtype=kind, device=self.device)

    def _drawn(self: Tensor, op: str, draw: Tensor) -> Tensor:
        return self._become(op, draw.detach().cast(self.dtype))

    def randint_like(self: Tensor, low: int, high: int | None = None, dtype: DType_ = None,
                     device: DeviceName | None = None, requires_grad: bool | None = None) -> Tensor:
        """Random integers from [low, high), or [0, low) with one bound, with this tensor's shape.

        >>> Tensor([1, 2]).randint_like(5).shape
        (2,)
        """
        low, high = (0, low) if high is None else (low, high)
        draw = type(self).randint(*self.shape, low=low, high=high, dtype=dtype, requires_grad=requires_grad,
                                  device=self.device if device is None else device)
        return draw.cast(self.dtype) if dtype is None else draw

    # *** new_* constructors ***

    def new_zeros(self: Tensor, *size: Any, dtype: DType_ = None, device: DeviceName | None = None,
                  requires_grad: bool = False) -> Tensor:
        """Zeros of the given shape, with this tensor's dtype and device.

        >>> Tensor([1]).new_zeros(2).tolist()
        [0, 0]
        """
        return type(self).zeros(*size, dtype=dtype or self.dtype, device=device or self.device,
                              requires_grad=requires_grad)

    def new_ones(self: Tensor, *size: Any, dtype: DType_ = None, device: DeviceName | None = None,
                 requires_grad: bool = False) -> Tensor:
        """Ones of the given shape, with this tensor's dtype and device.

        >>> Tensor([1]).new_ones(2).tolist()
        [1, 1]
        """
        return type(self).ones(*size, dtype=dtype or self.dtype, device=device or self.device,
                             requires_grad=requires_grad)

    def new_empty(self: Tensor, *size: Any, dtype: DType_ = None, device: DeviceName | None = None,
                  requires_grad: bool = False) -> Tensor:
        """Uninitialized memory of the given shape, with this tensor's dtype and device.

        >>> Tensor([1]).new_empty(2, 3).shape
        (2, 3)
        """
        return type(self).empty(*size, dtype=dtype or self.dtype, device=device or self.device,
                              requires_grad=requires_grad)

    def new_full(self: Tensor, size: Any, fill_value: float, dtype: DType_ = None, device: DeviceName | None = None,
                 requires_grad: bool = False) -> Tensor:
        """A tensor of shape ``size`` filled with a number, with this tensor's dtype and device.

        >>> Tensor([1]).new_full((2,), 7).tolist()
        [7, 7]
        """
        return type(self).full(size, fill_value, dtype=dtype or self.dtype, device=device or self.device,
                               requires_grad=requires_grad)

    def new_tensor(self: Tensor, data: Any, dtype: DType_ = None, device: DeviceName | None = None,
                   requires_grad: bool = False) -> Tensor:
        """A tensor made of ``data``, with this tensor's dtype and device.

        >>> Tensor([1.0]).new_tensor([1, 2]).tolist()
        [1.0, 2.0]
        """
        return type(self)(data, dtype=dtype or self.dtype, device=device or self.device, requires_grad=requires_grad)

    # *** device and dtype ***

    def cpu(self: Tensor) -> Tensor:
        """Copy to the CPU: ``to("CPU")``.

        >>> Tensor([1]).cpu().device
        'CPU'
        """
        return self.to("CPU")

    def cuda(self: Tensor, device: int | str | None = None) -> Tensor:
        """Copy to a GPU: ``to("CUDA")``, or to the GPU of the given number or name.

        >>> try:
        ...     Tensor([1]).cuda().device
        ... except RuntimeError:
        ...     "CUDA"
        'CUDA'
        """
        return self.to("CUDA" if device is None else f"CUDA:{device}" if isinstance(device, int) else device)

    def type(self: Tensor, dtype: DType_ = None) -> Any:
        """Cast to ``dtype``; without an argument, return the dtype.

        >>> Tensor([1]).type("float32").type()
        dtypes.float
        """
        return self.dtype if dtype is None else self.cast(to_dtype(dtype))

    def byte(self: Tensor) -> Tensor:
        """Cast to uint8.

        >>> Tensor([1, 2]).byte().dtype
        dtypes.uchar
        """
        return self.cast(dtypes.uint8)

    def char(self: Tensor) -> Tensor:
        """Cast to int8.

        >>> Tensor([1, 2]).char().dtype
        dtypes.char
        """
        return self.cast(dtypes.int8)

    def dim(self: Tensor) -> int:
        """The number of axes (``ndim``).

        >>> Tensor([[1]]).dim()
        2
        """
        return self.ndim

    def ndimension(self: Tensor) -> int:
        """The number of axes (``ndim``).

        >>> Tensor([[1]]).ndimension()
        2
        """
        return self.ndim

    @property
    def itemsize(self: Tensor) -> int:
        """The size of one element in bytes.

        >>> Tensor([1.0]).itemsize
        4
        """
        return self.dtype.itemsize

    @property
    def is_cpu(self: Tensor) -> bool:
        """True if the tensor is on the CPU.

        >>> Tensor([1]).to("CPU").is_cpu
        True
        """
        return self._device.split(":")[0] == "CPU"

    @property
    def is_cuda(self: Tensor) -> bool:
        """True if the tensor is on an NVIDIA GPU.

        >>> Tensor([1]).to("CPU").is_cuda
        False
        """
        return self._device.split(":")[0] == "CUDA"

    @property
    def is_leaf(self: Tensor) -> bool:
        """True if the tensor was made from data, not computed from other tensors.

        >>> Tensor([1.0]).is_leaf, (Tensor([1.0]) * 2).is_leaf
        (True, False)
        """
        return not is_computed(self.uop)

    def is_complex(self: Tensor) -> bool:
        """Return False: there is no complex dtype.

        >>> Tensor([1.0]).is_complex()
        False
        """
        return False

    def is_signed(self: Tensor) -> bool:
        """Return True if the dtype has negative values.

        >>> Tensor([1]).is_signed()
        True
        """
        return not self.dtype.is_unsigned

    def positive(self: Tensor) -> Tensor:
        """The tensor itself (unary plus).

        >>> Tensor([-1]).positive().tolist()
        [-1]
        """
        return self[...]

    def view_as(self: Tensor, other: Tensor) -> Tensor:
        """Reshape to the shape of ``other``.

        >>> Tensor([1, 2]).view_as(Tensor([[0], [0]])).shape
        (2, 1)
        """
        check_tensors("view_as", [other])
        return self.reshape(other.shape)
