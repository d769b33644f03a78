"""Accuracy and special values of the elementary functions, with MULADD rounded once and twice."""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import erf as scipy_erf

from tinsmith.codegen.transcendentals import transcendentals
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.ir.ops import Op, Ops
from tinsmith.ir.rewrite import rewrite
from tinsmith.ir.uop import UOp

Array = np.ndarray[Any, Any]
INF, NAN = math.inf, math.nan
F32, F64 = dtypes.float32, dtypes.float64
OPS = (Ops.EXP, Ops.EXP2, Ops.LOG, Ops.LOG2, Ops.SIN, Ops.TANH, Ops.ERF)
BASIC = {Ops.ADD, Ops.SUB, Ops.MUL, Ops.MULADD, Ops.FDIV, Ops.NEG, Ops.MAX, Ops.MIN, Ops.WHERE, Ops.CMPLT, Ops.CMPNE,
         Ops.CMPEQ, Ops.AND, Ops.OR, Ops.XOR, Ops.SHL, Ops.SHR, Ops.TRUNC, Ops.SQRT, Ops.CAST, Ops.BITCAST, Ops.CONST,
         Ops.PARAM}
LONG = np.finfo(np.longdouble).nmant >= 63  # without it there is nothing better than float64 to compare with


def leaf(dtype: DType) -> UOp:
    return UOp(Ops.PARAM, dtype, (), (0, ()))


def expression(op: Op, dtype: DType) -> UOp:
    return rewrite([UOp(op, None, (leaf(dtype),))], transcendentals)[0]


def fused_multiply_add(x: Array, y: Array, z: Array) -> Array:
    """x*y + z rounded once (float32) or nearly always as if (float64, error-free transforms of Dekker and Knuth)."""
    if x.dtype == np.float32:
        return (x.astype(np.float64) * y + z).astype(np.float32)
    p = x * y
    split = 134217729.0
    xh, yh = x * split - (x * split - x), y * split - (y * split - y)
    low = ((xh * yh - p) + xh * (y - yh) + (x - xh) * yh) + (x - xh) * (y - yh)
    s = p + z
    b = s - p
    rest = (p - (s - b)) + (z - b)
    exact = s + (rest + low)
    return np.where(np.isfinite(exact), exact, s)


def evaluate(root: UOp, value: Array, fused: bool) -> Array:
    values: dict[UOp, Array] = {}
    with np.errstate(all="ignore"):
        for node in root.toposort():
            sources = [values[s] for s in node.src]
            if node.op is Ops.PARAM:
                values[node] = value
            elif node.op is Ops.MULADD and fused:
                values[node] = fused_multiply_add(*np.broadcast_arrays(*sources))
            else:
                assert node.op.meaning is not None
                values[node] = node.op.meaning(node, *sources)
            assert values[node].dtype == node.dtype.numpy
    return values[root]


def reference(op: Op, x: Array) -> Array:
    """In extended precision; for erf of float64 the C library's, good to 1 ulp."""
    wide = x.astype(np.longdouble)
    with np.errstate(all="ignore"):
        if op is Ops.ERF:
            return np.asarray(scipy_erf(x.astype(np.float64)) if x.dtype == np.float32 else
                              np.vectorize(math.erf, otypes=[np.float64])(x), np.longdouble)
        return {Ops.EXP: np.exp, Ops.EXP2: np.exp2, Ops.LOG: np.log, Ops.LOG2: np.log2, Ops.SIN: np.sin,
                Ops.TANH: np.tanh}[op](wide)


def ulps(got: Array, expected: Array) -> Array:
    """Distance in units in the last place of the expected value's binade."""
    info = np.finfo(got.dtype)
    with np.errstate(all="ignore"):
        rounded = expected.astype(got.dtype)
        _, exponent = np.frexp(np.where(np.isfinite(expected), expected, 1))
        unit = np.ldexp(np.longdouble(1), np.maximum(exponent - 1, info.minexp) - info.nmant)
        distance = np.abs(got.astype(np.longdouble) - expected) / unit
    same = (got == rounded) | (np.isnan(got) & np.isnan(expected))
    return np.where(same & ~np.isfinite(rounded), 0, np.where(np.isfinite(got), distance, INF)).astype(np.float64)


def samples(op: Op, dtype: DType, count: int = 100_000) -> Array:
    rng = np.random.default_rng(7)
    big = dtype is F64
    info = np.finfo(dtype.numpy)
    if op in (Ops.EXP, Ops.EXP2):
        end = (750 if big else 105) * (1 if op is Ops.EXP else 1.5)
        parts = [rng.uniform(-end, end, count), rng.normal(0, 1, count), rng.normal(0, 1e-3, count)]
    elif op in (Ops.LOG, Ops.LOG2):
        bits = rng.integers(1, int(np.asarray(info.max).view(f"u{dtype.itemsize}")), count)
        return np.concatenate([bits.astype(f"u{dtype.itemsize}").view(dtype.numpy),
                               np.asarray(np.concatenate([rng.uniform(0.4, 2.2, count), 1 + rng.normal(0, 1e-3, count),
                                                          rng.uniform(0, float(info.tiny) * 4, count)]), dtype.numpy)])
    elif op is Ops.SIN:
        n = np.round(rng.uniform(-1e5, 1e5, count) / math.pi) * math.pi  # near zeros of the sine
        parts = [rng.uniform(-10, 10, count), rng.uniform(-1e5, 1e5, count), n, n[:1000] / 1e4, rng.normal(0, 0.01, count)]
        if big:
            parts.append(rng.uniform(-1e8, 1e8, count))
    else:
        end = 20 if op is Ops.TANH else 6.5
        parts = [rng.uniform(-end, end, count), rng.normal(0, 1, count), rng.normal(0, 1e-3, count),
                 np.exp(rng.uniform(math.log(info.tiny) - 5, 3, count))]
    return np.concatenate(parts).astype(dtype.numpy)


BOUNDS = {  # ulps
    (Ops.EXP, F32): 1.5, (Ops.EXP2, F32): 1.5, (Ops.LOG, F32): 1.5, (Ops.LOG2, F32): 2.0, (Ops.SIN, F32): 2.0,
    (Ops.TANH, F32): 4.0, (Ops.ERF, F32): 5.0,
    (Ops.EXP, F64): 3.0, (Ops.EXP2, F64): 3.0, (Ops.LOG, F64): 3.0, (Ops.LOG2, F64): 3.0, (Ops.SIN, F64): 4.0,
    (Ops.TANH, F64): 4.0, (Ops.ERF, F64): 4.0,
}
