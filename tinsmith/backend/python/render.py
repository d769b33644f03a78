"""Linear programs as Python: one generator per kernel, over NumPy arrays of (threads of a warp, lanes of a vector).

Indices and conditions that are uniform over all threads are Python integers; all other values are arrays, computed by
the ``meaning`` of their op's row. The generator yields at every BARRIER, so that the warps of a block take turns.
Accesses to memory shared by several threads are numbered, for the reports of races.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tinsmith.backend.python.memory import is_lane, shared_accesses, statement_text
from tinsmith.codegen.render.base import Renderer
from tinsmith.codegen.render.language import special_name
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.errors import CompileError
from tinsmith.ir import Op, Ops, UOp

_INFIX = {Ops.ADD: "+", Ops.SUB: "-", Ops.MUL: "*", Ops.CMPLT: "<", Ops.CMPEQ: "==", Ops.CMPNE: "!=", Ops.AND: "&",
          Ops.OR: "|", Ops.XOR: "^"}
_ON_BOOLS = {Ops.ADD: "|", Ops.MUL: "&"}
_CALLS = {Ops.MAX: "max", Ops.MIN: "min", Ops.IDIV: "floor_div", Ops.MOD: "floor_mod"}
_ON_INTEGERS = {*_INFIX, *_CALLS, Ops.NEG, Ops.WHERE, Ops.MULADD, Ops.CAST}
_PREFIX = {Ops.LOAD: "val", Ops.DEFINE_ACC: "acc", Ops.CAST: "cast", Ops.VECTORIZE: "vec", Ops.GEP: "gep",
           Ops.LOAD_TILE: "tile", Ops.LOAD_MATRIX: "tile", Ops.TILE: "tile", Ops.DRAIN: "sum", Ops.MMA: "mma"}


class PythonRenderer(Renderer):
    """Renders Python source; ``backend.python.device`` holds the functions that it calls."""

    comment = "#"

    def render(self, name: str, program: Sequence[UOp]) -> str:
        return _Writer(self, name, program).text()


class _Writer:
    """The text of one kernel. ``integers``: lines held as Python integers; ``varying``: lines that differ between
    threads; ``masks``: conditions of open divergent IFs."""

    def __init__(self, renderer: Renderer, name: str, program: Sequence[UOp]) -> None:
        self.renderer, self.name, self.program = renderer, name, program
        self.block = any(is_lane(u) for u in program)
        self.shared = {u: n for n, u in enumerate(shared_accesses(program))}
        self.names: dict[UOp, str] = {}
        self.integers: set[UOp] = set()
        self.varying: set[UOp] = set()
        self.masks: list[str | None] = []
        self.head: dict[str, str] = {}
        self.lines: list[str] = []
        self.depth = 1
        self.counts: dict[str, int] = {}

    def text(self) -> str:
        for u in self.program:
            self.current = u
            self.write(u)
        arguments = [self.names[u] for u in self.program if u.op is Ops.DEFINE_GLOBAL]
        rings = [(*u.arg, 0)[:3] for u in self.program if u.op is Ops.DEFINE_RING]
        specials = [u for u in self.program if u.op is Ops.SPECIAL]
        locals_ = [u for u in self.program if u.op is Ops.DEFINE_LOCAL]
        sizes = {u.arg[0]: u.arg[1] for u in specials if isinstance(u.arg, tuple)}
        head = [f"{name} = {text}" for text, name in self.head.items()]
        head.append(f"SIZES = {sizes!r}")
        head.append(f"LOCALS = {[(u.arg[0], u.dtype.name, u.arg[1]) for u in locals_]!r}")
        written = sorted({self.names[u.src[0]] for u in self.shared if u.op in (Ops.STORE, Ops.STORE_TILE)
                          and u.src[0].op is Ops.DEFINE_GLOBAL})
        head += [f"WRITTEN = {written!r}", f"STATEMENTS = {[statement_text(u) for u in self.shared]!r}",
                 f"RINGS = {rings!r}"]
        taken = [*arguments, *(special_name(u) for u in specials), *(u.arg[0] for u in locals_),
                 *(name for name, *_ in rings), *(["steps"] if rings else [])]
        return "\n".join([*head, f"def {self.name}({', '.join(taken)}):", *self.lines, "    return", "    yield", ""])

    # *** text ***

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text + self.renderer.mark(self.current))

    def fresh(self, prefix: str) -> str:
        number = self.counts.get(prefix, 0)
        self.counts[prefix] = number + 1
        return f"{prefix}{number}"

    def declare(self, u: UOp, text: str, integer: bool = False) -> None:
        self.names[u] = self.fresh("idx" if integer else _PREFIX.get(u.op, "alu"))
        if integer:
            self.integers.add(u)
        if any(s in self.varying for s in u.src):
            self.varying.add(u)
        self.line(f"{self.names[u]} = {text}")

    def define(self, prefix: str, text: str) -> str:
        """Return a name for a value that is computed once, before the kernel runs."""
        if text not in self.head:
            self.head[text] = self.fresh(prefix)
        return self.head[text]

    def integer(self, u: UOp) -> str:
        """Return a value that is uniform over all threads, as a Python integer."""
        if u.op is Ops.CONST:
            return str(u.arg)
        if u in self.varying:
            raise CompileError("PYTHON", f"{u!r} must be uniform across threads",
                               "a loop bound that is equal in all threads")
        return self.names[u] if u in self.integers else f"{self.names[u]}.item()"

    def of_warp(self, u: UOp) -> str:
        """Return a value that must be uniform over a warp, as a Python integer."""
        return f"alike({self.names[u]})" if u in self.varying else self.integer(u)

    def array(self, u: UOp) -> str:
        """Return a value as an array of (threads, lanes)."""
        if u.op is Ops.CONST:
            return self.define("c", f"const({u.dtype.name!r}, {u.dtype.count}, {_literal(u.arg)})")
        return f"lift({self.names[u]}, {u.dtype.name!r})" if u in self.integers else self.names[u]

    def place(self, u: UOp) -> str:
        """Return an index or condition, as an integer or an array."""
        return self.names[u] if u in self.integers else self.integer(u) if _scalar_const(u) else self.array(u)

    # *** one UOp ***

    def write(self, u: UOp) -> None:
        writer = _WRITERS.get(u.op)
        if writer is not None:
            writer(self, u)
        elif u.op.elementwise:
            self.elementwise(u)
        else:
            raise CompileError("PYTHON", f"{u.op.name} is not allowed in a linear program", "report it")

    def outside(self, u: UOp) -> None:
        """Name an argument, local memory, or an index supplied by the device."""
        if u.op is Ops.DEFINE_GLOBAL:
            self.names[u] = f"data{u.arg}" if u.dtype.pointer else str(u.arg[0])
        else:
            self.names[u] = special_name(u) if u.op is Ops.SPECIAL else u.arg[0]
        if is_lane(u):
            self.varying.add(u)
        elif not u.dtype.pointer and u.op is not Ops.DEFINE_LOCAL:
            self.integers.add(u)

    def accumulator(self, u: UOp) -> None:
        self.declare(u, self.array(u.src[0]))
        if self.block:
            self.varying.add(u)

    def phi(self, u: UOp) -> None:
        acc, value = u.src
        text, mask = self.array(value), self.mask()
        self.names[u] = self.names[acc]
        if self.block:
            self.varying.add(u)
        if mask is not None:  # the same array, so that a pending unit step still updates it
            text = f"{text} if {mask}.all() else where({mask}, {text}, {self.names[acc]})"
        self.line(f"{self.names[acc]} = {text}")

    def open(self, u: UOp) -> None:
        start, end = (self.of_warp(s) for s in u.src)
        self.names[u] = f"ridx{u.arg[0] if isinstance(u.arg, tuple) else u.arg}"
        self.integers.add(u)
        self.line(f"for {self.names[u]} in range({start}, {end}):")
        self.depth += 1

    def branch(self, u: UOp) -> None:
        condition = u.src[0]
        if condition not in self.varying:
            self.line(f"if {self.integer(condition)}:")
            self.masks.append(None)
        else:
            outer, mask = self.mask(), self.fresh("mask")
            self.line(f"{mask} = {self.array(condition)}{'' if outer is None else f' & {outer}'}")
            self.line(f"if {mask}.any():")
            self.masks.append(mask)
        self.depth += 1

    def close(self, u: UOp) -> None:
        self.line("pass")
        self.depth -= 1
        if u.op is Ops.ENDIF:
            self.masks.pop()

    def mask(self) -> str | None:
        return next((m for m in reversed(self.masks) if m is not None), None)

    def barrier(self, u: UOp) -> None:
        text = f"BARRIER {self.counts.get('barrier', 0)}"
        self.counts["barrier"] = self.counts.get("barrier", 0) + 1
        self.together(text)
        self.line(f"yield Barrier({text!r})")

    def together(self, text: str) -> None:
        """Check that all threads of a warp execute this statement."""
        if self.mask() is not None:
            self.line(f"whole_warp({self.mask()}, {self.name!r}, {text!r})")

    # *** memory ***

    def condition(self, u: UOp, position: int) -> str:
        """Return the access's own condition and the enclosing IF's, as a further argument."""
        parts = [self.place(u.src[position])] if len(u.src) > position else []
        mask = self.mask()
        parts += [] if mask is None else [mask]
        return f", {' & '.join(parts)}" if parts else ""

    def statement(self, u: UOp) -> str:
        """Return the access's number as a further argument, if other threads access the memory, too."""
        return f", statement={self.shared[u]}" if u in self.shared else ""

    def load(self, u: UOp) -> None:
        index, ok = self.place(u.src[1]), self.condition(u, 2) + self.statement(u)
        if u.dtype.count == 1 and not ok and (u.src[1] in self.integers or _scalar_const(u.src[1])):
            self.declare(u, f"load_one({self.names[u.src[0]]}, {index})")
        else:
            self.declare(u, f"load({self.names[u.src[0]]}, {u.dtype.count}, {index}{ok})")

    def store(self, u: UOp) -> None:
        memory, index, value = u.src[:3]
        self.line(f"store({self.names[memory]}, {value.dtype.count}, {self.place(index)}, {self.array(value)}"
                  f"{self.condition(u, 3)}{self.statement(u)})")

    # *** matrix units ***

    def load_tile(self, u: UOp) -> None:
        self.declare(u, f"load_tile({self.names[u.src[0]]}, {self.integer(u.src[1])}, {self.integer(u.src[2])}, "
                        f"*{u.arg}{self.statement(u)})")

    def load_matrix(self, u: UOp) -> None:
        self.together("LOAD_MATRIX")
        self.declare(u, f"load_matrix({self.names[u.src[0]]}, {self.array(u.src[1])}, {u.dtype.count // 2}, {u.arg}"
                        f"{self.statement(u)})")
        self.varying.add(u)

    def store_tile(self, u: UOp) -> None:
        self.line(f"store_tile({self.names[u.src[0]]}, {self.integer(u.src[1])}, {self.integer(u.src[2])}, *{u.arg}, "
                  f"{self.array(u.src[3])}{self.statement(u)})")

    def multiply(self, u: UOp) -> None:
        """Write a unit's multiplication: the interpreter needs only the unit's row."""
        if u.arg.threads > 1:
            self.together(f"MMA {u.arg.name}")
        if u.arg.staged:
            return self.multiply_staged(u)
        unit = self.define("unit", repr(replace(u.arg, tiles=(), chains=(), joined=())))
        self.declare(u, f"{unit}.multiply({', '.join(self.array(s) for s in u.src)})")
        if u.arg.threads > 1:
            self.varying.add(u)

    # *** rings ***

    def multiply_staged(self, u: UOp) -> None:
        """Write a warp's part of an asynchronous step; its accumulator is poison until drained."""
        unit = self.define("unit", repr(replace(u.arg, tiles=(), chains=(), joined=())))
        total, *tiles = u.src
        taken = [self.array(total), *(self.names[s] if s.op is Ops.TILE else self.array(s) for s in tiles)]
        self.declare(u, f"steps.step({unit}, {', '.join(taken)}, lidx0)")
        self.varying.add(u)

    def ring(self, u: UOp) -> None:
        self.names[u] = u.arg[0]

    def arrive(self, u: UOp) -> None:
        self.line(f"{self.names[u.src[0]]}.arrive({self.integer(u.src[1])}, {u.arg}, {self.mask()})")

    def release(self, u: UOp) -> None:
        self.together(f"RELEASE {self.names[u.src[0]]}")
        self.line(f"{self.names[u.src[0]]}.release({self.of_warp(u.src[1])})")

    def copy(self, u: UOp) -> None:
        ring, near, far = (self.names[u.src[n]] for n in (0, 2, 4))
        numbers = [self.integer(s) for s in (u.src[1], u.src[3], *u.src[5:])]
        to = u.src[2].dtype.scalar
        rounded = f", to={to.name!r}" if to is not u.src[4].dtype.scalar else ""
        self.line(f"{ring}.copy({near}, {far}, {self.define('view', repr(u.arg))}, {', '.join(numbers)}"
                  f"{self.statement(u)}{rounded})")

    def wait(self, u: UOp) -> None:
        ring, slot, parity = self.names[u.src[0]], *(self.of_warp(s) for s in u.src[1:])
        self.line(f"yield {ring}.wait({slot}, {parity})")

    def tile(self, u: UOp) -> None:
        memory, index = u.src
        layout = self.define("layout", repr(memory.arg[2]))
        self.declare(u, f"Staged({self.names[memory]}, {self.of_warp(index)}, {layout}{self.statement(u)})")

    def order(self, u: UOp) -> None:
        """Write FENCE, COMMIT or DRAIN."""
        name = u.op.name.lower()
        if u.src:
            self.declare(u, f"steps.{name}({u.arg}, {self.array(u.src[0])})")
            self.varying.add(u)
        else:
            self.line(f"steps.{name}({'' if u.arg is None else u.arg})")

    def shuffle(self, u: UOp) -> None:
        """Write a SHUFFLE; a uniform value is broadcast first."""
        self.together(f"SHUFFLE {u.arg}")
        self.declare(u, f"shuffle({self.array(u.src[0])}, {u.dtype.name!r}, {u.arg})")
        self.varying.add(u)

    def match(self, u: UOp) -> None:
        self.together("MATCH")
        self.declare(u, f"match({self.array(u.src[0])}, lidx0)")
        self.varying.add(u)

    def warp_barrier(self, u: UOp) -> None:
        self.together("WARP_BARRIER")
        self.line("yield WarpBarrier('WARP_BARRIER')")

    # *** vectors and arithmetic ***

    def vectorize(self, u: UOp) -> None:
        if len(u.src) == 1:
            self.declare(u, f"spread({self.array(u.src[0])}, {u.dtype.count // u.src[0].dtype.count})")
        else:
            self.declare(u, f"join({', '.join(self.array(s) for s in u.src)})")

    def lanes(self, u: UOp) -> None:
        self.declare(u, f"{self.array(u.src[0])}[:, {list(u.arg)}]")

    def elementwise(self, u: UOp) -> None:
        if u.dtype.count == 1 and u.op in _ON_INTEGERS and all(_countable(x) for x in (u, *u.src)) and not any(
                s in self.varying for s in u.src):
            self.declare(u, self.on_integers(u), True)
            return
        taken = ", ".join([repr(u.op.name), repr(u.dtype.name), *(repr(s.dtype.name) for s in u.src)])
        function = self.define(f"{u.op.name.lower()}_", f"meaning({taken})")
        self.declare(u, f"{function}({', '.join(self.array(s) for s in u.src)})")

    def on_integers(self, u: UOp) -> str:
        op, src = u.op, [self.integer(s) for s in u.src]
        if op in _INFIX:
            sign = _ON_BOOLS.get(op, _INFIX[op]) if u.dtype.is_bool else _INFIX[op]
            return f"{src[0]} {sign} {src[1]}"
        if op in _CALLS:
            return f"{_CALLS[op]}({', '.join(src)})"
        if op is Ops.NEG:
            return f"-{src[0]}"
        if op is Ops.WHERE:
            return f"{src[1]} if {src[0]} else {src[2]}"
        if op is Ops.MULADD:
            return f"{src[0]} * {src[1]} + {src[2]}"
        return f"{'bool' if u.dtype.is_bool else 'int'}({src[0]})"


def _scalar_const(u: UOp) -> bool:
    return u.op is Ops.CONST and u.dtype.count == 1


def _countable(u: UOp) -> bool:
    dtype: DType = u.dtype
    return dtype is dtypes.index or dtype is dtypes.bool


def _literal(value: Any) -> str:
    return f"float('{value}')" if isinstance(value, float) else repr(value)


def _nothing(writer: _Writer, u: UOp) -> None:
    """Write nothing: constants are inlined, and a prefetch changes no value."""


_WRITERS: dict[Op, Any] = {
    Ops.DEFINE_GLOBAL: _Writer.outside, Ops.DEFINE_LOCAL: _Writer.outside, Ops.SPECIAL: _Writer.outside,
    Ops.CONST: _nothing, Ops.PREFETCH: _nothing, Ops.DEFINE_ACC: _Writer.accumulator, Ops.PHI: _Writer.phi,
    Ops.RANGE: _Writer.open, Ops.ENDRANGE: _Writer.close, Ops.IF: _Writer.branch, Ops.ENDIF: _Writer.close,
    Ops.BARRIER: _Writer.barrier, Ops.LOAD: _Writer.load, Ops.STORE: _Writer.store, Ops.VECTORIZE: _Writer.vectorize,
    Ops.GEP: _Writer.lanes, Ops.LOAD_TILE: _Writer.load_tile,
    Ops.LOAD_MATRIX: _Writer.load_matrix, Ops.STORE_TILE: _Writer.store_tile,
    Ops.MMA: _Writer.multiply, Ops.SHUFFLE: _Writer.shuffle, Ops.MATCH: _Writer.match,
    Ops.WARP_BARRIER: _Writer.warp_barrier, Ops.DEFINE_RING: _Writer.ring, Ops.ARRIVE: _Writer.arrive,
    Ops.ASYNC_COPY: _Writer.copy, Ops.WAIT: _Writer.wait, Ops.TILE: _Writer.tile, Ops.FENCE: _Writer.order,
    Ops.RELEASE: _Writer.release, Ops.COMMIT: _Writer.order, Ops.DRAIN: _Writer.order,
}
