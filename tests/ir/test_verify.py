"""Every check of every dialect triggers, and the message shows the location."""
from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.ir.helpers import param
from tinsmith.codegen.emit.linearize import linearize
from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.lower.lower import lower
from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import VerifyError
from tinsmith.ir import Ops, UOp
from tinsmith.ir.matrix_unit import BulkView, StagedLayout
from tinsmith.ir.uop import Window
from tinsmith.ir.verify import (
    KERNEL_CHECKS,
    PROGRAM_CHECKS,
    TENSOR_CHECKS,
    verify_kernel,
    verify_program,
    verify_tensor,
)
from tinsmith.target.units.x86 import AMX

F32, I32, IDX, BOOL = dtypes.float32, dtypes.int32, dtypes.index, dtypes.bool
X, Y, N = param(1, (4, 6), F32), param(2, (4, 6), F32), param(3, (4, 6), I32)
VAR = UOp.variable("n", 1, 5)
ZERO = UOp.index(0)

TENSOR_FAULTS: list[tuple[str, UOp]] = [
    ("allowed-op", UOp(Ops.SPECIAL, IDX, (), "tid")), ("dtype", UOp(Ops.ADD, F32, (N, N))),
    ("dtype", UOp(Ops.CMPLT, F32, (X, Y))),
    ("const", UOp(Ops.CONST, dtypes.int8, (), 300)), ("const", UOp(Ops.CONST, F32, (), 1)),
    ("bitcast", UOp(Ops.BITCAST, dtypes.float64, (X,))), ("scalar", param(0, (2,), F32.vec(4))),
    ("shape", X + Y.permute((1, 0))), ("shape", param(0, (-1,), F32)), ("reshape", X.reshape((5, 5))),
    ("expand", X.expand((8, 6))),
    ("permute", UOp(Ops.PERMUTE, F32, (X,), (0, 0))), ("pad", X.pad(((-1, 0), (0, 0)))), ("shrink", X.shrink(((0, 5),
    (0, 6)))),
    ("flip", X.flip((2,))), ("window", X.window(Window(0, 1, 1, 1, 4, 4))),
    ("window", X.window(Window(0, 0, 1, 1, 4, 1))),
    ("reduce", X.reduce("SUB", (0,))), ("reduce", X.reduce("ADD", (2,))), ("index", X.gather(Y, 0)),
    ("index", X.gather(N.shrink(((0, 4), (0, 2))), 0)), ("index", X.scatter(N, N, 0, None)),
    ("scan", X.scan("SUB", 0)), ("scan", X.scan("ADD", 2)), ("scan", X.scan("MULADD", 0, X)),
    ("index", N.histogram(N, X, 0)), ("scan", X.scan("ADD", 1, X.shrink(((0, 2), (0, 1))))), ("scan", X.scan("ADD", 1,
                                                                                                             N)),
    ("bind", UOp(Ops.BIND, None, (VAR, UOp.index(6)))), ("assign", UOp(Ops.ASSIGN, None, (X, N))),
    ("shard", UOp(Ops.SHARD, None, (X, X), (0, "CPU"))), ("shard", UOp(Ops.SHARD, None, (X, N), (0, "CPU,CPU:1"))),
    ("sink-root", UOp(Ops.SINK, None, (UOp(Ops.SINK, None, (X,)),))),
    ("sink-values", UOp(Ops.SINK, None, (UOp(Ops.SINK, None, ()),))),
]


def fails(verify: Callable[[UOp], None], subject: object, name: str) -> None:
    with pytest.raises(VerifyError) as caught:
        verify(subject)
    lines = str(caught.value).splitlines()
    assert lines[0].startswith(f"[{name}] "), lines[0]
    assert sum(line.endswith(f"<-- {name}") for line in lines) == 1, lines


@pytest.mark.parametrize("name, node", TENSOR_FAULTS, ids=[f"{i}-{n}" for i, (n, _) in enumerate(TENSOR_FAULTS)])
def test_tensor_check_fires(name: str, node: UOp) -> None:
    if name == "sink-values":
        return fails_by_check(node)
    fails(verify_tensor, node if node.op is Ops.SINK else UOp(Ops.SINK, None, (node,)), name)
    return None


def fails_by_check(node: UOp) -> None:
    check = next(c for c in TENSOR_CHECKS if c.name == "sink-values")
    assert check.find(node, node)


def test_good_tensor_graphs_pass() -> None:
    bound = UOp(Ops.BIND, None, (VAR, UOp.index(3)))
    for node in (X * Y, X.gather(N, 0), X.scatter(N, Y, 1, "ADD"), X.reshape((4, 6, 1)).expand((4, 6, bound)),
        X.lt(Y).where(X, Y)):
        verify_tensor(UOp(Ops.SINK, None, (node,)))


def memory(number: int, dtype: object = I32, size: int = 8) -> UOp:
    return UOp(Ops.PARAM, dtype.ptr(), (), (number, (size,)))


OUT, IN = memory(0), memory(1)
R, Q = UOp.range(4, 0, None), UOp.range(4, 1, None)
ONE = UOp.const(I32, 1)


def fold(value: UOp, *ranges: UOp, op: object = Ops.ADD) -> UOp:
    return UOp(Ops.FOLD, value.dtype, (value, *ranges), op)


def prefix(value: UOp, r: UOp, *start: UOp) -> UOp:
    return UOp(Ops.PREFIX, None, (value, r, *start), Ops.ADD)


def stage(value: UOp, *ranges: UOp, arg: tuple = (4,), dtype: object = None) -> UOp:
    return UOp(Ops.STAGE, dtype or value.dtype.ptr(), (value, *ranges), arg)


UNIT = AMX[0]
M, N16, K32 = (UOp.range(size, n, None) for n, size in ((2, 16), (3, 16), (4, 32)))
BYTE = UOp.const(dtypes.int8, 1)

KERNEL_FAULTS: list[tuple[str, UOp]] = [
    ("allowed-op", OUT.store(R, UOp(Ops.REDUCE, I32, (ONE,), (Ops.ADD, (0,))))),
    ("const", OUT.store(R, UOp(Ops.CONST, I32, (), 1.5))),
    ("bitcast", OUT.store(R, UOp(Ops.BITCAST, I32, (R,)))), ("memory", ONE.store(R, ONE)),
    ("memory", OUT.store(R, UOp.const(F32, 1))),
    ("memory", stage(Q.cast(I32), Q).store(R, ONE)), ("index-dtype", OUT.store(ONE, ONE)),
    ("valid-bool", OUT.store(R, IN.load(R, UOp.index(1)))), ("valid-bool", OUT.store(R, ONE, ONE)),
    ("range", OUT.store(UOp(Ops.RANGE, IDX, (ONE,), (0, None)), ONE)), ("range", OUT.store(R + UOp.range(3, 0, None),
    ONE)),
    ("binds-ranges", OUT.store(R, fold(IN.load(Q), Q, Q))), ("binds-ranges", OUT.store(R, fold(IN.load(Q), Q + 1))),
    ("bound-once", OUT.store(R + Q, fold(IN.load(Q), Q))), ("fold", OUT.store(R, fold(IN.load(Q), Q, Q.cast(I32)))),
    ("bound-once", OUT.store(R, fold(IN.load(Q), Q) + stage(Q.cast(I32), Q).load(R))),
    ("fold", OUT.store(R, fold(IN.load(Q), Q, op=Ops.SUB))), ("stage", OUT.store(R, stage(Q.cast(I32),
    Q, arg=(3,)).load(R))),
    ("stage", OUT.store(R, stage(Q.cast(I32), Q, arg=(4, 4)).load(R))),
    ("prefix", OUT.store(R, prefix(IN.load(R), R, R.cast(I32)))),
    ("prefix", OUT.store(R, prefix(IN.load(R), R, ONE, ONE))),
    ("prefix", OUT.store(R, prefix(IN.load(R), R + 1, ONE))),
    ("product", UOp(Ops.STORE, None, (OUT, M, UOp(Ops.MMA, None, (BYTE, BYTE, M, N16, K32), UNIT)))),
    ("product", UOp(Ops.STORE, None, (OUT, M, UOp(Ops.MMA, None, (BYTE, BYTE, M, N16, Q), UNIT)))),
    ("statement", ONE), ("covered", OUT.store(ZERO, R.cast(I32))),
    ("dtype", OUT.store(R, UOp(Ops.ADD, I32, (R, R)))),
]


@pytest.mark.parametrize("name, node", KERNEL_FAULTS, ids=[f"{i}-{n}" for i, (n, _) in enumerate(KERNEL_FAULTS)])
def test_kernel_check_fires(name: str, node: UOp) -> None:
    fails(verify_kernel, UOp(Ops.SINK, None, (node,)), name)


OUT_L, IN_L = UOp(Ops.DEFINE_GLOBAL, I32.ptr(), (), 0), UOp(Ops.DEFINE_GLOBAL, I32.ptr(), (), 1)
LOOP = UOp(Ops.RANGE, IDX, (ZERO, UOp.index(4)), (0, False))
OTHER = UOp(Ops.RANGE, IDX, (ZERO, UOp.index(4)), (1, False))
END, END_OTHER = UOp(Ops.ENDRANGE, None, (LOOP,)), UOp(Ops.ENDRANGE, None, (OTHER,))
LOAD = IN_L.load(LOOP)
ACC = UOp(Ops.DEFINE_ACC, I32, (ONE, LOOP), 0)
PHI = UOp(Ops.PHI, None, (ACC, LOAD))
V4 = UOp(Ops.CONST, I32.vec(4), (), 1)
WIDE = UOp(Ops.LOAD, I32.vec(4), (IN_L, ZERO))
TILES = UOp(Ops.DEFINE_LOCAL, I32.ptr(), (), ("tmp0", 512, StagedLayout(8, 32, 1, False)))
RING = UOp(Ops.DEFINE_RING, None, (TILES,), ("ring", 2))

PROGRAM_FAULTS: list[tuple[str, list[UOp]]] = [
    ("allowed-op", [UOp(Ops.SINK, None, ())]), ("globals-first", [ZERO, OUT_L]),
    ("nesting", [LOOP, OTHER, END, END_OTHER]),
    ("nesting", [UOp(Ops.ENDIF, None, (LOOP,))]), ("defined", [OUT_L, OUT_L.store(ZERO, LOAD)]),
    ("defined", [OUT_L, IN_L, LOOP, LOAD, END, OUT_L.store(ZERO, LOAD)]),
    ("once", [IN_L, LOOP, LOAD, LOAD + 1, LOAD + 1, END]),
    ("widths", [IN_L, WIDE, UOp(Ops.ADD, I32.vec(4), (WIDE, ONE))]),
    ("memory", [OUT_L, OUT_L.store(ZERO, UOp.const(F32, 1))]),
    ("index-dtype", [OUT_L, OUT_L.store(ONE, ONE)]), ("valid-bool", [OUT_L, OUT_L.store(ZERO, ONE, ONE)]),
    ("access-widths", [IN_L, IN_L.load(UOp(Ops.CONST, IDX.vec(4), (), 0))]),
    ("access-widths", [OUT_L, OUT_L.store(ZERO, V4, UOp.const(BOOL, True))]),
    ("accumulator", [UOp(Ops.DEFINE_ACC, F32, (ONE, LOOP), 0)]), ("accumulator", [IN_L, LOOP, ACC, END]),
    ("phi", [IN_L, LOOP, LOAD, UOp(Ops.PHI, None, (LOAD, LOAD)), END]),
    ("phi", [IN_L, ACC, UOp(Ops.PHI, None, (ACC, ONE))]),
    ("vectorize", [UOp(Ops.VECTORIZE, I32.vec(4), (ONE, ONE))]), ("gep", [IN_L, WIDE, UOp(Ops.GEP, I32, (WIDE,),
    (4,))]),
    ("shuffle", [UOp(Ops.SHUFFLE, F32, (ONE,), 1)]), ("shuffle", [UOp(Ops.SHUFFLE, I32, (ONE,), 0)]),
    ("match", [UOp(Ops.MATCH, I32.vec(2), (ONE,), 0)]), ("match", [UOp(Ops.MATCH, I32.vec(2), (V4,), 8)]),
    ("matrices", [IN_L, UOp(Ops.LOAD_MATRIX, I32.vec(4), (IN_L, ZERO), False)]),
    ("staged-tile", [IN_L, UOp(Ops.TILE, I32.vec(4), (IN_L, ZERO))]),
    ("staged-tile", [TILES, UOp(Ops.TILE, F32.vec(4), (TILES, ZERO))]),
    ("ring", [TILES, UOp(Ops.DEFINE_RING, None, (TILES,), ("ring", 3))]), ("in-ring", [IN_L, UOp(
        Ops.WAIT, None, (IN_L, ZERO, ZERO))]),
    ("in-ring", [IN_L, TILES, RING, UOp(Ops.ASYNC_COPY, None, (RING, ZERO, TILES, ZERO, IN_L, ZERO), BulkView(
        (9, 9), (1, 9), (4, 8)))]), ("drain", [UOp(Ops.DRAIN, None, (ONE,), 1)]),
    ("multiply", [UOp(Ops.MMA, None, (V4, V4, V4), UNIT)]),
    ("tile", [IN_L, UOp(Ops.LOAD_TILE, I32.vec(4), (IN_L, ZERO, ZERO), (2, 3))]),
    ("loop-bounds", [UOp(Ops.RANGE, IDX, (ZERO,), (0, False))]), ("condition", [UOp(Ops.IF, None, (ONE,))]),
    ("bitcast", [UOp(Ops.BITCAST, dtypes.int64, (ONE,))]), ("dtype", [UOp(Ops.ADD, F32, (ONE, ONE))]),
    ("closed", [LOOP]),
]


@pytest.mark.parametrize("name, lines", PROGRAM_FAULTS, ids=[f"{i}-{n}" for i, (n, _) in enumerate(PROGRAM_FAULTS)])
def test_program_check_fires(name: str, lines: list[UOp]) -> None:
    fails(verify_program, lines, name)


def test_a_good_program_passes() -> None:
    verify_program([OUT_L, IN_L, ZERO, ONE, ACC, LOOP, LOAD, PHI, END, OUT_L.store(ZERO, PHI)])
    value = (X.pad(((0, 1), (0, 0))) * 2).reduce("ADD", (1,))
    verify_program(linearize(Kernel(lower(UOp(Ops.SINK, None, (value,))))))


@pytest.mark.parametrize("checks, faults", [
    (TENSOR_CHECKS, TENSOR_FAULTS), (KERNEL_CHECKS, KERNEL_FAULTS), (PROGRAM_CHECKS, [*PROGRAM_FAULTS]),
], ids=["tensor", "kernel", "program"])
def test_every_check_has_a_fault(checks: object, faults: object) -> None:
    assert {c.name for c in checks} == {name for name, _ in faults} - {"closed"}
    assert all(c.doc.endswith(".") for c in checks)


def test_fault_is_marked_in_its_line() -> None:
    with pytest.raises(VerifyError) as caught:
        verify_program([OUT_L, ZERO, UOp.const(I32, 0), OUT_L.store(ONE, ONE)])
    marked = [line for line in str(caught.value).splitlines() if "<--" in line]
    assert marked[0].startswith("   2 UOps.STORE")
