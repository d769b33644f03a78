"""Loops of elementwise kernels that read across lines: transposes, and what is fused with them."""
from __future__ import annotations

from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.opt import OptOps
from tinsmith.codegen.render.base import Target
from tinsmith.codegen.roles import range_size
from tinsmith.codegen.streams import SIDE
from tinsmith.codegen.tuning import order, split
from tinsmith.ir import UOp


def transpose_opts(kernel: Kernel, target: Target, lane_loop: UOp | None, along: UOp, lanes: int) -> None:
    """The loop along the lines that strided lanes read comes inside. Square blocks are transposed in registers, and
    lines of results are written in pairs: a loop that writes one line per row waits for each to be fetched first."""
    sizes = [n.dtype.itemsize for n in kernel.loads]
    last: list[UOp] = [along]
    if range_size(along) % SIDE == 0 and min(sizes) >= 4:
        left, _ = split(kernel, OptOps.UPCAST, along, SIDE)
        last = [left] if left is not None else []
        pair = target.core.pair_bytes // (lanes * max(sizes))
        whole = lane_loop is not None and lane_loop.arg[0] not in kernel.full and range_size(lane_loop) % pair == 0
        if lane_loop is not None and whole and pair > 1:
            last.append(split(kernel, OptOps.TILE, lane_loop, pair)[1])
    loops = [r for r in kernel.ranges if not r.arg[1].expanded]
    order(kernel, [*(r for r in loops if r not in last), *last])
