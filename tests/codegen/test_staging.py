"""The stage builder: sizes, indices, guards and names of stages."""
from __future__ import annotations

from tinsmith.codegen.transform.stage_builder import Side, from_stage, under_names
from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.structure import Role

X = UOp(Ops.PARAM, dtypes.float32, (), (1, (6, 10)))
ROW, COLUMN = UOp.range(6, 0, Role.LOOP), UOp.range(10, 1, Role.LOOP)
VALUE = X.load(ROW * 10 + COLUMN)


def test_sides_are_dimensions_and_free_steps_lie_between_rows() -> None:
    row, loop, lane = UOp.range(6, 2, Role.LOOP), UOp.range(5, 3, Role.LOOP), UOp.range(2, 4, Role.VECTOR)
    load = from_stage(VALUE, [Side((row,), ROW), Side((loop, lane, UOp.index(0)), COLUMN, free=1)],
                      {ROW: row, COLUMN: loop * 2 + lane}, depth=3)
    stage = load.src[0]
    assert stage.src[1:] == (row, loop, lane) and list(stage.arg) == [6, 6, 2] and stage.arg.depth == 3
    assert load.src[1] is (ROW * 12 + COLUMN).simplify()
    assert stage.src[0] is X.load((row * 10 + loop * 2 + lane).simplify())


def test_only_what_a_condition_moves_is_guarded() -> None:
    bias = X.load(ROW)
    loop = UOp.range(16, 2, Role.LOOP)
    stage = from_stage(VALUE + bias, [Side((loop,), COLUMN)], {COLUMN: loop}, loop.lt(10)).src[0]
    loads = {n.src[1]: len(n.src) for n in stage.src[0].toposort() if n.op is Ops.LOAD}
    assert loads == {(ROW * 10 + loop).simplify(): 3, ROW: 2} and stage.ranges == {ROW}


def test_readers_under_other_names_share_the_stage() -> None:
    own, other = UOp.range(10, 2, Role.LOOP), UOp.range(10, 3, Role.REDUCE)
    load = from_stage(VALUE, [Side((own,), COLUMN)], {COLUMN: own})
    again = under_names(load, {COLUMN: other, own: other})
    assert again.src[0] is load.src[0] and again.src[1] is other
