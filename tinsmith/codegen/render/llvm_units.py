"""Matrix units of the CPU in LLVM IR: dot products on vector registers, and AMX tile registers.

Dot products (VNNI, bf16): tiles are vectors, so that LLVM allocates their registers. Each 32-bit lane of an accumulator
gets the dot product of the two or four elements in that lane of both operands: b is a vector from memory, a is the same
32 bits in every lane.

AMX: fixed tile numbers for the fragments. An accumulator keeps its tile for its live range. Operands are loaded at
their use into the remaining tiles in turn (least recently used first), and loaded again after eviction or at the start
of a basic block (rematerialized), so that only addresses stay live.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tinsmith.codegen.render.llvm_arithmetic import Lines
from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops, UOp

COUNT = 8
ROW_BYTES = 64
ROWS = 16


class Fragments:
    """Hooks for operands and accumulators of a matrix unit; this base class is for a kernel without one."""

    def __init__(self, text: Lines) -> None:
        self.text = text

    def begin(self) -> None:
        """Write the lines at the start of the function."""

    def end(self) -> None:
        """Write the lines at the end of the function."""

    def forget(self) -> None:
        """Start a new basic block: forget the loaded operands."""

    def constants(self) -> str:
        """Return definitions outside of the function."""
        return ""

    def holds(self, u: UOp) -> bool:
        """Return True if a line is an accumulator outside of LLVM's registers."""
        return False

    def write(self, u: UOp) -> bool:
        """Write a line if it concerns fragments; return True if it did."""
        return False

    def at(self, u: UOp) -> str:
        """Return the address of a fragment in memory."""
        memory, index = u.src[:2]
        names, bits = self.text.names, 8 * memory.dtype.itemsize
        return self.text.value(f"getelementptr inbounds i{bits}, ptr {names[memory]}, i64 {names[index]}")


class Tiles(Fragments):
    """The tile allocation of one kernel: the fragment in each tile."""

    def __init__(self, text: Lines, program: Sequence[UOp]) -> None:
        super().__init__(text)
        self.root: dict[UOp, UOp] = {}
        self.sums: dict[UOp, int] = {}
        self.loaded: dict[UOp, int] = {}
        self.last: dict[UOp, UOp] = {}
        self.find_sums(program)

    def find_sums(self, program: Sequence[UOp]) -> None:
        """Map every line of an accumulator to its first line, which identifies its tile; record each accumulator's last
        use."""
        sums = set[UOp]()
        for u in program:
            if u.op is Ops.MMA or (u.op is Ops.PHI and u.src[1] in sums):  # of a loop and of its enclosing loops
                sums.add(u)
        for u in reversed(program):
            if u in sums and u.op in (Ops.PHI, Ops.DEFINE_ACC):
                sums.update(u.src[:2] if u.op is Ops.PHI else u.src[:1])
        for u in program:
            if u in sums and u.op in (Ops.MMA, Ops.PHI, Ops.DEFINE_ACC):
                self.root[u] = self.root.get(u.src[0], u)
            for s in u.src:
                if s in self.root:
                    self.last[self.root[s]] = u

    def holds(self, u: UOp) -> bool:
        return u in self.root

    def begin(self) -> None:
        """Configure every tile with 16 rows of 64 bytes."""
        self.text.call("void", "llvm.x86.ldtilecfg", ("ptr", f"@{self.text.name}_tiles"))

    def end(self) -> None:
        self.text.call("void", "llvm.x86.tilerelease")

    def constants(self) -> str:
        """Return the tile configuration: palette 1, bytes per row from byte 16 on, rows from byte 48 on."""
        data = [1] + [0] * 15 + [ROW_BYTES, 0] * COUNT + [0] * 16 + [ROWS] * COUNT + [0] * 8
        values = ", ".join(f"i8 {b}" for b in data)
        return f"@{self.text.name}_tiles = internal constant [64 x i8] [{values}], align 64\n"

    def forget(self) -> None:
        """Forget the loaded operands: the block may be reached by several paths."""
        self.loaded.clear()

    def write(self, u: UOp) -> bool:
        if u.op is Ops.MMA:
            self.multiply(u)
        elif u.op is Ops.STORE_TILE:
            self.text.call("void", "llvm.x86.tilestored64", ("i8", str(self.sum(u.src[3]))), *self.address(u))
        elif u.op is Ops.DEFINE_ACC and self.holds(u):
            self.sum(u)
        elif u.op is not Ops.LOAD_TILE and not self.holds(u) and not self.is_start(u):
            return False
        for s in u.src:
            root = self.root.get(s)
            if root is not None and self.last[root] is u:
                self.sums.pop(root, None)
        return True

    def is_start(self, u: UOp) -> bool:
        """Return True for the constant an accumulator starts from; vectors of that size have no other use."""
        return u.op is Ops.CONST and u.dtype.count * u.dtype.itemsize == ROWS * ROW_BYTES

    def multiply(self, u: UOp) -> None:
        total = self.sum(u)
        a, b = self.operand(u.src[1], None), self.operand(u.src[2], u.src[1])
        self.text.call("void", f"llvm.x86.{u.arg.emit}", *(("i8", str(t)) for t in (total, a, b)))

    def sum(self, u: UOp) -> int:
        """Return the tile of an accumulator; a new one is initialized (zeroed or loaded)."""
        root = self.root[u]
        if root not in self.sums:
            tile = next(t for t in range(COUNT) if t not in self.sums.values())
            self.loaded = {held: t for held, t in self.loaded.items() if t != tile}
            self.sums[root] = tile
            start = root.src[0]
            if start.op is Ops.LOAD_TILE:
                self.text.call("void", "llvm.x86.tileloadd64", ("i8", str(tile)), *self.address(start))
            else:
                self.text.call("void", "llvm.x86.tilezero", ("i8", str(tile)))
        return self.sums[root]

    def operand(self, u: UOp, keep: UOp | None) -> int:
        """Return the tile that holds an operand; load it into a free tile or the least recently used one except
        ``keep``."""
        if u not in self.loaded:
            free = [t for t in range(COUNT) if t not in self.sums.values() and t not in self.loaded.values()]
            if not free:
                oldest = next(held for held in self.loaded if held is not keep)
                free = [self.loaded.pop(oldest)]
            self.loaded[u] = free[0]
            self.text.call("void", "llvm.x86.tileloadd64", ("i8", str(free[0])), *self.address(u))
        else:
            self.loaded[u] = self.loaded.pop(u)
        return self.loaded[u]

    def address(self, u: UOp) -> tuple[tuple[str, str], tuple[str, str]]:
        """Return the address of a tile and the distance of its rows in bytes."""
        size, pitch, at = u.src[0].dtype.itemsize, u.src[2], self.at(u)
        apart = str(pitch.arg * size) if pitch.is_const else self.text.value(
            f"mul i64 {self.text.names[pitch]}, {size}")
        return ("ptr", at), ("i64", apart)


class UnitForm(NamedTuple):
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
    "dot_bf16": UnitForm("llvm.x86.avx512bf16.dpbf16ps.512", "bfloat"),
    "dot_s16": UnitForm("llvm.x86.avx512.vpdpwssd.512"),
    "dot_u8s8": UnitForm("llvm.x86.avx512.vpdpbusd.512"),
    "dot_s8u8": UnitForm("llvm.x86.avx512.vpdpbusd.512", b_first=True),
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

    def multiply(self, u: UOp, form: UnitForm) -> str:
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
