"""The base class of all renderers, and properties of the programs that they write (launch size, local memory)."""
from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from typing import ClassVar

from tinsmith.core.dtypes import DType, dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.target.target import Target


class Renderer:
    """Base of all renderers; ``render`` writes one kernel as source text. ``comment`` starts a comment in that
    language."""

    comment: ClassVar[str] = "//"
    numbers: dict[UOp, int] | None = None  # line numbers of UOps, while ``lines`` maps text to UOps

    def __init__(self, target: Target) -> None:
        self.target = target

    def mark(self, u: UOp) -> str:
        """Return a marker appended to a UOp's lines: empty, except within ``lines``."""
        return "" if self.numbers is None else f"\0{self.numbers.get(u, -1)}"

    def lines(self, name: str, program: Sequence[UOp]) -> list[tuple[str, UOp | None]]:
        """Return the lines of ``render``, each with the UOp it was written for; None for lines of the kernel in
        general."""
        marked = copy.copy(self)
        marked.numbers = {u: n for n, u in enumerate(program)}
        found = []
        for line in marked.render(name, program).split("\n"):
            text, _, number = line.partition("\0")
            found.append((text, program[int(number)] if number and number != "-1" else None))
        return found

    def render(self, name: str, program: Sequence[UOp]) -> str:
        """Return the source text of the kernel ``name``."""
        raise NotImplementedError

    def supported_dtypes(self) -> set[DType]:
        """Return the element types that tensors on the device may have; floats without native arithmetic are widened.
        """
        return {*self.target.storage, *dtypes.fp8s}

    def key(self) -> str:
        """Return a cache key: everything besides the program that changes the text."""
        return f"{type(self).__name__}:{self.target.key}"


def near_bytes(u: UOp) -> int:
    """Return the bytes of local memory of a DEFINE_LOCAL or DEFINE_RING, rounded up to cache lines."""
    size = 8 * u.arg[1] if u.op is Ops.DEFINE_RING else int(u.arg[1]) * u.dtype.itemsize
    return -(-size // 64) * 64


def local_bytes(program: Sequence[UOp]) -> int:
    """Return the bytes of local memory of a program's stages and rings, each aligned to cache lines."""
    return sum(near_bytes(u) for u in program if u.op in (Ops.DEFINE_LOCAL, Ops.DEFINE_RING))


def specials(program: Sequence[UOp]) -> dict[str, int]:
    """Return the sizes of ``gidx0``, ``lidx0``, …."""
    return {u.arg[0]: u.arg[1] for u in program if u.op is Ops.SPECIAL and isinstance(u.arg, tuple)}


def launch_size(program: Sequence[UOp], prefix: str) -> list[int]:
    """Return the sizes of ``gidx0``, ``gidx1``, … (blocks) or ``lidx0``, … (threads), by prefix, that a program
    launches."""
    return [size for name, size in sorted(specials(program).items()) if name.startswith(prefix)]


def mentions(text: str, name: str) -> bool:
    """Return True if a text contains a name as a word."""
    # fast path: a substring search rules out most texts
    return name in text and re.search(rf"\b{name}\b", text) is not None


def beside_zero(node: UOp) -> bool:
    """Return True if this is a float's MAX or MIN with a constant 0: one comparison, which keeps NaN and -0."""
    other = node.src[-1]
    other = other.src[0] if other.op is Ops.VECTORIZE else other
    return node.op in (Ops.MAX, Ops.MIN) and other.op is Ops.CONST and other.dtype.is_float and other.arg == 0


def nonnegative(node: UOp) -> bool:
    """Return True if an index expression can never be negative, so that machine division rounds as ours does."""
    stack, seen = [node], set()
    while stack:
        n = stack.pop()
        if n in seen:
            continue
        seen.add(n)
        if n.op in (Ops.VECTORIZE, Ops.GEP, Ops.ADD, Ops.MUL, Ops.IDIV, Ops.MOD, Ops.MAX, Ops.MIN):
            stack.extend(n.src)
        elif not (n.arg >= 0 if n.op is Ops.CONST else n.op in (Ops.RANGE, Ops.SPECIAL) or n.dtype.kind == "uint"):
            return False
    return True
