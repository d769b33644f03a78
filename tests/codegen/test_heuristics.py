"""What the model chooses: structures by the shape of memory, never by the shape of a problem."""
from __future__ import annotations

import pytest

from tests.codegen.test_estimate import TARGET, kernel, matmul, param
from tinsmith.codegen.heuristics import choose_opts
from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.ir import UOp


def chosen(*values: UOp) -> Kernel:
    k = kernel(*values)
    choose_opts(k, TARGET)
    return k


def opts(k: Kernel, *kinds: OptOps) -> list[Opt]:
    return [o for o in k.opts if o.op in kinds]


@pytest.mark.parametrize(("sizes", "packed"), [
    ((256, 256, 1000), True),  # rows of 1 KiB: a panel of them would share a part of the cache's sets
    ((256, 264, 1000), False), ((64, 256, 128), False), ((8, 256, 4096), False), ((512, 2048, 512), True)])
def test_panels_whose_rows_crowd_the_cache_are_packed(sizes: tuple[int, int, int], packed: bool) -> None:
    assert bool(opts(chosen(matmul(*sizes)), OptOps.STAGE)) == packed


@pytest.mark.parametrize("sizes", [(256, 256, 256), (1024, 1024, 1024), (64, 1000, 333)])
def test_tiles_leave_registers_for_both_operands(sizes: tuple[int, int, int]) -> None:
    copies = [o.amt for o in opts(chosen(matmul(*sizes)), OptOps.UPCAST)]
    rows, vectors = copies[0], copies[1] if len(copies) > 1 else 1
    assert isinstance(rows, int) and isinstance(vectors, int)
    assert rows * vectors + vectors + 1 <= TARGET.vector_registers


def test_elementwise_work_that_streams_out_looks_ahead() -> None:
    def ahead(size: int) -> list[Opt]:
        x, y = (param(n, (size,)) for n in (1, 2))
        return opts(chosen((x * y).alu("EXP")), OptOps.HINT)
    assert [o.axis for o in ahead(1 << 24)] == [None, 0, 1] and not ahead(1 << 16)
