"""Verifier of linear programs: a table of named checks of a line, given the lines before it."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import VerifyError
from tinsmith.ir.matrix_unit import MatrixUnit, in_memory
from tinsmith.ir.ops import Ops, op_table
from tinsmith.ir.staged_layout import StagedLayout
from tinsmith.ir.text.node import short
from tinsmith.ir.text.printer import table_rows
from tinsmith.ir.uop import UOp
from tinsmith.ir.verify.checks import BITCAST, DTYPE, ELEMENTWISE, Check, allowed, marked, unless
from tinsmith.ir.verify.kernel import index, memory, position_of_valid, valid


@dataclass
class ProgramState:
    """State of the verifier before a line: open scopes with their values, and the groups of asynchronous MMAs."""

    # Open scopes, outermost first: (opening RANGE or IF, values defined in the scope).
    scopes: list[tuple[UOp | None, set[UOp]]] = field(default_factory=lambda: [(None, set())])
    begun: bool = False  # a line other than DEFINE_GLOBAL has been seen
    started: set[UOp] = field(default_factory=set)  # RANGEs and IFs opened so far
    groups: int = 0  # COMMITs so far
    group_of: dict[UOp, int] = field(default_factory=dict)  # MMA → number of COMMITs before it

    def sees(self, node: UOp) -> bool:
        return any(node in values for _, values in self.scopes)

    def home(self, node: UOp) -> set[UOp]:
        return next((values for _, values in self.scopes if node in values), self.scopes[-1][1])

    def advance(self, node: UOp) -> None:
        """Update the state with a line. A PHI is visible in every scope where its accumulator is."""
        self.begun = self.begun or node.op is not Ops.DEFINE_GLOBAL
        self.groups += node.op is Ops.COMMIT
        if node.op is Ops.MMA:
            self.group_of[node] = self.groups
        if node.op in _OPENS:
            self.scopes.append((node, {node}))
            self.started.add(node)
        elif node.op in _CLOSES:
            self.scopes.pop()
        else:
            self.home(node.src[0] if node.op is Ops.PHI else node).add(node)


_OPENS = (Ops.RANGE, Ops.IF)
_CLOSES = {Ops.ENDRANGE: Ops.RANGE, Ops.ENDIF: Ops.IF}
_REPEATABLE = (Ops.LOAD, Ops.STORE, Ops.LOAD_TILE, Ops.STORE_TILE, Ops.CONST, Ops.IF, Ops.ENDIF, Ops.BARRIER,
               Ops.WARP_BARRIER, Ops.PREFETCH, Ops.ARRIVE, Ops.ASYNC_COPY, Ops.WAIT, Ops.RELEASE, Ops.FENCE, Ops.COMMIT,
               Ops.DRAIN)


def _globals_first(n: UOp, state: ProgramState) -> str | None:
    return unless(not state.begun, "DEFINE_GLOBAL must precede all other lines")


def _nesting(n: UOp, state: ProgramState) -> str | None:
    opened = state.scopes[-1][0]
    return unless(opened is not None and n.src[0] is opened and opened.op is _CLOSES[n.op],
                   f"{short(n.src[0])} is not the innermost open loop or condition")


def _defined(n: UOp, state: ProgramState) -> str | None:
    sources = n.src[:1] if n.op is Ops.DEFINE_ACC else n.src  # an accumulator is defined before its loops
    missing = [s for s in sources if s.op is not Ops.CONST and not state.sees(s)]
    return unless(not missing, f"not defined before, or defined in a closed scope: {', '.join(map(short, missing))}")


def _once(n: UOp, state: ProgramState) -> str | None:
    return unless(n.op in _REPEATABLE or not state.sees(n), "defined twice")


def _widths(n: UOp, _: ProgramState) -> str | None:
    counts = [s.dtype.count for s in n.src]
    return unless(all(c == n.dtype.count for c in counts), f"{n.dtype.count} lanes from sources of {counts}")


def _access_widths(n: UOp, _: ProgramState) -> str | None:
    count = n.dtype.count if n.op is Ops.LOAD else n.src[2].dtype.count
    if n.src[1].dtype.count not in (1, count):
        return f"{n.src[1].dtype.count} indices for {count} lanes"
    at = position_of_valid(n)
    return unless(len(n.src) <= at or n.src[at].dtype.count == count, f"{count} lanes need {count} conditions")


def _accumulator(n: UOp, state: ProgramState) -> str | None:
    if n.src[0].dtype is not n.dtype:
        return f"starts as {n.src[0].dtype}"
    if any(s.op is not Ops.RANGE for s in n.src[1:]):
        return "the sources after the start value must be RANGEs"
    return unless(not any(s in state.started for s in n.src[1:]), "its loop is already open")


def _phi(n: UOp, state: ProgramState) -> str | None:
    acc, value = n.src
    if acc.op is not Ops.DEFINE_ACC:
        return f"{acc.op.name} is no accumulator"
    if value.dtype is not acc.dtype:
        return f"{acc.dtype} gets a {value.dtype}"
    open_now = {opened for opened, _ in state.scopes}
    return unless(all(r in open_now for r in acc.src[1:]), "the accumulator's loop is not open")


def _vectorize(n: UOp, _: ProgramState) -> str | None:
    lanes = sum(s.dtype.count for s in n.src)
    spread = len(n.src) == 1 and n.dtype.count % lanes == 0
    same = all(s.dtype.scalar is n.dtype.scalar for s in n.src)
    return unless(same and (spread or lanes == n.dtype.count), f"{n.dtype} from {[s.dtype for s in n.src]}")


def _gep(n: UOp, _: ProgramState) -> str | None:
    vector = n.src[0].dtype
    fits = len(n.arg) == n.dtype.count and all(0 <= lane < vector.count for lane in n.arg)
    return unless(fits and n.dtype.scalar is vector.scalar, f"{n.dtype} from lanes {n.arg} of {vector}")


def _shuffle(n: UOp, _: ProgramState) -> str | None:
    return unless(isinstance(n.arg, int) and n.arg > 0 and n.src[0].dtype is n.dtype,
                   f"{n.dtype} from {n.src[0].dtype} of the thread at XOR distance {n.arg}")


def _match(n: UOp, _: ProgramState) -> str | None:
    key = n.src[0].dtype
    return unless(isinstance(n.arg, int) and n.arg > 0 and key.is_int and key.count == 1, f"{key} of {n.arg} bits")


def _loop_bounds(n: UOp, _: ProgramState) -> str | None:
    return unless(n.dtype is dtypes.index and len(n.src) == 2, "a RANGE has two index bounds")


def _multiply(n: UOp, _: ProgramState) -> str | None:
    if not isinstance(n.arg, MatrixUnit) or len(n.src) != 3:
        return f"(accumulator, a, b) on a matrix unit, not {len(n.src)} sources on {n.arg!r}"
    unit = n.arg
    a = unit.operand_a if unit.held and n.src[1].op is not Ops.TILE else unit.fragment_a
    right = [unit.acc.vec(unit.fragment_c.size), unit.a.vec(a.size), unit.b.vec(unit.fragment_b.size)]
    return unless([s.dtype for s in n.src] == right, f"{unit.name} takes {right}, not {[s.dtype for s in n.src]}")


def _tile(n: UOp, _: ProgramState) -> str | None:
    memory, value = n.src[0], n if n.op is Ops.LOAD_TILE else n.src[3]
    if memory.op not in (Ops.DEFINE_GLOBAL, Ops.DEFINE_LOCAL) or memory.dtype.scalar is not value.dtype.scalar:
        return f"{value.dtype} in {memory.op.name} of {memory.dtype}"
    rows, columns = n.arg
    if not all(s.dtype is dtypes.index for s in n.src[1:3]):
        return "a tile has an index and a pitch"
    return unless(rows * columns == value.dtype.count, f"{value.dtype.count} elements, not {rows} x {columns}")


def _matrices(n: UOp, _: ProgramState) -> str | None:
    memory, index = n.src
    if memory.op is not Ops.DEFINE_LOCAL or memory.dtype.scalar is not n.dtype.scalar or n.dtype.itemsize != 2:
        return f"matrices of {n.dtype} in {memory.op.name} of {memory.dtype}"
    fits = index.dtype is dtypes.index and n.dtype.count in (2, 4, 8)
    return unless(fits, f"{n.dtype.count} elements at an {index.dtype}")


def _staged_tile(n: UOp, _: ProgramState) -> str | None:
    memory, index = n.src
    laid_out = memory.op is Ops.DEFINE_LOCAL and len(memory.arg) == 3 and isinstance(memory.arg[2], StagedLayout)
    if not laid_out or memory.dtype.scalar is not n.dtype.scalar:
        return f"a tile of {n.dtype} must be in local memory with a layout, not in {short(memory)} of {memory.dtype}"
    return unless(index.dtype is dtypes.index, f"the position has the index dtype, not {index.dtype}")


def _ring(n: UOp, _: ProgramState) -> str | None:
    slots = n.arg[1]
    fits = all(m.op is Ops.DEFINE_LOCAL and len(m.arg) == 3 and m.arg[1] == slots * m.arg[2].elements for m in n.src)
    return unless(fits, f"local memory of a ring must hold {slots} tiles")


def _in_ring(n: UOp, _: ProgramState) -> str | None:
    if n.src[0].op is not Ops.DEFINE_RING:
        return f"{n.src[0].op.name} is not a ring"
    places = n.src[1:] if n.op is not Ops.ASYNC_COPY else (n.src[1], n.src[3], *n.src[5:])
    if not all(s.dtype is dtypes.index for s in places):
        return "slots, parities, offsets and coordinates must have the index dtype"
    if n.op is not Ops.ASYNC_COPY:
        return None
    near, far = n.src[2], n.src[4]
    if near not in n.src[0].src or far.op is not Ops.DEFINE_GLOBAL or far.dtype.scalar is not in_memory(
            near.dtype.scalar):
        return f"cannot copy {short(far)} to {short(near)}"
    dimensions = {len(n.arg.sizes), len(n.arg.strides), len(n.arg.box), len(n.src) - 5}
    return unless(len(dimensions) == 1, f"{len(n.src) - 5} coordinates of {n.arg}")


def _drain(n: UOp, state: ProgramState) -> str | None:
    counted = isinstance(n.arg, int) and n.arg >= 0
    later = state.groups - 1 - state.group_of.get(n.src[0], state.groups - 1) if n.src else n.arg
    return unless(counted and n.arg <= later,
                  f"DRAIN must wait for the accumulator's steps: at most {later} groups may be in flight")


def _condition(n: UOp, _: ProgramState) -> str | None:
    return unless(n.src[0].dtype is dtypes.bool, f"a condition is one bool, not {n.src[0].dtype}")


_ALU = tuple(op for op in op_table() if op.elementwise and op is not Ops.BITCAST)
PROGRAM_OPS = (ELEMENTWISE - {Ops.UNLIKELY}) | {
    Ops.DEFINE_GLOBAL, Ops.DEFINE_LOCAL, Ops.DEFINE_ACC, Ops.CONST, Ops.SPECIAL, Ops.RANGE, Ops.ENDRANGE, Ops.IF,
    Ops.ENDIF, Ops.LOAD, Ops.STORE, Ops.PHI, Ops.VECTORIZE, Ops.GEP, Ops.BARRIER, Ops.PREFETCH, Ops.MMA, Ops.LOAD_TILE,
    Ops.STORE_TILE, Ops.SHUFFLE, Ops.MATCH, Ops.WARP_BARRIER, Ops.DEFINE_RING, Ops.ARRIVE, Ops.ASYNC_COPY, Ops.WAIT,
    Ops.TILE, Ops.FENCE, Ops.COMMIT, Ops.DRAIN, Ops.LOAD_MATRIX, Ops.RELEASE}
PROGRAM_CHECKS: tuple[Check[ProgramState], ...] = (
    allowed(PROGRAM_OPS, "linear program"),
    Check("globals-first", "DEFINE_GLOBAL comes first.", (Ops.DEFINE_GLOBAL,), _globals_first),
    Check("nesting", "ENDRANGE and ENDIF close the innermost open loop or condition.",
          (Ops.ENDRANGE, Ops.ENDIF), _nesting),
    Check("defined", "Sources are defined before use, in an open scope.", (), _defined),
    Check("once", "A value is defined once per scope.", (), _once),
    Check("widths", "Vector widths agree across arithmetic.", _ALU, _widths),
    Check("memory", "Loads and stores access memory of their dtype.", (Ops.LOAD, Ops.STORE), memory),
    Check("index-dtype", "Indices have the index dtype.", (Ops.LOAD, Ops.STORE, Ops.PREFETCH), index),
    Check("valid-bool", "Conditions are bool.", (Ops.LOAD, Ops.STORE), valid),
    Check("access-widths", "One index (of the first lane) or one per lane; one condition per lane.",
          (Ops.LOAD, Ops.STORE), _access_widths),
    Check("accumulator", "An accumulator has its start's dtype and is defined before its loops.", (Ops.DEFINE_ACC,),
          _accumulator),
    Check("phi", "PHI gives an accumulator its next value, inside its loop.", (Ops.PHI,), _phi),
    Check("vectorize", "The sources' lanes fill the vector, or one source is broadcast.", (Ops.VECTORIZE,), _vectorize),
    Check("gep", "The lanes exist.", (Ops.GEP,), _gep),
    Check("shuffle", "Source and result have the same dtype.", (Ops.SHUFFLE,), _shuffle),
    Check("match", "The key is a scalar integer with a positive number of bits.", (Ops.MATCH,), _match),
    Check("loop-bounds", "A loop has two index bounds.", (Ops.RANGE,), _loop_bounds),
    Check("multiply", "A matrix unit gets fragments of its types.", (Ops.MMA,), _multiply),
    Check("tile", "A tile is in memory of its dtype and has rows × columns elements.",
          (Ops.LOAD_TILE, Ops.STORE_TILE), _tile),
    Check("matrices", "Matrices of 8 × 8 in local memory.", (Ops.LOAD_MATRIX,), _matrices),
    Check("staged-tile", "A staged operand is in local memory with a layout.", (Ops.TILE,), _staged_tile),
    Check("ring", "The slots of a ring are local memory.", (Ops.DEFINE_RING,), _ring),
    Check("in-ring", "Copies fill slots of a ring.", (Ops.ARRIVE, Ops.WAIT, Ops.ASYNC_COPY, Ops.RELEASE), _in_ring),
    Check("drain", "At most `arg` later groups of steps are in flight.", (Ops.DRAIN,), _drain),
    Check("condition", "IF takes one bool.", (Ops.IF,), _condition),
    BITCAST, DTYPE,
)


def verify_program(linear: Sequence[UOp]) -> None:
    """Verify a linear program, line by line.

    Raises:
        VerifyError: at the first fault.
    """
    state = ProgramState()
    for at, node in enumerate(linear):
        for check in PROGRAM_CHECKS:
            fault = check.find(node, state)
            if fault is not None:
                raise VerifyError(_program_text(linear, at, check.name, fault))
        state.advance(node)
    if len(state.scopes) > 1:
        opened = state.scopes[-1][0]
        assert opened is not None
        raise VerifyError(_program_text(linear, linear.index(opened), "closed", f"{short(opened)} is never closed"))


def _program_text(linear: Sequence[UOp], at: int, name: str, fault: str) -> str:
    """Return the program's table with the faulty line marked. Equal constants share a row, so rows are fewer than
    lines."""
    rows = table_rows(linear)
    before = len(table_rows(linear[: at + 1])) - 1
    return marked(rows, before, name, fault)
