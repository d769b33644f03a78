"""Rewrites that are wrong for NaN, infinities or signed zeros; applied only under ``FASTMATH=1``."""
from __future__ import annotations

from tinsmith.core.dtypes import dtypes
from tinsmith.ir.ops import Ops
from tinsmith.ir.rewrite import Pat, Rule, RuleSet, literal
from tinsmith.ir.uop import UOp

_x = Pat("x")


def _f() -> UOp:
    return UOp(Ops.PARAM, dtypes.float32, (), (0, ()))


def _float(node: UOp) -> bool:
    return node.dtype.is_float


fastmath = RuleSet("fastmath", (
    Rule("minus-itself", "x - x = 0, but NaN for NaN and infinities", Pat("n", (Ops.SUB,), (_x, _x), when=_float),
         lambda n, x: UOp.const(n.dtype, 0), lambda: _f() - _f()),
    Rule("times-zero", "x * 0 = 0, but NaN for NaN and infinities", Pat("n", (Ops.MUL,), (_x, literal(0)), when=_float),
         lambda n, x: UOp.const(n.dtype, 0), lambda: _f() * 0),
    Rule("by-itself", "x / x = 1, but NaN for 0, NaN and infinities", Pat("n", (Ops.FDIV,), (_x, _x), when=_float),
         lambda n, x: UOp.const(n.dtype, 1), lambda: _f() / _f()),
    Rule("plus-zero", "x + 0 = x, but +0 for -0", Pat("n", (Ops.ADD,), (_x, literal(0)), when=_float),
         lambda n, x: x, lambda: _f() + 0),
))
