"""LLVM IR: explicit vectors, accumulators as loop phis, masked loads and stores, gather and scatter.

A kernel is ``void name(ptr args, i64 tid, i64 nthreads)``; ``args`` holds the buffers' addresses in order, then the
variables as 64-bit integers, then the address of the local memory, one slice per thread.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tinsmith.codegen.render.base import Renderer, local_bytes, near_bytes
from tinsmith.codegen.render.llvm_arithmetic import (
    Dots,
    Fragments,
    LLVMArithmetic,
    Tiles,
    constant,
    is_dot,
    literal_zero,
    mask_of,
    suffix_of,
    type_name,
)
from tinsmith.core.dtypes import DType
from tinsmith.ir import Op, Ops, UOp

SYSTEM_STACK = 16  # alignment of the stack at a call
STACK_BYTES = 32 << 10  # local memory up to this size is on the stack


class LLVMRenderer(Renderer):
    """Writes one module with one kernel."""

    comment = ";"

    def render(self, name: str, program: Sequence[UOp]) -> str:
        return _Module(self, name, program).text()


class _Module(LLVMArithmetic):
    """The basic blocks of one kernel: loops, conditions, memory and vectors."""

    def __init__(self, renderer: LLVMRenderer, name: str, program: Sequence[UOp]) -> None:
        super().__init__(renderer, name, program)
        self.block = "entry"
        self.accumulators: dict[UOp, list[UOp]] = {}
        for u in program:
            if u.op is Ops.DEFINE_ACC:
                for r in u.src[1:]:
                    self.accumulators.setdefault(r, []).append(u)
        # the PHIs that update each accumulator
        self.phis: dict[UOp, list[UOp]] = {u: [] for u in program if u.op is Ops.DEFINE_ACC}
        for u in program:
            if u.op is Ops.PHI:
                self.phis[u.src[0]].append(u)
        self.tiles: Fragments = Fragments(self)
        if any(u.op is Ops.MMA for u in program):
            self.tiles = Dots(self) if is_dot(program) else Tiles(self, program)
        self.loops: dict[UOp, tuple[str, str, list[tuple[UOp, int, str]], str | None]] = {}
        self.ifs: dict[UOp, tuple[str, str, dict[UOp, str]]] = {}

    # *** text ***

    def text(self) -> str:
        self.arguments()
        self.tiles.begin()
        for u in self.program:
            self.current = u
            self.write(u)
        self.tiles.end()
        if any(u.op is Ops.STORE and u.arg == "stream" for u in self.program):
            self.line("fence seq_cst")  # non-temporal stores are ordered by nothing weaker
        body = "\n".join(self.lines)
        # Vectors that registers do not hold are spilled to the stack, aligned: else it depends on the caller whether
        # they cross cache lines (a bf16 product of 512 × 768 × 768: 2.7 or 4.0 ms on Zen 4).
        widest = max((u.dtype.itemsize * u.dtype.count for u in self.program if not u.dtype.pointer), default=1)
        spilled = min(widest, self.renderer.target.vector_bytes)
        aligned = f" alignstack({spilled})" if spilled > SYSTEM_STACK else ""
        head = f"define void @{self.name}(ptr noalias readonly %args, i64 %tid, i64 %nthreads){aligned} {{\nentry:\n"
        tail = "  ret void\n}\n!0 = !{i32 1}\n!1 = distinct !{!1}\n" + self.tiles.constants()
        return "".join(d + "\n" for d in self.declarations) + head + body + "\n" + tail

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")
        self.block = name
        self.tiles.forget()

    def fresh(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def arguments(self) -> None:
        """Load the argument table; lay out local memory."""
        slot = 0
        for u in self.program:
            if u.op is Ops.DEFINE_GLOBAL:
                self.current = u
                at = self.value(f"getelementptr i64, ptr %args, i64 {slot}")
                self.names[u] = self.value(f"load {'ptr' if u.dtype.pointer else 'i64'}, ptr {at}, align 8")
                slot += 1
        total = local_bytes(self.program)
        if not total:
            return
        if total <= STACK_BYTES:
            base = self.value(f"alloca [{total} x i8], align 64")
        else:
            at = self.value(f"getelementptr i64, ptr %args, i64 {slot}")
            arena = self.value(f"load ptr, ptr {at}, align 8")
            offset = self.value(f"mul i64 %tid, {total}")
            base = self.value(f"getelementptr i8, ptr {arena}, i64 {offset}")
        offset_bytes = 0
        for u in self.program:
            if u.op is Ops.DEFINE_LOCAL:
                self.current = u
                self.names[u] = self.value(f"getelementptr i8, ptr {base}, i64 {offset_bytes}")
                offset_bytes += near_bytes(u)

    # *** one UOp ***

    def write(self, u: UOp) -> None:
        op = u.op
        if op in (Ops.DEFINE_GLOBAL, Ops.DEFINE_LOCAL) or self.tiles.write(u):
            return
        if op is Ops.CONST:
            self.names[u] = constant(u.dtype, u.arg)
        elif op is Ops.SPECIAL:
            self.names[u] = f"%{u.arg}"
        elif op is Ops.DEFINE_ACC:
            self.names[u] = self.names[u.src[0]]
        elif op is Ops.PHI:
            self.names[u] = self.names[u.src[0]] = self.names[u.src[1]]
        elif op is Ops.RANGE:
            self.open(u)
        elif op is Ops.ENDRANGE:
            self.close(u.src[0])
        elif op is Ops.IF:
            self.branch(u)
        elif op is Ops.ENDIF:
            self.meet(u.src[0])
        elif op is Ops.STORE:
            self.store(u)
        elif op is Ops.PREFETCH:
            kind = type_name(u.src[0].dtype.scalar, memory=True)  # not "inbounds": the address may be past the end
            at = self.value(f"getelementptr {kind}, ptr {self.names[u.src[0]]}, i64 {self.names[u.src[1]]}")
            self.call("void", "llvm.prefetch.p0", ("ptr", at), ("i32", "0"), ("i32", "3"), ("i32", "1"))
        else:
            self.names[u] = _VALUES.get(op, LLVMArithmetic.alu)(self, u)

    # *** conditions ***

    def branch(self, u: UOp) -> None:
        yes, after = self.fresh("then"), self.fresh("endif")
        held = {acc: self.names[acc] for acc in self.phis if acc in self.names}
        self.ifs[u] = self.block, after, held
        self.line(f"br i1 {self.names[u.src[0]]}, label %{yes}, label %{after}")
        self.label(yes)

    def meet(self, u: UOp) -> None:
        """End a condition; accumulators get phis of their old and new values."""
        before, after, held = self.ifs[u]
        inside = self.block
        self.line(f"br label %{after}")
        self.label(after)
        for acc, old in held.items():
            if self.names[acc] != old:
                new = f"[ {old}, %{before} ], [ {self.names[acc]}, %{inside} ]"
                self.rename(acc, self.value(f"phi {type_name(acc.dtype)} {new}"))

    def rename(self, acc: UOp, name: str) -> None:
        """Set the current SSA name of an accumulator."""
        self.names[acc] = name
        for u in self.phis[acc]:
            self.names[u] = name

    # *** loops: bottom-tested, guarded if they may have no iterations ***

    def open(self, u: UOp) -> None:
        start, end = (self.names[s] for s in u.src)
        before, loop, leave = self.block, self.fresh("loop"), self.fresh("done")
        guard: str | None = None
        if not (u.src[0].is_const and u.src[1].is_const and u.src[0].arg < u.src[1].arg):
            guard = before
            runs = self.value(f"icmp slt i64 {start}, {end}")
            self.line(f"br i1 {runs}, label %{loop}, label %{leave}")
        else:
            self.line(f"br label %{loop}")
        self.label(loop)
        index = self.fresh("%i")
        self.names[u] = index
        self.line(f"{index} = phi i64 [ {start}, %{before} ], [ {index}n, %LATCH{loop} ]")
        held = []
        for acc in self.accumulators.get(u, []):
            if self.tiles.holds(acc):
                continue
            name, kind = self.fresh("%acc"), type_name(acc.dtype)
            held.append((acc, len(self.lines), self.names[acc]))
            self.line(f"{name} = phi {kind} [ {self.names[acc]}, %{before} ], [ ACC, %LATCH{loop} ]")
            self.names[acc] = name
        self.loops[u] = (loop, leave, held, guard)

    def close(self, u: UOp) -> None:
        loop, leave, held, guard = self.loops.pop(u)
        index, latch = self.names[u], self.fresh("latch")
        self.line(f"br label %{latch}")
        self.label(latch)
        self.line(f"{index}n = add nuw nsw i64 {index}, 1")
        again = self.value(f"icmp slt i64 {index}n, {self.names[u.src[1]]}")
        self.line(f"br i1 {again}, label %{loop}, label %{leave}")
        header = next(i for i in range(len(self.lines) - 1, -1, -1) if self.lines[i] == f"{loop}:")
        self.lines[header + 1] = self.lines[header + 1].replace(f"%LATCH{loop}", f"%{latch}")
        for acc, at, _ in held:
            self.lines[at] = self.lines[at].replace("ACC", self.names[acc]).replace(f"%LATCH{loop}", f"%{latch}")
        self.label(leave)
        if guard is not None:
            for acc, _, start in held:
                new = f"[ {start}, %{guard} ], [ {self.names[acc]}, %{latch} ]"
                self.rename(acc, self.value(f"phi {type_name(acc.dtype)} {new}"))

    # *** memory ***

    def pointer(self, memory: UOp, index: UOp) -> str:
        """Return the address of an element; a vector of addresses for a vector index."""
        kind = type_name(memory.dtype.scalar, memory=True)
        return self.value(f"getelementptr inbounds {kind}, ptr {self.names[memory]}, {self.typed(index)}")

    def load(self, u: UOp) -> str:
        memory, index = u.src[:2]
        valid = u.src[2] if len(u.src) > 2 else None
        kind, align = type_name(u.dtype, memory=True), u.dtype.itemsize
        if valid is None and index.dtype.count == 1:
            loaded = self.value(f"load {kind}, ptr {self.pointer(memory, index)}, align {align}")
        elif u.dtype.count == 1 and valid is not None:
            before = self.block
            with self.only_where(valid, "load"):
                yes, loaded = self.block, self.value(f"load {kind}, ptr {self.pointer(memory, index)}, align {align}")
            zero = "0" if kind[0] == "i" else literal_zero(kind)
            loaded = self.value(f"phi {kind} [ {zero}, %{before} ], [ {loaded}, %{yes} ]")
        else:
            name, place = self.masked(("load", "gather"), u.dtype, memory, index, valid)
            loaded = self.call(kind, name, *place, (kind, "zeroinitializer"))
        if u.dtype.is_bool:
            return self.value(f"trunc {kind} {loaded} to {type_name(u.dtype)}")
        return loaded

    @contextmanager
    def only_where(self, valid: UOp, what: str) -> Iterator[None]:
        """Branch around an access, so that an invalid address is never touched."""
        yes, after = self.fresh(what), self.fresh(f"{what.removesuffix('e')}ed")
        self.line(f"br i1 {self.names[valid]}, label %{yes}, label %{after}")
        self.label(yes)
        yield
        self.line(f"br label %{after}")
        self.label(after)

    def masked(self, names: tuple[str, str], dtype: DType, memory: UOp, index: UOp,
               valid: UOp | None) -> tuple[str, list[tuple[str, str]]]:
        """Return the masked intrinsic (contiguous, or gather/scatter) and its address, alignment and mask arguments."""
        apart, n = index.dtype.count > 1, dtype.count
        mask = self.names[valid] if valid is not None else "splat (i1 true)"
        name = f"llvm.masked.{names[apart]}.{suffix_of(type_name(dtype, memory=True))}.{f'v{n}' * apart}p0"
        return name, [(f"<{n} x ptr>" if apart else "ptr", self.pointer(memory, index)), ("i32", str(dtype.itemsize)),
                      (f"<{n} x i1>", mask)]

    def store(self, u: UOp) -> None:
        memory, index, value = u.src[:3]
        valid = u.src[3] if len(u.src) > 3 else None
        dtype, n, name, only = value.dtype, value.dtype.count, self.names[value], only_lane(valid)
        kind, align = type_name(dtype, memory=True), f"align {dtype.itemsize}"
        if dtype.is_bool:
            name = self.value(f"zext {self.typed(value)} to {kind}")
        if only is not None and index.dtype.count == 1:
            # LLVM 22 stores too many bytes for a truncated vector of which one lane is written.
            lane = self.value(f"extractelement {kind} {name}, i64 {only}")
            scalar, at = type_name(dtype.scalar, memory=True), self.pointer(memory, index)
            place = self.value(f"getelementptr inbounds {scalar}, ptr {at}, i64 {only}")
            self.line(f"store {scalar} {lane}, ptr {place}, {align}")
        elif n == 1 and valid is not None:
            with self.only_where(valid, "store"):
                self.line(f"store {kind} {name}, ptr {self.pointer(memory, index)}, {align}")
        elif index.dtype.count > 1 or valid is not None:
            function, reached = self.masked(("store", "scatter"), dtype, memory, index, valid)
            self.call("void", function, (kind, name), *reached)
        else:
            if u.arg == "stream":  # the HINT opt has checked the alignment
                align = f"align {dtype.itemsize * n}, !nontemporal !0"
            self.line(f"store {kind} {name}, ptr {self.pointer(memory, index)}, {align}")

    # *** vectors ***

    def vectorize(self, u: UOp) -> str:
        kind, n = type_name(u.dtype), u.dtype.count
        if len(u.src) == 1:
            one = self.value(f"insertelement {kind} poison, {self.typed(u.src[0])}, i64 0")
            return self.value(f"shufflevector {kind} {one}, {kind} poison, <{n} x i32> zeroinitializer")
        if u.src[0].dtype.count > 1:
            return self.joined([self.names[s] for s in u.src], u.src[0].dtype)
        if all(s.op is Ops.CONST for s in u.src):
            return "<" + ", ".join(self.typed(s) for s in u.src) + ">"
        result = "poison"
        for i, s in enumerate(u.src):
            result = self.value(f"insertelement {kind} {result}, {self.typed(s)}, i64 {i}")
        return result

    def lanes(self, u: UOp) -> str:
        source = self.typed(u.src[0])
        if u.dtype.count == 1:
            return self.value(f"extractelement {source}, i64 {u.arg[0]}")
        return self.value(f"shufflevector {source}, {type_name(u.src[0].dtype)} poison, {mask_of(u.arg)}")


_VALUES: dict[Op, Callable[[Any, UOp], str]] = {
    Ops.LOAD: _Module.load, Ops.VECTORIZE: _Module.vectorize, Ops.GEP: _Module.lanes, Ops.CAST: _Module.cast,
    Ops.BITCAST: _Module.bitcast}


def only_lane(valid: UOp | None) -> int | None:
    """Return the only lane for which a constant vector condition holds, else None."""
    if valid is None or valid.op is not Ops.VECTORIZE or any(s.op is not Ops.CONST for s in valid.src):
        return None
    lanes = [i for i, s in enumerate(valid.src) if s.arg]
    return lanes[0] if len(lanes) == 1 and len(valid.src) > 1 else None
