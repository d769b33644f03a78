"""Verifier of tensor graphs: a table of named checks. A violation raises VerifyError with the faulty node marked."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinsmith.core.dtypes import dtypes
from tinsmith.ir.ops import Op, Ops
from tinsmith.ir.ops.tensor import TensorOps
from tinsmith.ir.uop import UOp
from tinsmith.ir.verify.checks import BITCAST, CONST, DTYPE, ELEMENTWISE, Check, allowed, run, sink_root, unless


def _scalars(n: UOp, _: UOp) -> str | None:
    return unless(n.dtype.count == 1 and not n.dtype.pointer, f"{n.dtype} is not a scalar element type")


def _shape(n: UOp, _: UOp) -> str | None:
    bad = [s for s in n.shape if not _is_size(s)]
    return unless(not bad, f"{bad} in shape {n.shape}: sizes are whole numbers or index nodes")


def _is_size(size: Any) -> bool:
    return size.dtype is dtypes.index if isinstance(size, UOp) else type(size) is int and size >= 0


def _ints(*values: Any) -> bool:
    return all(type(v) is int for v in values)


def _reshape(n: UOp, _: UOp) -> str | None:
    old, new = n.src[0].size, n.size
    return unless(not _ints(old, new) or old == new, f"{n.src[0].shape} has {old} elements, {n.shape} has {new}")


def _expand(n: UOp, _: UOp) -> str | None:
    old = n.src[0].shape
    kept = [(type(a) is int and a == 1) or a == b for a, b in zip(old, n.shape)]
    return unless(len(old) == n.ndim and all(kept), f"{old} cannot be expanded to {n.shape}: only axes of size 1 can")


def _permute(n: UOp, _: UOp) -> str | None:
    return unless(sorted(n.arg) == list(range(n.src[0].ndim)), f"{n.arg} is not a permutation of {n.src[0].ndim} axes")


def _pad(n: UOp, _: UOp) -> str | None:
    fits = len(n.arg) == n.src[0].ndim and all(not _ints(v) or v >= 0 for pair in n.arg for v in pair)
    return unless(fits, f"{n.arg} does not pad the axes of {n.src[0].shape}")


def _shrink(n: UOp, _: UOp) -> str | None:
    old = n.src[0].shape
    fits = len(n.arg) == len(old) and all(not _ints(b, e, s) or 0 <= b <= e <= s for (b, e), s in zip(n.arg, old))
    return unless(fits, f"{n.arg} is not a box inside {old}")


def _axes_inside(axes: Sequence[int], ndim: int) -> bool:
    return list(axes) == sorted(set(axes)) and all(0 <= a < ndim for a in axes)


def _flip(n: UOp, _: UOp) -> str | None:
    return unless(_axes_inside(sorted(n.arg), n.ndim), f"{n.arg} are not axes of {n.shape}")


def _window(n: UOp, _: UOp) -> str | None:
    w, shape = n.arg, n.src[0].shape
    if not (w.axis != w.window_axis and _axes_inside(sorted((w.axis, w.window_axis)), len(shape))):
        return f"{w} does not name two different axes of {shape}"
    if shape[w.axis] != (w.inputs if n.op is Ops.WINDOW else w.outputs):
        return f"axis {w.axis} of {shape} does not have the size that {w} states"
    last = (w.outputs - 1) * w.stride + (shape[w.window_axis] - 1) * w.dilation
    empty = w.outputs == 0 or shape[w.window_axis] == 0
    fits = w.stride > 0 and w.dilation > 0 and (empty or not _ints(last, w.inputs) or last < w.inputs)
    return unless(fits, f"{w} reaches position {last} of {w.inputs}")


def _reduce(n: UOp, _: UOp) -> str | None:
    op, axes = n.arg
    if op.identity is None:
        return f"{op.name} cannot reduce"
    return unless(_axes_inside(axes, n.src[0].ndim), f"{axes} are not sorted axes of {n.src[0].shape}")


def _along(n: UOp, _: UOp) -> str | None:
    x, index = n.src[0], n.src[1]
    axis = n.arg if n.op is Ops.GATHER else n.arg[1] if n.op is Ops.HISTOGRAM else n.arg[0]
    if not index.dtype.is_int:
        return f"an index is an integer, not {index.dtype}"
    if x.ndim != index.ndim or not 0 <= axis < x.ndim:
        return f"axis {axis}: {x.shape} is indexed by {index.shape}"
    beside = [(a, b) for i, (a, b) in enumerate(zip(x.shape, index.shape)) if i != axis]
    if not all(a == b for a, b in beside):
        return f"except for axis {axis}, {x.shape} and {index.shape} differ"
    if n.op in (Ops.SCATTER, Ops.HISTOGRAM):
        value = n.src[2]
        return unless(value.dtype is x.dtype and value.shape == index.shape,
                       f"{value.dtype}{value.shape} does not fit {x.dtype} at {index.shape}")
    return None


def _scan(n: UOp, _: UOp) -> str | None:
    (op, axis), x = n.arg, n.src[0]
    if (op is Ops.MULADD) != (len(n.src) == 3) or (op is not Ops.MULADD and op.identity is None):
        return f"{op.name} cannot scan {len(n.src)} sources"
    if not 0 <= axis < x.ndim or any(s.ndim != x.ndim or s.dtype is not x.dtype for s in n.src[1:]):
        return f"axis {axis} of {x.shape} with {[(s.dtype, s.shape) for s in n.src[1:]]}"
    weight = n.src[2:]
    beside = [(a, b) for s in n.src[1:] for i, (a, b) in enumerate(zip(x.shape, s.shape)) if i != axis or s in weight]
    return unless(all(a == b for a, b in beside), f"{[s.shape for s in n.src]} do not fit")


def _bind(n: UOp, _: UOp) -> str | None:
    variable, value = n.src
    if variable.op is not Ops.VARIABLE or value.op is not Ops.CONST:
        return "BIND takes a VARIABLE and a CONST"
    return unless(variable.arg[1] <= value.arg <= variable.arg[2], f"{value.arg} is not within {variable.arg}")


def _assign(n: UOp, _: UOp) -> str | None:
    old, new = n.src
    return unless(old.dtype is new.dtype and old.shape == new.shape,
                   f"{new.dtype}{new.shape} cannot be a new version of {old.dtype}{old.shape}")


def _shard(n: UOp, _: UOp) -> str | None:
    axis, devices = n.arg
    if len(devices.split(",")) != len(n.src):
        return f"{len(n.src)} parts on {devices}"
    first, *others = [(*s.shape[:axis], *s.shape[axis + 1 :]) for s in n.src]
    fits = all(first == o for o in others) and len({s.dtype for s in n.src}) == 1
    return unless(fits, f"parts {[f'{s.dtype}{s.shape}' for s in n.src]}")


def _tensor_sink(n: UOp, root: UOp) -> str | None:
    return unless(all(s.dtype is not dtypes.void for s in n.src), "a SINK of a tensor graph holds values")


TENSOR_OPS = (ELEMENTWISE - {Ops.SCALE, Ops.UNLIKELY}) | {op for op in vars(TensorOps).values() if isinstance(op, Op)}
TENSOR_CHECKS: tuple[Check[UOp], ...] = (
    allowed(TENSOR_OPS, "tensor graph"),
    DTYPE, CONST, BITCAST,
    Check("scalar", "Element types are scalar: no vectors, no pointers.", (), _scalars),
    Check("shape", "The row's shape rule holds; sizes are ints or index nodes.", (), _shape),
    Check("reshape", "A reshape keeps the number of elements.", (Ops.RESHAPE,), _reshape),
    Check("expand", "Only axes of size 1 are repeated.", (Ops.EXPAND,), _expand),
    Check("permute", "The order names every axis once.", (Ops.PERMUTE,), _permute),
    Check("pad", "A pair of amounts for each axis, none negative.", (Ops.PAD,), _pad),
    Check("shrink", "The box lies inside the shape.", (Ops.SHRINK,), _shrink),
    Check("flip", "The axes exist.", (Ops.FLIP,), _flip),
    Check("window", "Every window lies inside its axis.", (Ops.WINDOW, Ops.UNWINDOW), _window),
    Check("reduce", "The op has an identity; the axes exist, in order.", (Ops.REDUCE,), _reduce),
    Check("index", "The index is an integer; shapes are equal except along the axis.",
          (Ops.GATHER, Ops.SCATTER, Ops.HISTOGRAM), _along),
    Check("scan", "The op can scan along the axis; start and weight have matching shapes.", (Ops.SCAN,), _scan),
    Check("bind", "A variable is bound within its bounds.", (Ops.BIND,), _bind),
    Check("assign", "A new version has the old one's dtype and shape.", (Ops.ASSIGN,), _assign),
    Check("shard", "A part for each device; parts differ in their axis only.", (Ops.SHARD,), _shard),
    Check("sink-root", "SINK comes last.", (Ops.SINK,), sink_root),
    Check("sink-values", "SINK holds values.", (Ops.SINK,), _tensor_sink),
)


def verify_tensor(sink: UOp) -> None:
    """Verify a tensor graph: a SINK of values, or any value.

    >>> verify_tensor(UOp.const(dtypes.int32, 1).reshape((1,)))

    Raises:
        VerifyError: at the first fault.
    """
    run(TENSOR_CHECKS, sink, sink)
