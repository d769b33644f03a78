"""Convolutions and pools: sliding windows are one movement op (WINDOW), followed by one product and one reduction.

A convolution multiplies windows of the input with the weight in the shape
``[N, groups, Cout/groups, out…, Cin/groups, kernel…]`` and sums the last axes: a contraction to the compiler. Its
gradients, and the transposed convolution, are the same product read through the transpose of the window op.
"""
from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from tinsmith.core.dtypes import DType, dtypes, promote, sum_dtype
from tinsmith.core.errors import ArgumentError, DeviceError, DTypeError, ShapeError
from tinsmith.ir import UOp
from tinsmith.ir.algebra.sizes import normal_size, size_text
from tinsmith.ir.uop import Window
from tinsmith.tensor.arguments import integers
from tinsmith.tensor.helpers import equal, product
from tinsmith.tensor.linalg.linear_algebra import LinearAlgebra

T = TypeVar("T", bound=LinearAlgebra)
Ints = int | Sequence[int]
Pairs = tuple[tuple[int, int], ...]
P = ParamSpec("P")
R = TypeVar("R")


_ORDERS: Final = {  # argument orders after kernel_size and stride: tinygrad's (the signature here), then PyTorch's
    "max_pool2d": (("dilation", "padding", "ceil_mode", "return_indices"),
                   ("padding", "dilation", "ceil_mode", "return_indices")),
    "avg_pool2d": (("dilation", "padding", "ceil_mode", "count_include_pad", "divisor_override"),
                   ("padding", "ceil_mode", "count_include_pad", "divisor_override"))}


def in_either_order(pool: Callable[Concatenate[T, P], R]) -> Callable[Concatenate[T, P], R]:
    """Decorate a pool to take positional arguments in tinygrad's or PyTorch's order; refuse ambiguous calls."""
    op = pool.__name__

    def ordered(self: T, /, *args: Any, **kwargs: Any) -> R:
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


# *** arguments ***


def window_steps(op: str, stride: Ints, dilation: Ints, dims: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
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


def unbatched(x: LinearAlgebra, weight: LinearAlgebra) -> bool:
    """Return True if a convolution's input has no batch axis."""
    return 3 <= weight.ndim <= 5 and x.ndim == weight.ndim - 1


def spatial_dims(op: str, x: LinearAlgebra, weight: LinearAlgebra) -> int:
    dims = weight.ndim - 2
    layout = "[Cin, Cout/groups, k…]" if "transpose" in op else "[Cout, Cin/groups, k…]"
    if not 1 <= dims <= 3:
        raise ShapeError(op, f"weight {weight.shape} has {max(dims, 0)} spatial axes", f"a weight {layout} with 1 to 3")
    if x.ndim != weight.ndim:
        raise ShapeError(op, f"input {x.shape} has {x.ndim} axes, weight {weight.shape} {weight.ndim}",
                         f"an input [N, Cin, …] and a weight {layout} with equally many spatial axes")
    return dims


def check_channels(op: str, x: LinearAlgebra, weight: LinearAlgebra, bias: LinearAlgebra | None, channels: Any,
                   wanted: int, cout: int, groups: int) -> None:
    if channels != wanted:
        raise ShapeError(op, f"input {x.shape} has {channels} channels, weight {weight.shape} with groups={groups} "
                         f"takes {wanted}", f"an input of shape {(x.shape[0], wanted, *x.shape[2:])}")
    if cout % groups or wanted % groups:
        raise ShapeError(op, f"groups={groups} does not divide {wanted} input and {cout} output channels",
                         "a common divisor")
    if bias is not None and bias.shape != (cout,):
        raise ShapeError(op, f"bias {bias.shape} for {cout} output channels", f"shape {(cout,)}")


def accumulator_dtype(op: str, x: LinearAlgebra, weight: LinearAlgebra, dtype: DType | None) -> tuple[DType, DType]:
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


def output_sizes(op: str, size: Any, kernel: int, stride: int, dilation: int) -> Any:
    """Return the number of windows along an axis."""
    reach = dilation * (kernel - 1) + 1
    if size < reach:
        raise ShapeError(op, f"kernel {kernel} with dilation {dilation} and stride {stride} does not fit size "
                         f"{size_text(size)}", "more padding or a smaller kernel")
    return normal_size((size - reach) // stride + 1)


def padded(x: UOp, amounts: Pairs, value: int | float | bool) -> UOp:
    """Pad with ``value``; negative amounts slice."""
    cut = tuple((max(-b, 0), s - max(-e, 0)) for (b, e), s in zip(amounts, x.shape))
    x = x.shrink(cut)
    grown = tuple((max(b, 0), max(e, 0)) for b, e in amounts)
    out = x.pad(grown)
    if out is x or value == 0:
        return out
    inside = UOp.const(dtypes.bool, True).expand_to(x.shape).pad(grown)
    return inside.where(out, value)


def first_greatest(g: T, out: T, windows: T) -> tuple[T]:
    axes = _reduced_axes(out, windows)  # recomputed from ``windows``: ``out`` may be of another run
    return (is_first_greatest(windows.detach().max(axes, keepdim=True), windows).where(g, 0),)


def _reduced_axes(out: LinearAlgebra, windows: LinearAlgebra) -> list[int]:
    return [i for i, (a, b) in enumerate(zip(out.shape, windows.shape)) if not equal(a, b)]


def is_first_greatest(out: T, windows: T) -> T:
    """Return True at the element of each window that is its maximum: the first of equal ones, the last NaN."""
    axes, rank, _ = _ranks(out, windows)
    return rank.gt(0) & rank.eq(rank.max(axes, keepdim=True))


def first_greatest_place(out: T, windows: T) -> T:
    """Return the row-major index of that element in its window."""
    axes, rank, count = _ranks(out, windows)
    highest = rank.max(axes, keepdim=True)
    return out.isnan().where(highest - 1, count - highest)


def _ranks(out: T, windows: T) -> tuple[list[int], T, Any]:
    """Return the axes of the windows, a positive rank of each maximum (the highest is chosen), and the number of
    elements of a window."""
    axes = _reduced_axes(out, windows)
    place = windows.uop.iota_like(axes[0]) if axes else windows.uop.zeros(dtypes.int32)
    for a in axes[1:]:
        place = place * windows.shape[a] + windows.uop.iota_like(a)
    count = product([windows.shape[a] for a in axes])
    places = windows._new(place)
    return axes, windows.eq(out).where(count - places, windows.isnan().where(places + 1, 0)), count


def plane_index(place: T, size: Sequence[Any], kernel: Sequence[int], steps: Sequence[int], spread: Sequence[int],
                before: Sequence[int]) -> T:
    """Return the row-major index in a plane for an index in each window; of padding, that of the first element behind.

    Args:
        place: for each window, the index of an element in it.
        size: the sizes of the plane.
        before: the padding before each of its axes.
    """
    first, found = place.ndim - len(kernel), None
    for a in range(len(kernel)):
        inside = place % product(kernel[a:]) if a else place
        offset = inside.idiv(product(kernel[a + 1:]))
        at = place._new(place.uop.iota_like(first + a)) * steps[a] - before[a] + offset * spread[a]
        if before[a] > 0:
            at = at.maximum(at % spread[a] if spread[a] > 1 else 0)
        found = at if found is None else found * size[a] + at
    return place if found is None else found


def finish(total: T, bias: T | None, dims: int, dtype: DType) -> T:
    """Return the sums of a convolution with its bias, rounded once."""
    if bias is None:
        return total.cast(dtype)
    return (total + bias.reshape(1, -1, *[1] * dims)).cast(promote(dtype, bias.dtype))


def pool_arguments(op: str, x: LinearAlgebra, kernel_size: Ints, stride: Ints | None, dilation: Ints,
                    padding: Ints) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], Pairs]:
    count = len(kernel_size) if isinstance(kernel_size, (tuple, list)) else 2
    kernel = integers(op, "kernel_size", kernel_size, count, least=1)
    dims = len(kernel)
    if x.ndim < dims:
        raise ShapeError(op, f"shape {x.shape} has fewer axes than kernel {kernel}", "an input [N, C, …]")
    steps, spread = window_steps(op, kernel if stride is None or stride == () else stride, dilation, dims)
    return kernel, steps, spread, pad_pairs(op, padding, dims)


def pool_windows(op: str, x: UOp, kernel: tuple[int, ...], steps: tuple[int, ...], spread: tuple[int, ...],
                  ceil: Pairs | None, fill: int | float | bool) -> tuple[UOp, tuple[int, ...], tuple[Any, ...]]:
    """Return (windows of a pool, axes to reduce, shape of the result).

    Adjacent windows (stride = kernel size, no dilation) are a reshape; others use WINDOW.

    Args:
        ceil: the padding; windows that overhang the end count too, unless they begin in the padding after it.
    """
    dims = len(kernel)
    lead, size = x.shape[: x.ndim - dims], x.shape[x.ndim - dims :]
    reach = tuple(d * (k - 1) + 1 for k, d in zip(kernel, spread))
    if ceil is not None:  # one window may overhang on its own
        lacks = tuple(r - s if isinstance(s, int) and s < r < s + st else 0 for s, r, st in zip(size, reach, steps))
        x, ceil = padded(x, ((0, 0),) * len(lead) + tuple((0, n) for n in lacks), fill), tuple(
            (before, after + n) for (before, after), n in zip(ceil, lacks))
        size = x.shape[x.ndim - dims :]
    outputs = tuple(output_sizes(op, *a) for a in zip(size, kernel, steps, spread))
    if ceil is not None:
        more = tuple(o + (0 if equal((s - r) % st, 0) or o * st >= s - after else 1)
                     for o, s, r, st, (_, after) in zip(outputs, size, reach, steps, ceil))
        over = tuple(max((o - 1) * st + r - s, 0) for o, st, r, s in zip(more, steps, reach, size))
        x, outputs = padded(x, ((0, 0),) * len(lead) + tuple((0, a) for a in over), fill), more
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


def found_again(g: T, value: T, values: T, places: T) -> tuple[T, None]:
    """Return the gradient of ``max_unpool2d``: every value gets its position's gradient, as in PyTorch."""
    return g.gather(-1, places), None
