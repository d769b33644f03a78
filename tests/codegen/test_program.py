"""Compiled kernels: the same text and name in every process, launch information, and errors."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.codegen.running import HAS_C
from tinsmith.backend.device import Device
from tinsmith.codegen.compile_kernel import compile_kernel
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import ArgumentError
from tinsmith.core.settings import Context
from tinsmith.ir import Ops, UOp
from tinsmith.ir.uop import Window

ROOT = Path(__file__).parents[2]


def param(number: int, *shape: int) -> UOp:
    return UOp(Ops.PARAM, dtypes.float32, (), (number, shape))


def sinks() -> dict[str, UOp]:
    """Return one kernel of each kind."""
    x, y = param(1, 33, 17), param(2, 17, 19)
    product = x.reshape((33, 17, 1)).expand((33, 17, 19)) * y.reshape((1, 17, 19)).expand((33, 17, 19))
    centred = x - x.reduce("MAX", (1,)).expand((33, 17))
    line = param(1, 1, 1, 3, 20, 1).expand((1, 4, 3, 20, 3)).window(Window(3, 4, 1, 1, 20, 18))
    weights = param(2, 1, 4, 3, 1, 3).expand((1, 4, 3, 18, 3))
    return {
        "elementwise": UOp(Ops.SINK, None, ((x + x).pad(((1, 2), (0, 3))),)),
        "matmul": UOp(Ops.SINK, None, (product.reduce("ADD", (1,)),)),
        "rows": UOp(Ops.SINK, None, ((centred * centred).reduce("ADD", (1,)),)),
        "convolution": UOp(Ops.SINK, None, ((line * weights).reduce("ADD", (2, 4)),)),
    }


def listing() -> str:
    """Return symbols and sources of all sample kernels, with the planner's opts."""
    devices = ["CPU", "PYTHON:V16", *(["CPU:C"] if HAS_C else [])]
    programs = [compile_kernel(s, Device[d].renderer) for s in sinks().values() for d in devices]
    return "\n".join(f"{p.symbol} {p.opts}\n{p.source}" for p in programs)


def test_another_process_writes_the_same_text() -> None:
    code = "from tests.codegen.test_program import listing; print(listing(), end='')"
    texts = set()
    for hash_seed in ("1", "2"):
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": hash_seed},
                              capture_output=True, text=True, check=True)
        texts.add(done.stdout)
    assert texts == {listing()}


def test_the_second_compilation_is_a_look_up() -> None:
    sink, renderer = sinks()["matmul"], Device["CPU"].renderer
    assert compile_kernel(sink, renderer) is compile_kernel(sink, renderer)
    with Context(NOOPT=1):
        assert compile_kernel(sink, renderer).opts == []


def test_what_a_launch_needs_to_know() -> None:
    n = UOp.variable("v0", 1, 8)
    x, y = param(1, 8, 4), param(3, 4)
    value = x.shrink(((0, n), (0, 4))).reduce("ADD", (0,)) * y.reshape((1, 4))
    kernel = compile_kernel(UOp(Ops.SINK, None, (value,)), Device["CPU"].renderer, ())
    assert kernel.buffers == [0, 1, 3]
    assert kernel.variables == ["v0"]
    assert kernel.written == {0}
    assert kernel.serial
    assert kernel.symbol.startswith(kernel.name + "_")
    assert kernel.symbol in kernel.source


def test_operations_and_bytes() -> None:
    kernel = compile_kernel(sinks()["matmul"], Device["CPU"].renderer)
    assert kernel.ops == 2 * 33 * 17 * 19
    assert kernel.bytes == 4 * (33 * 17 + 17 * 19 + 33 * 19)


def test_a_short_range_is_written_out_where_the_work_does_not_depend_on_it() -> None:
    x, y = (param(n, 256) for n in (1, 2))
    for value in (work := x, y):
        for _ in range(20):
            work = work * x + value
    which = UOp.iota(2).reshape((2, 1)).expand((2, 256)).cast(dtypes.float32)
    sink = UOp(Ops.SINK, None, (work.reshape((1, 256)).expand((2, 256)) * which,))
    kernel = compile_kernel(sink, Device["CPU"].renderer)
    assert sum(u.op is Ops.MUL for u in kernel.uops) < 50
    assert sum(u.op is Ops.STORE for u in kernel.uops) == 2


def test_the_ranges_of_an_output_are_those_before_its_reshapes() -> None:
    x = param(1, 4, 6, 8)
    body = (x.permute((1, 0, 2)) + x.permute((1, 0, 2))).reshape((6, 4, 2, 4))
    same = (x.permute((1, 0, 2)) + x.permute((1, 0, 2)))
    renderer = Device["CPU"].renderer
    sources = [compile_kernel(UOp(Ops.SINK, None, (v,)), renderer).source for v in (body, same)]
    assert sources[0] == sources[1]


def test_what_passes_over_a_row_compute_again_is_kept_if_it_is_dear() -> None:
    x = param(1, 5, 256)
    for power, kept in (((x - x.reduce("MAX", (1,)).expand(x.shape)).alu("EXP"), 1),
                        (x - x.reduce("MAX", (1,)).expand(x.shape), 0)):
        sink = UOp(Ops.SINK, None, (power / power.reduce("ADD", (1,)).expand(x.shape),))
        kernel = compile_kernel(sink, Device["CPU"].renderer)
        assert sum(u.op is Ops.DEFINE_LOCAL for u in kernel.uops) == kept


def test_gathered_rows_are_read_along_memory() -> None:
    table, rows = param(1, 300, 512), UOp(Ops.PARAM, dtypes.int32, (), (2, (200,)))
    kernel = compile_kernel(UOp(Ops.SINK, None, (table.gather(rows.reshape((200, 1)).expand((200, 512)), 0),)),
                            Device["CPU"].renderer)
    index = next(n for n, u in enumerate(kernel.uops) if u.op is Ops.LOAD and u.dtype is dtypes.int32)
    innermost = max(n for n, u in enumerate(kernel.uops) if u.op is Ops.RANGE)
    assert index < innermost, "a row's number is read before the loop along the row"


def test_threads_make_a_kernel_parallel() -> None:
    kernel = compile_kernel(sinks()["matmul"], Device["CPU"].renderer, [Opt(OptOps.THREAD, 0)])
    assert not kernel.serial


@pytest.mark.parametrize("opt", [Opt(OptOps.UPCAST, 9, 2), Opt(OptOps.UPCAST, None, 2), Opt(OptOps.UPCAST, 0, 1),
                                 Opt(OptOps.VECTOR, 0, 3), Opt(OptOps.TILE, 2, 5), Opt(OptOps.UNROLL, 0, 3),
                                 Opt(OptOps.SWAP, 0, 2), Opt(OptOps.MERGE, 0, 0), Opt(OptOps.STAGE, 7, ()),
                                 Opt(OptOps.STAGE, 0, (9,)), Opt(OptOps.ORDER, None, (0, 0, 1)), Opt(OptOps.THREAD, 1),
                                 Opt(OptOps.PADTO, 0, 0), Opt(OptOps.LOCAL, 0, 4)], ids=repr)
def test_illegal_opts_say_why(opt: Opt) -> None:
    with pytest.raises(ArgumentError, match="Opt"):
        compile_kernel(sinks()["matmul"], Device["CPU"].renderer, [opt])
