"""UOp: interning, release of unused nodes, and graphs deeper than any recursion limit."""
from __future__ import annotations

import copy
import gc
import math
import pickle
import struct
import sys
import threading
import weakref

import numpy as np
import pytest

from tests.ir.helpers import param
from tinsmith.backend.memory import Buffer
from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops, UOp, uop
from tinsmith.ir.uop import substitute, toposort

DEEP = 100_000


def chain(length: int, name: str = "x") -> UOp:
    x = UOp.variable(name, 0, 1000)
    node = x
    for i in range(length):
        node = UOp(Ops.MAX if i % 2 else Ops.ADD, None, (node, x))
    return node


def test_equal_nodes_are_one_object() -> None:
    a, b = param(0, (2,)), param(1, (2,))
    assert a + b is a + b and a + b is not b + a
    assert UOp.const(dtypes.int32, 1) is not UOp.const(dtypes.bool, True)
    assert UOp.const(dtypes.float32, 1) is UOp.const(dtypes.float32, 1.0)


def test_constants_are_kept_apart_by_their_bits() -> None:
    zero, minus = UOp.const(dtypes.float32, 0.0), UOp.const(dtypes.float32, -0.0)
    assert zero is not minus and math.copysign(1, minus.arg) == -1
    assert UOp.const(dtypes.float32, math.nan) is UOp.const(dtypes.float32, -math.nan)


def test_origin_is_no_part_of_identity() -> None:
    node = param(0, (2,)) * 7
    node.origin = (("mul", "model.py", 3),)
    assert param(0, (2,)) * 7 is node
    assert node.replace(op=Ops.ADD).origin == node.origin


def test_ill_formed_nodes_are_refused() -> None:
    a, b = param(0, (2,), dtypes.float32), param(1, (2,), dtypes.int32)
    with pytest.raises(TypeError, match="different dtypes"):
        a + b
    with pytest.raises(TypeError, match="takes 2 sources, got 1"):
        UOp(Ops.ADD, None, (a,))
    with pytest.raises(TypeError, match="needs a dtype"):
        UOp(Ops.CAST, None, (a,))
    with pytest.raises(TypeError, match="WHERE takes"):
        a.where(a, a)


def test_table_empties() -> None:
    gc.collect()  # nodes in cycles of other tests would die meanwhile
    uop.forget_dead()
    before = len(uop.interned)
    node = chain(1000, "empties")
    node.simplify()
    assert len(uop.interned) > before + 900
    del node
    uop.forget_dead()
    assert len(uop.interned) <= before + 1


def test_dead_node_is_made_anew() -> None:
    for _ in range(100):
        node = UOp.variable("anew", 0, 3) + 1
        assert node.src[0].arg == ("anew", 0, 3)
        del node


def test_deep_graph_needs_no_recursion() -> None:
    limit = sys.getrecursionlimit()
    node = chain(DEEP, "deep")
    order = toposort(node)
    assert len(order) == DEEP + 1 and order[-1] is node
    assert node.shape == () and node.bounds[0] == 0 and node.ranges == frozenset() and node.device is None
    x = order[0]
    assert len(toposort(node.substitute({x: UOp.variable("other", 0, 9)}))) == DEEP + 1
    assert len(repr(node)) < 500
    assert sys.getrecursionlimit() == limit


def test_deep_graph_is_pickled() -> None:
    node = chain(DEEP, "pickled")
    data = pickle.dumps(node)
    assert pickle.loads(data) is node
    assert copy.deepcopy(node) is node


def test_deep_graph_is_deleted() -> None:
    uop.forget_dead()
    before = len(uop.interned)
    node = chain(DEEP, "deleted")
    del node
    uop.forget_dead()
    assert len(uop.interned) <= before + 1


def test_pickle_keeps_shared_nodes_and_arguments() -> None:
    n = UOp.variable("n", 1, 9)
    x = param(0, (4, 1), dtypes.float32).expand((4, n))  # type: ignore[arg-type]
    node = x.reduce("ADD", (0,)) + x.reduce("ADD", (0,)) * 2
    assert pickle.loads(pickle.dumps(node)) is node
    assert pickle.loads(pickle.dumps([node, x])) == [node, x]
    assert pickle.loads(pickle.dumps(Ops.ADD)) is Ops.ADD


def test_substitute_replaces_in_several_graphs() -> None:
    a, b, c = (param(i, (2,)) for i in range(3))
    assert substitute([a + b, a, c], {a: c}) == [c + b, c, c]


def test_interning_from_threads() -> None:
    made: list[list[UOp]] = [[] for _ in range(4)]

    def work(mine: list[UOp]) -> None:
        mine += [UOp.variable(f"t{i}", 0, 9) + 1 for i in range(500)]

    threads = [threading.Thread(target=work, args=(m,)) for m in made]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(len({id(m[i]) for m in made}) == 1 for i in range(500))


def test_base_and_movement_shortcuts() -> None:
    x = param(0, (2, 3))
    assert x.reshape((3, 2)).permute((1, 0)).base is x
    assert x.reshape((2, 3)) is x and x.expand((2, 3)) is x and x.permute((0, 1)) is x and x.flip(()) is x
    assert x.pad(((0, 0), (0, 0))) is x and x.shrink(((0, 2), (0, 3))) is x and x.reduce("ADD", ()) is x


def test_float32_constants_are_rounded_as_numpy_rounds_them() -> None:
    values = [0.1, -0.0, 0.0, 1e-45, 7e-46, 1e39, -1e39, 3.4028235677973366e38, math.inf, -math.inf, math.nan]
    with np.errstate(over="ignore"):
        wanted = [struct.pack("d", float(np.float32(v))) for v in values]
    assert [struct.pack("d", float(dtypes.float32.as_const(v))) for v in values] == wanted


def test_a_node_lies_where_its_first_placed_source_does() -> None:
    near, far = (UOp(Ops.BUFFER, dtypes.float32, (), Buffer(device, 2, dtypes.float32)) for device in ("CPU", "CPU:1"))
    one = UOp.const(dtypes.float32, 1)
    assert one.device is None and (one + one).device is None
    assert (one.expand_to((2,)) + near).device == (near + far).device == "CPU"
    assert near.copy_to("CPU:1").device == (far * 2).reduce("ADD", (0,)).device == "CPU:1"
    assert UOp(Ops.SHARD, None, (near, far), (0, "CPU,CPU:1")).device == "CPU,CPU:1"


def test_bounds_of_a_shift() -> None:
    word = UOp(Ops.PARAM, dtypes.uint32, (), (0, ()))
    assert (word >> 8).bounds == (0, (1 << 24) - 1) and (word >> 40).bounds == (0, 0)
    assert (UOp.range(100, 0, None) >> 3).bounds == (0, 12)
    assert (UOp.const(dtypes.int32, 64) >> (word & 3).cast(dtypes.int32)).bounds == (8, 64)
    assert (UOp(Ops.PARAM, dtypes.int32, (), (0, ())) >> 8).vmin < 0


def test_spread_numbers_are_kept() -> None:
    x = UOp(Ops.PARAM, dtypes.float32, (), (0, (2, 3)))
    kept = weakref.ref(x.const_like(2.5))
    assert kept() is x.const_like(2.5) is not x.zeros(dtypes.int32)
    assert math.copysign(1, x.const_like(-0.0).base.arg) == -1 != math.copysign(1, x.const_like(0.0).base.arg)
    assert x.const_like(True).base.arg == 1.0 and x.const_like(math.nan) is x.const_like(math.nan)
