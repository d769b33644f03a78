"""Printed forms: those of the tutorials, and consistency rules."""
from __future__ import annotations

from tests.ir.helpers import param
from tinsmith.codegen.emit.linearize import linearize
from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.lower.lower import lower
from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.text.printer import expression, kernel_graph_text, kernel_tree, listing_rows, short, uop_table
from tinsmith.ir.uop import Window

I32, F32 = dtypes.int32, dtypes.float32

DOT_TREE = """\
  0 ━┳ STORE MemBuffer(idx=0, dtype=dtypes.int, st=ShapeTracker(views=(View(shape=(1,), strides=(0,), offset=0, mask=None, contiguous=True),)))
  1  ┗━┳ SUM (0,)
  2    ┗━┳ MUL
  3      ┣━━ LOAD MemBuffer(idx=1, dtype=dtypes.int, st=ShapeTracker(views=(View(shape=(2,), strides=(1,), offset=0, mask=None, contiguous=True),)))
  4      ┗━━ LOAD MemBuffer(idx=2, dtype=dtypes.int, st=ShapeTracker(views=(View(shape=(2,), strides=(1,), offset=0, mask=None, contiguous=True),)))"""  # noqa: E501
DOT_TABLE = """\
   0 UOps.DEFINE_GLOBAL  : PtrDType(dtypes.int)      []                               0
   1 UOps.DEFINE_GLOBAL  : PtrDType(dtypes.int)      []                               1
   2 UOps.DEFINE_GLOBAL  : PtrDType(dtypes.int)      []                               2
   3 UOps.CONST          : dtypes.int                []                               0
   4 UOps.CONST          : dtypes.int                []                               2
   5 UOps.DEFINE_ACC     : dtypes.int                ['0', 6]                         (0,)
   6 UOps.RANGE          : dtypes.int                ['0', '2']                       (0, True)
   7 UOps.LOAD           : dtypes.int                [1, 6]                           None
   8 UOps.LOAD           : dtypes.int                [2, 6]                           None
   9 UOps.ALU            : dtypes.int                [7, 8]                           BinaryOps.MUL
  10 UOps.ALU            : dtypes.int                [5, 9]                           BinaryOps.ADD
  11 UOps.PHI            : dtypes.int                [5, 10]                          None
  12 UOps.ENDRANGE       :                           [6]                              None
  13 UOps.STORE          :                           [0, '0', 11]                     None"""


def sink(*values: UOp) -> UOp:
    return UOp(Ops.SINK, None, values)


def dot() -> UOp:
    return sink((param(1, (2,), I32) * param(2, (2,), I32)).reduce("ADD", (0,)).reshape(()))


def marks(text: str) -> list[str]:
    return [line[4:].split(" st=")[0].split(" MemBuffer")[0] for line in text.splitlines()]


def test_the_tutorials_tree() -> None:
    assert kernel_tree(dot()) == DOT_TREE


def test_the_tutorials_table() -> None:
    assert uop_table(linearize(Kernel(lower(dot())))) == DOT_TABLE


def test_movement_above_a_reduction_stays_a_node_and_repeats_are_references() -> None:
    x = param(1, (4, 6), F32)
    text = kernel_tree(sink(x - x.reduce("MAX", (1,)).expand((4, 6))))
    assert marks(text) == ["━┳ STORE", " ┗━┳ SUB", "   ┣━━ LOAD", "   ┗━┳ EXPAND (4, 6)", "     ┗━┳ MAX (1,)",
        "       ┗━━ #2"]


def test_movement_ops_are_pushed_to_the_leaves() -> None:
    x = param(1, (4, 6), F32)
    text = kernel_tree(sink((x + 1).alu("EXP").permute((1, 0)).flip((0,))))
    assert marks(text) == ["━┳ STORE", " ┗━┳ EXP", "   ┗━┳ ADD", "     ┣━━ LOAD", "     ┗━━ CONST 1.0"]
    assert "View(shape=(6, 4), strides=(-1, 6), offset=5, mask=None, contiguous=False)" in text


def test_padding_is_not_pushed_through_what_makes_zero_something_else() -> None:
    x = param(1, (4,), F32)
    assert marks(kernel_tree(sink(x.alu("EXP").pad(((1, 0),)))))[1:] == [" ┗━┳ PAD ((1, 0),)", "   ┗━┳ EXP",
        "     ┗━━ LOAD"]
    pushed = kernel_tree(sink(x.alu("SIN").pad(((1, 0),))))
    assert marks(pushed)[1:] == [" ┗━┳ SIN", "   ┗━━ LOAD"] and "mask=((1, 5),)" in pushed


def test_windows_become_views() -> None:
    w = Window(0, 1, 2, 1, 9, 4)
    seen = param(1, (9,), F32).reshape((9, 1)).expand((9, 3)).window(w)
    assert "View(shape=(4, 3), strides=(2, 1), offset=0, mask=None, contiguous=False)" in kernel_tree(sink(seen))
    own = param(1, (9, 3), F32).window(w)
    assert marks(kernel_tree(sink(own)))[1].startswith(" ┗━┳ WINDOW")


def test_several_outputs_share_line_numbers() -> None:
    y = param(2, (3,), F32).alu("SIN")
    assert marks(kernel_tree(sink(y, y * y))) == [
        "━┳ STORE", " ┗━┳ SIN", "   ┗━━ LOAD", "━┳ STORE", " ┗━┳ MUL", "   ┣━━ #1", "   ┗━━ #1"]


def test_equal_constants_are_one_row() -> None:
    zero, index = UOp.const(I32, 0), UOp.index(0)
    out = UOp(Ops.DEFINE_GLOBAL, I32.ptr(), (), 0)
    table = uop_table([out, zero, index, UOp.const(F32, 0.0), out.store(index, zero)]).splitlines()
    assert len(table) == 4 and table[-1].split("[")[1].startswith("0, '0', '0']")


def test_table_arguments() -> None:
    x, y = UOp(Ops.DEFINE_GLOBAL, F32.ptr(), (), 0), UOp.index(0)
    v = x.load(y)
    rows = uop_table([x, y, v, -v, v.lt(v), v.lt(v).where(v, v), v.cast(I32)]).splitlines()
    assert [r.split()[-1] for r in rows[3:]] == ["UnaryOps.NEG", "BinaryOps.CMPLT", "TernaryOps.WHERE", "None"]
    assert "UOps.CAST " in rows[-1]


def test_short_is_bounded() -> None:
    i = UOp.range(9, 0, None)
    assert repr(i + 3) == "R0+3"
    assert short(param(1, (2,)).reduce("ADD", (0,))) == "REDUCE(dtypes.double, PARAM#1, (ADD, (0,)))"
    node = i
    for _ in range(50):
        node = node.maximum(i * 2 + 1)
    assert "…" in short(node) and len(short(node)) < 300


def test_kernel_graph_text() -> None:
    x = param(1, (4, 6), F32)
    text = kernel_graph_text(Kernel(lower(sink(x.pad(((0, 1), (0, 0))).reduce("ADD", (1,)) * 2))).sink)
    assert text.splitlines() == [
        "  0 SINK over R0:5 LOOP, R1:6 REDUCE", "  1   STORE data0[R0]", "  2     MUL dtypes.float",
        "  3       FOLD ADD dtypes.float over R1:6 REDUCE",
        "  4         LOAD data1[R0*6+R1] dtypes.float if R0<4",
        "  5       2.0"]


def test_loads_inside_indices_are_shown() -> None:
    x, i = param(1, (5, 3), F32), param(2, (4, 3), I32)
    text = kernel_graph_text(lower(sink(x.gather(i, 0))))
    assert "LOAD data1[" in text and "LOAD data2[" in text


def test_printing_needs_no_recursion() -> None:
    node = x = param(1, (2,), F32)
    for _ in range(3000):
        node = node.maximum(x)
    assert len(kernel_tree(sink(node)).splitlines()) == 3000 * 2 + 2
    assert len(listing_rows(node)) == 3001
    i = UOp.variable("i", 0, 3)
    deep = i
    for _ in range(3000):
        deep = deep.maximum(i)
    assert len(expression(deep)) < 400
