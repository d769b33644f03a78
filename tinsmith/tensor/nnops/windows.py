"""Convolutions and pools: sliding windows are one movement op (WINDOW), followed by one product and one reduction.

A convolution multiplies windows of the input with the weight in the shape
``[N, groups, Cout/groups, out…, Cin/groups, kernel…]`` and sums the last axes: a contraction to the compiler. Its
gradients, and the transposed convolution, are the same product read through the transpose of the window op.
"""
# mypy: disable-error-code=misc
# ``self`` is the Tensor that this class is mixed into.
from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

from tinsmith.core.dtypes import DType, dtypes, promote, sum_dtype
from tinsmith.core.errors import ArgumentError, DeviceError, DTypeError, ShapeError
from tinsmith.ir import UOp
from tinsmith.ir.algebra.sizes import normal_size, size_text
from tinsmith.ir.uop import Window
from tinsmith.tensor.arguments import integer, integers
from tinsmith.tensor.autocast import contraction
from tinsmith.tensor.autograd.backward import with_slopes
from tinsmith.tensor.helpers import equal, operand, product, rounded_once

if TYPE_CHECKING:
    from tinsmith.tensor.tensor import Tensor

Ints = int | Sequence[int]
Pairs = tuple[tuple[int, int], ...]
P = ParamSpec("P")
R = TypeVar("R")


_ORDERS: Final = {  # argument orders after kernel_size and stride: tinygrad's (the signature here), then PyTorch's
    "max_pool2d": (("dilation", "padding", "ceil_mode", "return_indices"),
                   ("padding", "dilation", "ceil_mode", "return_indices")),
    "avg_pool2d": (("dilation", "padding", "ceil_mode", "count_include_pad", "divisor_override"),
                   ("padding", "ceil_mode", "count_include_pad", "divisor_override"))}


def in_either_order(pool: Callable[Concatenate[Tensor, P], R]) -> Callable[Concatenate[Tensor, P], R]:
    """Decorate a pool to take positional arguments in tinygrad's or PyTorch's order; refuse ambiguous calls."""
    op = pool.__name__

    def ordered(self: Tensor, /, *args: Any, **kwargs: Any) -> R:
        named = _pool_keywords(op, args[2:], kwargs) if len(args) > 2 else kwargs
        return pool(self, *args[:2], **named)

    ordered.__code__ = ordered.__code__.replace(co_name=op)  # nodes and errors show the called method
    return functools.wraps(pool)(ordered)


def _pool_keywords(op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the positional arguments after ``kernel_size`` and ``stride`` by name.

    Raises:
        ArgumentError: if the two orders mean two different pools.
    """
    found = [dict(zip(order, args)) for order in _ORDERS[op]
             if len(args) <= len(order) and not {*order[: len(args)]} & {*kwargs}]
    meant = [named for named in found if _is_pool(named)] or [dict(zip(_ORDERS[op][0], args))]
    if len(meant) == 2 and not _same_pool(*meant):
        raise ArgumentError(op, f"{args!r:.40} behind kernel_size and stride is {_spelled(meant[0])} to tinygrad and "
                            f"{_spelled(meant[1])} to PyTorch", "names: dilation=, padding=")
    return {**meant[0], **kwargs}


def _is_pool(named: dict[str, Any]) -> bool:
    """Return True if the arguments have valid types under these names: flags are bools, a dilation is not 0."""
    flags = [v for k, v in named.items() if k in ("ceil_mode", "count_include_pad", "return_indices")]
    sizes = [v for k, v in named.items() if k in ("dilation", "padding")]
    return all(isinstance(v, bool) for v in flags) and not any(isinstance(v, bool) for v in sizes) and \
        named.get("dilation") != 0


def _same_pool(a: dict[str, Any], b: dict[str, Any]) -> bool:
    defaults = {"dilation": 1, "padding": 0}
    return {**defaults, **a} == {**defaults, **b}


def _spelled(named: dict[str, Any]) -> str:
    return ", ".join(f"{k}={v!r:.20}" for k, v in named.items())


class WindowMethods:
    """Convolutions and pools over one, two or three spatial axes."""

    __slots__ = ()

    @contraction
    def conv2d(self: Tensor, weight: Tensor, bias: Tensor | None = None, groups: int = 1, stride: Ints = 1,
               dilation: Ints = 1, padding: Ints | str = 0, dtype: DType | None = None) -> Tensor:
        """Convolve over the last axes: ``[N, Cin, …] * [Cout, Cin/groups, k…] → [N, Cout, …]``.

        The weight determines the number of spatial axes (1 to 3). Without the axis N, the result has none either.

        Args:
            bias: ``[Cout]``, added to every position.
            padding: zeros around each axis: one number, one per axis, or (before, after) pairs from the last axis on;
                "valid" for none, "same" (with stride 1) to keep the size.
            dtype: the dtype of the sums; default: float32 for 16-bit floats.

        >>> Tensor.ones(1, 1, 3, 3).conv2d(Tensor.ones(1, 1, 2, 2)).tolist()
        [[[[4.0, 4.0], [4.0, 4.0]]]]

        Raises:
            ShapeError: if channels, groups or kernel do not match the input.
        """
        weight, bias = operand("conv2d", weight, self), None if bias is None else operand("conv2d", bias, self)
        if _unbatched(self, weight):
            return self.unsqueeze(0).conv2d(weight, bias, groups, stride, dilation, padding, dtype).squeeze(0)
        dims, groups = _spatial_dims("conv2d", self, weight), integer("conv2d", "groups", groups, least=1)
        steps, spread = _steps("conv2d", stride, dilation, dims)
        amounts = pad_pairs("conv2d", padding, dims, weight.shape[2:], steps, spread)
        (n, channels), (cout, cin, *kernel) = self.shape[:2], weight.shape
        _check_channels("conv2d", self, weight, bias, channels, cin * groups, cout, groups)
        out_dtype, acc = _accumulator("conv2d", self, weight, dtype)
        x = _padded(self.uop, ((0, 0), (0, 0), *amounts), 0).cast(acc)
        size = x.shape[2:]
        outputs = tuple(_outputs("conv2d", *a) for a in zip(size, kernel, steps, spread))
        ones = (1,) * dims
        x = x.reshape((n, groups, 1, cin, *size, *ones))
        x = x.permute((0, 1, 2, *range(4, 4 + dims), 3, *range(4 + dims, 4 + 2 * dims)))
        x = x.expand((n, groups, cout // groups, *size, cin, *kernel))
        for a in range(dims):
            x = x.window(Window(3 + a, 4 + dims + a, steps[a], spread[a], size[a], outputs[a]))
        w = weight.uop.cast(acc).reshape((1, groups, cout // groups, *ones, cin, *kernel))
        multiplied = x * w.expand((n, groups, cout // groups, *outputs, cin, *kernel))
        total = multiplied.reduce("ADD", tuple(range(3 + dims, 4 + 2 * dims)))
        return _finish(self._new(total.reshape((n, cout, *outputs)).cast(out_dtype)), bias, dims)

    @contraction
    def conv_transpose2d(self: Tensor, weight: Tensor, bias: Tensor | None = None, groups: int = 1, stride: Ints = 1,
                         dilation: Ints = 1, padding: Ints = 0, output_padding: Ints = 0) -> Tensor:
        """Return the transpose of ``conv2d``: ``[N, Cin, …] * [Cin, Cout/groups, k…] → [N, Cout, …]``; N is optional.

        >>> Tensor.ones(1, 1, 1, 2).conv_transpose2d(Tensor.ones(1, 1, 1, 2)).tolist()
        [[[[1.0, 2.0, 1.0]]]]
        """
        op = "conv_transpose2d"
        weight, bias = operand(op, weight, self), None if bias is None else operand(op, bias, self)
        if _unbatched(self, weight):
            return self.unsqueeze(0).conv_transpose2d(weight, bias, groups, stride, dilation, padding,
                                                      output_padding).squeeze(0)
        dims, groups = _spatial_dims(op, self, weight), integer(op, "groups", groups, least=1)
        steps, spread = _steps(op, stride, dilation, dims)
        amounts, extra = pad_pairs(op, padding, dims), integers(op, "output_padding", output_padding, dims)
        (n, channels), size, (cin, cout, *kernel) = self.shape[:2], self.shape[2:], weight.shape
        cout *= groups
        if any(isinstance(s, UOp) for s in size):
            raise ShapeError(op, f"the input {self.shape} has a symbolic size", "axes of fixed size")
        _check_channels(op, self, weight, bias, channels, cin, cout, groups)
        out_dtype, acc = _accumulator(op, self, weight, None)
        each_in, each_out, ones = cin // groups, cout // groups, (1,) * dims
        full = (n, groups, each_out, *size, each_in, *kernel)
        x = self.uop.cast(acc).reshape((n, groups, 1, each_in, *size, *ones))
        x = x.permute((0, 1, 2, *range(4, 4 + dims), 3, *range(4 + dims, 4 + 2 * dims))).expand(full)
        w = weight.uop.cast(acc).reshape((1, groups, each_in, each_out, *ones, *kernel))
        w = w.permute((0, 1, 3, *range(4, 4 + dims), 2, *range(4 + dims, 4 + 2 * dims))).expand(full)
        spread_out = x * w
        grown = tuple((s - 1) * st + d * (k - 1) + 1 for s, st, d, k in zip(size, steps, spread, kernel))
        for a in range(dims):
            window = Window(3 + a, 4 + dims + a, steps[a], spread[a], grown[a], size[a])
            spread_out = spread_out.unwindow(window)
        total = spread_out.reduce("ADD", tuple(range(3 + dims, 4 + 2 * dims))).reshape((n, cout, *grown))
        total = total.pad(((0, 0), (0, 0), *((0, max(e - p[1], 0)) for e, p in zip(extra, amounts))))
        keep = tuple((p[0], g + e - p[1]) for g, p, e in zip(grown, amounts, extra))
        if any(end <= begin for begin, end in keep):
            raise ShapeError(op, f"padding {amounts} leaves nothing of size {grown}", "less padding")
        total = total.shrink(((0, n), (0, cout), *keep))
        return _finish(self._new(total.cast(out_dtype)), bias, dims)

    @in_either_order
    def max_pool2d(self: Tensor, kernel_size: Ints = 2, stride: Ints | None = None, dilation: Ints = 1,
                   padding: Ints = 0, ceil_mode: bool = False, return_indices: bool = False) -> Any:
        """Return the maximum of each window over the last axes (two, or as many as ``kernel_size`` has).

        Of equal maxima in a window, the first one gets the gradient. After ``stride``, positional arguments may be in
        tinygrad's order or PyTorch's (``padding, dilation``); a call that is ambiguous raises an error.

        >>> Tensor.arange(16).reshape(1, 1, 4, 4).max_pool2d().tolist()
        [[[[5, 7], [13, 15]]]]

        Args:
            return_indices: also return the index of each maximum in its flattened input plane.
        """
        kernel, steps, spread, amounts = _pool_arguments("max_pool2d", self, kernel_size, stride, dilation, padding)
        x = _padded(self.uop, ((0, 0),) * (self.ndim - len(kernel)) + amounts, self.dtype.min)
        windows, axes, shape = _pool_windows("max_pool2d", x, kernel, steps, spread,
                                             amounts if ceil_mode else None, self.dtype.min)
        greatest = with_slopes(self._new(windows.reduce("MAX", axes)), _first_greatest, self._new(windows))
        out = self._new(greatest.uop.reshape(shape))
        if not return_indices:
            return out
        places = _padded(_places(self, len(kernel)), ((0, 0),) * (self.ndim - len(kernel)) + amounts, 0)
        there = _pool_windows("max_pool2d", places, kernel, steps, spread, amounts if ceil_mode else None, 0)[0]
        chosen = _is_first_greatest(greatest.detach(), self._new(windows).detach())
        found = chosen.where(self._new(there), 0).uop.reduce("ADD", axes).reshape(shape)
        return out, self._new(found.cast(dtypes.default_int))

    def max_unpool2d(self: Tensor, indices: Tensor, kernel_size: Ints = 2, stride: Ints | None = None,
                     dilation: Ints = 1, padding: Ints = 0, output_size: Sequence[int] | None = None) -> Tensor:
        """Put each value at the index returned by ``max_pool2d(return_indices=True)``; zeros elsewhere.

        Args:
            output_size: the sizes of the last axes, or the full shape, where the pool's arguments leave them ambiguous.

        >>> x, places = Tensor([[[[1, 2], [3, 4]]]]).max_pool2d(return_indices=True)
        >>> x.max_unpool2d(places).tolist()
        [[[[0, 0], [0, 4]]]]
        """
        op = "max_unpool2d"
        kernel, steps, spread, amounts = _pool_arguments(op, self, kernel_size, stride, dilation, padding)
        dims = len(kernel)
        if indices.shape != self.shape:
            raise ShapeError(op, f"values {self.shape}, indices {indices.shape}", "what max_pool2d gave")
        lead, size = self.shape[: self.ndim - dims], self.shape[self.ndim - dims :]
        whole = tuple((s - 1) * st + d * (k - 1) + 1 - b - e
                      for s, st, d, k, (b, e) in zip(size, steps, spread, kernel, amounts))
        if output_size is not None:
            whole = integers(op, "output_size", tuple(output_size)[-dims:], dims, least=1)
        flat = type(self).zeros(*lead, product(whole), dtype=self.dtype, device=self.device, requires_grad=False)
        rows = (*lead, product(size))
        values, places = self.reshape(rows), indices.reshape(rows)
        out = with_slopes(flat.scatter(-1, places, values.detach()), _found_again, values, places)
        return out.reshape(*lead, *whole)

    @in_either_order
    @rounded_once
    def avg_pool2d(self: Tensor, kernel_size: Ints = 2, stride: Ints | None = None, dilation: Ints = 1,
                   padding: Ints = 0, ceil_mode: bool = False, count_include_pad: bool = True,
                   divisor_override: int | None = None) -> Tensor:
        """Return the mean of each window over the last axes; of int64 rounded towards zero, as in PyTorch.

        After ``stride``, positional arguments may be in tinygrad's order or PyTorch's (``padding, ceil_mode,
        count_include_pad, divisor_override``); a call that means different pools in the two orders raises an error.

        Args:
            count_include_pad: True: padding counts as zeros of the window; False: padding is left out of the mean.
            divisor_override: the divisor of the sums instead of the window size.

        >>> Tensor.arange(16).float().reshape(1, 1, 4, 4).avg_pool2d().tolist()
        [[[[2.5, 4.5], [10.5, 12.5]]]]
        """
        whole = self.dtype is dtypes.int64
        this = self if whole else self._float()
        kernel, steps, spread, amounts = _pool_arguments("avg_pool2d", this, kernel_size, stride, dilation, padding)
        around = ((0, 0),) * (this.ndim - len(kernel)) + amounts

        def total(x: UOp, inside: int) -> UOp:
            windows, axes, shape = _pool_windows("avg_pool2d", _padded(x, around, inside), kernel, steps, spread,
                                                 amounts if ceil_mode else None, 0)
            return windows.reduce("ADD", axes).reshape(shape)

        summed = total(this.uop, 0)
        if divisor_override is not None:
            divisor = integer("avg_pool2d", "divisor_override", divisor_override)
            if not divisor:
                raise ArgumentError("avg_pool2d", "divisor_override is 0", "another integer")
            return this._new(summed).div(divisor, rounding_mode="trunc" if whole else None)
        if not ceil_mode and (count_include_pad or not any(b or e for b, e in amounts)):
            if whole:
                return this._new(summed).div(math.prod(kernel), rounding_mode="trunc")
            return this._new(summed * (1 / math.prod(kernel)))
        count = total(this.uop.const_like(1), int(count_include_pad))
        return this._new(summed).div(this._new(count), rounding_mode="trunc") if whole else this._new(summed / count)


# *** arguments ***


def _steps(op: str, stride: Ints, dilation: Ints, dims: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return (stride, dilation), one number per spatial axis each."""
    return integers(op, "stride", stride, dims, least=1), integers(op, "dilation", dilation, dims, least=1)


def pad_pairs(op: str, padding: Ints | str, dims: int, kernel: Sequence[int] = (), strides: Sequence[int] = (),
               dilations: Sequence[int] = ()) -> Pairs:
    """Return one (before, after) per spatial axis."""
    if isinstance(padding, str):
        return same_padding(op, padding, kernel, strides, dilations)
    flat = integers(op, "padding", padding)
    if len(flat) == 2 * dims and dims > 0:
        return tuple((flat[2 * a], flat[2 * a + 1]) for a in reversed(range(dims)))
    if len(flat) == 1:
        return ((flat[0], flat[0]),) * dims
    if isinstance(padding, (tuple, list)) and len(flat) != dims:
        raise ArgumentError(op, f"padding={padding!r} for {dims} spatial axes", f"1, {dims} or {2 * dims} numbers")
    return tuple((p, p) for p in integers(op, "padding", padding, dims))


def same_padding(op: str, padding: str, kernel: Sequence[int], strides: Sequence[int],
                 dilations: Sequence[int]) -> Pairs:
    """Return one (before, after) per spatial axis for "valid" and "same"; an odd zero is added after.

    Raises:
        ArgumentError: for another name, or for "same" with a stride.
    """
    if padding == "valid":
        return tuple((0, 0) for _ in kernel)
    if padding != "same" or not kernel or any(s != 1 for s in strides):
        raise ArgumentError(op, f"padding={padding!r} with stride {tuple(strides)}",
                            "'valid', 'same' with stride 1, or numbers")
    totals = [d * (k - 1) for d, k in zip(dilations, kernel)]
    return tuple((t // 2, t - t // 2) for t in totals)


def _unbatched(x: Tensor, weight: Tensor) -> bool:
    """Return True if a convolution's input has no batch axis."""
    return 3 <= weight.ndim <= 5 and x.ndim == weight.ndim - 1


def _spatial_dims(op: str, x: Tensor, weight: Tensor) -> int:
    dims = weight.ndim - 2
    layout = "[Cin, Cout/groups, k…]" if "transpose" in op else "[Cout, Cin/groups, k…]"
    if not 1 <= dims <= 3:
        raise ShapeError(op, f"weight {weight.shape} has {max(dims, 0)} spatial axes", f"a weight {layout} with 1 to 3")
    if x.ndim != weight.ndim:
        raise ShapeError(op, f"input {x.shape} has {x.ndim} axes, weight {weight.shape} {weight.ndim}",
                         f"an input [N, Cin, …] and a weight {layout} with equally many spatial axes")
    return dims


def _check_channels(op: str, x: Tensor, weight: Tensor, bias: Tensor | None, channels: Any, wanted: int, cout: int,
                    groups: int) -> None:
    if channels != wanted:
        raise ShapeError(op, f"input {x.shape} has {channels} channels, weight {weight.shape} with groups={groups} "
                         f"takes {wanted}", f"an input of shape {(x.shape[0], wanted, *x.shape[2:])}")
    if cout % groups or wanted % groups:
        raise ShapeError(op, f"groups={groups} does not divide {wanted} input and {cout} output channels",
                         "a common divisor")
    if bias is not None and bias.shape != (cout,):
        raise ShapeError(op, f"bias {bias.shape} for {cout} output channels", f"shape {(cout,)}")


def _accumulator(op: str, x: Tensor, weight: Tensor, dtype: DType | None) -> tuple[DType, DType]:
    """Return (result dtype, accumulation dtype)."""
    out = promote(x.dtype, weight.dtype)
    if x.device != weight.device:
        raise DeviceError(op, f"input on {x.device}, weight on {weight.device}", f".to({x.device!r})")
    if dtype is not None:
        return dtype, dtype
    if out.is_bool:
        raise DTypeError(op, "both operands are bool", ".cast(dtypes.int)")
    wide = dtypes.float32 if out.is_float and out.itemsize <= 2 else sum_dtype(out)
    return out, wide


def _outputs(op: str, size: Any, kernel: int, stride: int, dilation: int) -> Any:
    """Return the number of windows along an axis."""
    reach = dilation * (kernel - 1) + 1
    if size < reach:
        raise ShapeError(op, f"kernel {kernel} with dilation {dilation} and stride {stride} does not fit size "
                         f"{size_text(size)}", "more padding or a smaller kernel")
    return normal_size((size - reach) // stride + 1)


def _padded(x: UOp, amounts: Pairs, value: int | float | bool) -> UOp:
    """Pad with ``value``; negative amounts slice."""
    cut = tuple((max(-b, 0), s - max(-e, 0)) for (b, e), s in zip(amounts, x.shape))
    x = x.shrink(cut)
    grown = tuple((max(b, 0), max(e, 0)) for b, e in amounts)
    out = x.pad(grown)
    if out is x or value == 0:
        return out
    inside = UOp.const(dtypes.bool, True).expand_to(x.shape).pad(grown)
    return inside.where(out, value)


def _first_greatest(g: Tensor, out: Tensor, windows: Tensor) -> tuple[Tensor]:
    axes = _reduced_axes(out, windows)  # recomputed from ``windows``: ``out`` may be of another run
    return (_is_first_greatest(windows.detach().max(axes, keepdim=True), windows).where(g, 0),)


def _reduced_axes(out: Tensor, windows: Tensor) -> list[int]:
    return [i for i, (a, b) in enumerate(zip(out.shape, windows.shape)) if not equal(a, b)]


def _is_first_greatest(out: Tensor, windows: Tensor) -> Tensor:
    """Return True at the element of each window that is its maximum: the first of equal ones, the last NaN."""
    axes = _reduced_axes(out, windows)
    place = windows.uop.iota_like(axes[0]) if axes else windows.uop.zeros(dtypes.int32)
    for a in axes[1:]:
        place = place * windows.shape[a] + windows.uop.iota_like(a)
    count = product([windows.shape[a] for a in axes])
    places = windows._new(place)
    rank = windows.eq(out).where(count - places, windows.isnan().where(places + 1, 0))  # last NaN wins
    return rank.gt(0) & rank.eq(rank.max(axes, keepdim=True))


def _places(x: Tensor, dims: int) -> UOp:
    """Return each element's row-major index in its plane of the last ``dims`` axes."""
    place = x.uop.iota_like(x.ndim - dims)
    for a in range(x.ndim - dims + 1, x.ndim):
        place = place * x.shape[a] + x.uop.iota_like(a)
    return place


def _finish(out: Tensor, bias: Tensor | None, dims: int) -> Tensor:
    return out if bias is None else out + bias.reshape(1, -1, *[1] * dims)


def _pool_arguments(op: str, x: Tensor, kernel_size: Ints, stride: Ints | None, dilation: Ints,
                    padding: Ints) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], Pairs]:
    count = len(kernel_size) if isinstance(kernel_size, (tuple, list)) else 2
    kernel = integers(op, "kernel_size", kernel_size, count, least=1)
    dims = len(kernel)
    if x.ndim < dims:
        raise ShapeError(op, f"shape {x.shape} has fewer axes than kernel {kernel}", "an input [N, C, …]")
    steps, spread = _steps(op, kernel if stride is None or stride == () else stride, dilation, dims)
    return kernel, steps, spread, pad_pairs(op, padding, dims)


def _pool_windows(op: str, x: UOp, kernel: tuple[int, ...], steps: tuple[int, ...], spread: tuple[int, ...],
                  ceil: Pairs | None, fill: int | float | bool) -> tuple[UOp, tuple[int, ...], tuple[Any, ...]]:
    """Return (windows of a pool, axes to reduce, shape of the result).

    Adjacent windows (stride = kernel size, no dilation) are a reshape; others use WINDOW.

    Args:
        ceil: the padding; windows that overhang the end count too, unless they begin in the padding after it.
    """
    dims = len(kernel)
    lead, size = x.shape[: x.ndim - dims], x.shape[x.ndim - dims :]
    outputs = tuple(_outputs(op, *a) for a in zip(size, kernel, steps, spread))
    if ceil is not None:
        reach = tuple(d * (k - 1) + 1 for k, d in zip(kernel, spread))
        more = tuple(o + (0 if (s - r) % st == 0 or o * st >= s - after else 1)
                     for o, s, r, st, (_, after) in zip(outputs, size, reach, steps, ceil))
        over = tuple(max((o - 1) * st + r - s, 0) for o, st, r, s in zip(more, steps, reach, size))
        x, outputs = _padded(x, ((0, 0),) * len(lead) + tuple((0, a) for a in over), fill), more
        size = x.shape[x.ndim - dims :]
    first = len(lead)
    if kernel == steps and all(d == 1 for d in spread):
        x = x.shrink((*((0, s) for s in lead), *((0, o * k) for o, k in zip(outputs, kernel))))
        x = x.reshape((*lead, *(n for pair in zip(outputs, kernel) for n in pair)))
        return x, tuple(first + 2 * a + 1 for a in range(dims)), (*lead, *outputs)
    x = x.reshape((*lead, *size, *[1] * dims)).expand((*lead, *size, *kernel))
    for a in range(dims):
        x = x.window(Window(first + a, first + dims + a, steps[a], spread[a], size[a], outputs[a]))
    return x, tuple(range(first + dims, first + 2 * dims)), (*lead, *outputs)


def _found_again(g: Tensor, value: Tensor, values: Tensor, places: Tensor) -> tuple[Tensor, None]:
    """Return the gradient of ``max_unpool2d``: every value gets its position's gradient, as in PyTorch."""
    return g.gather(-1, places), None
