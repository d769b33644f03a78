"""Dot-product instructions on vector registers in LLVM IR (VNNI, bf16 dot products): matrix units whose tiles are
vectors, so that LLVM allocates their registers.

Each 32-bit lane of an accumulator gets the dot product of the two or four elements in that lane of both operands: b is
a vector from memory, a is the same 32 bits in every lane.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tinsmith.codegen.render.tiles import Fragments
from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops, UOp


class Form(NamedTuple):
    """The LLVM intrinsic of a dot-product unit.

    Attributes:
        function: the intrinsic of (accumulator, first, second); for bytes, first is unsigned and second signed.
        element: element type of first and second; "": 32-bit words.
        b_first: True if b is the first operand.
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
    """Return True if the program's matrix units are dot products of vectors."""
    return any(u.op is Ops.MMA and u.arg.emit in FORMS for u in program)


class Dots(Fragments):
    """The fragments of a kernel with dot products. An accumulator is an ordinary vector."""

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
        """Return the address operand of a fragment, which has one row."""
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
    """Return the LLVM type of a fragment in memory: 32-bit lanes, integers for operands."""
    scalar = u.dtype.scalar
    words = u.dtype.count * scalar.itemsize // 4
    return "i32" if words == 1 else f"<{words} x {'float' if scalar is dtypes.float32 else 'i32'}>"
