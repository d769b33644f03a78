"""Kernels of every op and dtype over pairs of special values: generated code must compute the op's definition."""
from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from tests.codegen.running import expected, run_on
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.ops import op_table

Array = np.ndarray[Any, Any]
WIDTHS = (1, 2, 8)
ALL = (dtypes.bool, *dtypes.ints, *dtypes.floats)


def ops_of(dtype: DType) -> tuple[Any, ...]:
    """Return the ops that a dtype is computed with, but the transcendental ones."""
    kind = "b" if dtype.is_bool else "f" if dtype.is_float else "i"
    return tuple(op for op in op_table() if kind in op.takes and not op.transcendental)


def special_values(dtype: DType) -> Array:
    """Return the special values of a dtype: limits, zeros, NaN and others that often reveal wrong code."""
    if dtype.is_bool:
        return np.array([False, True])
    if dtype.is_float:
        top = {2: 60000.0 if dtype is dtypes.float16 else 1e30, 4: 3e38, 8: 1e308}[dtype.itemsize]
        plain = [0.0, -0.0, 1.0, -1.0, 0.1, -2.5, 3.75, 1e-3, top, -top, np.inf, -np.inf, np.nan]
        plain += [127.6, 300.0, -129.0, 255.5]
        more = {4: [1e-40, 2147483648.0, -2147483904.0, 9.3e18, 4294967296.0, 1.85e19],
                8: [5e-324, 2147483647.5, 9.3e18, -9.3e18, 1.85e19, 4294967295.5]}.get(dtype.itemsize, [])
        return np.array(plain + more, np.float64).astype(dtype.numpy)
    low, high = int(dtype.min), int(dtype.max)
    found = [low, low + 1, high, high - 1, 0, 1, 2, 3, 7, dtype.bits - 1, dtype.bits, dtype.bits + 1, high // 3]
    if low < 0:
        found += [-1, -2, -3, -7, low // 3]
    return np.array(found, dtype.numpy)


def _param(number: int, values: Array, dtype: DType) -> UOp:
    return UOp(Ops.PARAM, dtype, (), (number, values.shape))


def pairs(dtype: DType) -> tuple[Array, Array]:
    """Return all pairs of special values, repeated to a multiple of 8."""
    values = special_values(dtype)
    both = list(itertools.product(range(len(values)), repeat=2))
    both += both[: -len(both) % 8]
    return tuple(values[[p[i] for p in both]] for i in (0, 1))  # type: ignore[return-value]


def lanes(width: int) -> list[Opt]:
    return [Opt(OptOps.VECTOR, 0, width)] if width > 1 else []


def same_bits(got: Array, want: Array, name: str, sources: tuple[Array, ...]) -> None:
    """Check bitwise equality. Zeros must agree in sign, except for MAX and MIN of two zeros; all NaNs are equal."""
    if got.dtype.kind in "biu":
        wrong = got != want
    else:
        a, b = got.astype(np.float64), want.astype(np.float64)
        signs = (np.signbit(a) == np.signbit(b)) | ("MAX" in name or "MIN" in name)
        wrong = ~((np.isnan(a) & np.isnan(b)) | ((a == b) & signs))
    if wrong.any():
        i = int(np.flatnonzero(wrong)[0])
        of = ", ".join(repr(s[i]) for s in sources)
        raise AssertionError(f"{name}({of}) is {got[i]!r}, not {want[i]!r}; {int(wrong.sum())} of {wrong.size} wrong")


def check_outputs(device: str, outputs: list[UOp], names: list[str], inputs: dict[UOp, Array], width: int) -> None:
    sink = UOp(Ops.SINK, None, tuple(outputs))
    want = expected(sink, inputs)
    for g, w, name in zip(run_on(device, sink, inputs, lanes(width)), want, names):
        same_bits(g, w, f"{device} x{width}: {name}", tuple(inputs.values()))


def check_ops(device: str, dtype: DType, width: int) -> None:
    """Check all unary and binary ops of a dtype in one kernel with many outputs."""
    ops = ops_of(dtype)
    a, b = pairs(dtype)
    x, y = _param(len(ops), a, dtype), _param(len(ops) + 1, b, dtype)
    outputs = [UOp(op, None, (x,) if op.arity == 1 else (x, y)) for op in ops]
    check_outputs(device, outputs, [f"{op.name} {dtype}" for op in ops], {x: a, y: b}, width)


def check_constants(device: str, dtype: DType, width: int) -> None:
    """Check constant right operands, for which renderers have shorter code."""
    a = special_values(dtype)
    a = np.resize(a, -(-len(a) // 8) * 8)
    constants = [-7, -1, 1, 3, 8] if dtype.kind == "int" else [1, 3, 8]
    ops = [(op, c) for op in (Ops.IDIV, Ops.MOD, Ops.SHL, Ops.SHR, Ops.MAX, Ops.CMPLT) for c in constants]
    x = _param(len(ops), a, dtype)
    outputs = [UOp(op, None, (x, x.const_like(c))) for op, c in ops]
    check_outputs(device, outputs, [f"{op.name} {dtype} by {c}" for op, c in ops], {x: a}, width)


def check_ternary(device: str, dtype: DType, width: int) -> None:
    a, b = pairs(dtype)
    condition = np.arange(len(a)) % 3 == 0
    c = _param(1, condition, dtypes.bool)
    x, y = _param(2, a, dtype), _param(3, b, dtype)
    check_outputs(device, [c.where(x, y)], [f"WHERE {dtype}"], {c: condition, x: a, y: b}, width)
    if dtype.is_bool:
        return
    small = np.resize(np.arange(0 if dtype.is_unsigned else -5, 6), len(a) // 8 * 8).astype(dtype.numpy)
    x, y, z = (_param(n, small, dtype) for n in (1, 2, 3))
    inputs = {x: small, y: np.roll(small, 1), z: np.roll(small, 3)}
    check_outputs(device, [UOp(Ops.MULADD, None, (x, y, z))], [f"MULADD {dtype}"], inputs, width)


def check_casts(device: str, dtype: DType, width: int) -> None:
    a = special_values(dtype)
    a = np.resize(a, -(-len(a) // 8) * 8)
    targets = [d for d in ALL if d is not dtype]
    x = _param(len(targets), a, dtype)
    check_outputs(device, [x.cast(d) for d in targets], [f"CAST {dtype} to {d}" for d in targets], {x: a}, width)


def check_bitcasts(device: str, dtype: DType, width: int) -> None:
    a = special_values(dtype)
    a = np.resize(a, -(-len(a) // 8) * 8)
    targets = [d for d in ALL[1:] if d is not dtype and d.itemsize == dtype.itemsize]
    if not targets or dtype.is_bool:
        return
    x = _param(len(targets), a, dtype)
    check_outputs(device, [x.bitcast(d) for d in targets], [f"BITCAST {dtype} to {d}" for d in targets], {x: a}, width)


def check_reductions(device: str, dtype: DType, width: int) -> None:
    """Check NaN and identity elements in reductions, along vector lanes too."""
    a = special_values(dtype)
    a = np.resize(a, (4, -(-len(a) // 8) * 8))
    a[1] = a[1][0]
    ops = [Ops.MAX, Ops.MIN] + ([] if dtype.is_float else [Ops.ADD, Ops.MUL, Ops.AND, Ops.OR, Ops.XOR])
    for op in ops:
        x = _param(1, a, dtype)
        sink = UOp(Ops.SINK, None, (x.reduce(op, (1,)),))
        (want,) = expected(sink, {x: a})
        opts = [Opt(OptOps.VECTOR, 1, width)] if width > 1 else []
        (got,) = run_on(device, sink, {x: a}, opts)
        same_bits(got, want, f"{device} x{width}: REDUCE {op.name} {dtype}", (a,))


CHECKS = {f.__name__.removeprefix("check_"): f for f in (check_ops, check_ternary, check_casts, check_bitcasts,
                                                        check_reductions)}
