"""Dot products of vector registers in LLVM IR: units whose tiles are vectors, so that LLVM gives them registers.

Each 32-bit lane of a sum gets the products of the two or four elements that both operands have there: b is a vector
from memory, a the same 32 bits in every lane.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tinsmith.codegen.render.tiles import Fragments
from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops, UOp


class Form(NamedTuple):
    """How a unit is written.

    Attributes:
        function: the intrinsic of (sum, first, second). The one for bytes takes unsigned ones first, then signed ones.
        element: the type of an element of first and second; "": they are words of 32 bits.
        b_first: b is what comes first.
    """

    function: str
    element: str = ""
    b_first: bool = False


FORMS = {
    "dot_bf16": Form("llvm.x86.avx512bf16.dpbf16ps.512", "bfloat"),
    "dot_s16": Form("llvm.x86.avx512.vpdpwssd.512"),
    "dot_u8s8": Form("llvm.x86.avx512.vpdpbusd.512"),
    "dot_s8u8": Form("llvm.x86.avx512.vpdpbusd.512", b_first=True),
}


def is_dot(program: Sequence[UOp]) -> bool:
    """Whether the units of a program are dot products of vectors."""
    return any(u.op is Ops.MMA and u.arg.emit in FORMS for u in program)


class Dots(Fragments):
    """The fragments of one kernel. A sum is a vector like any other."""

    def write(self, u: UOp) -> bool:
        if u.op is Ops.LOAD_TILE:
            self.text.names[u] = self.text.value(f"load {_memory_type(u)}, {self.address(u)}")
        elif u.op is Ops.STORE_TILE:
            self.text.line(f"store {_memory_type(u.src[3])} {self.text.names[u.src[3]]}, {self.address(u)}")
        elif u.op is Ops.MMA:
            self.text.names[u] = self.multiply(u, FORMS[u.arg.emit])
        else:
            return False
        return True

    def address(self, u: UOp) -> str:
        """Where a fragment begins: it has one row."""
        return f"ptr {self.at(u)}, align {u.src[0].dtype.itemsize}"

    def multiply(self, u: UOp, form: Form) -> str:
        total, a, b = (self.text.names[s] for s in u.src)
        lanes, kind = u.dtype.count, _memory_type(u)
        words = f"<{lanes} x i32>"
        one = self.text.value(f"insertelement {words} poison, i32 {a}, i64 0")
        a = self.text.value(f"shufflevector {words} {one}, {words} poison, {words} zeroinitializer")
        wide = f"<{lanes * u.arg.k} x {form.element}>" if form.element else words
        operands = [self.text.value(f"bitcast {words} {x} to {wide}") if form.element else x
                    for x in ((b, a) if form.b_first else (a, b))]
        return self.text.call(kind, form.function, (kind, total), *((wide, x) for x in operands))


def _memory_type(u: UOp) -> str:
    """32-bit lanes, of operands as integers."""
    scalar = u.dtype.scalar
    words = u.dtype.count * scalar.itemsize // 4
    return "i32" if words == 1 else f"<{words} x {'float' if scalar is dtypes.float32 else 'i32'}>"
