"""The analytic cost model of candidates: cycles of the busiest core, by cause.

Generators describe a candidate as the steps of its tiles (``TileSteps``) and the data moved besides (``Moved``). Only
this
module converts these to cycles, with the costs of the target, so that all candidates are priced alike without applying
them.
"""
from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tinsmith.codegen.planner.candidate import power_of_two, stride_of
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.sizes import from_linear, linear_form
from tinsmith.ir.algebra.symbolic import is_made_of, values_over
from tinsmith.ir.matrix_unit import ROW_BYTES, MatrixUnit, UnitTile
from tinsmith.ir.structure import Role, count_of, range_size
from tinsmith.ir.uop import toposort
from tinsmith.target.cpu_model import CpuModel
from tinsmith.target.target import Target

Price = dict[str, float]

SEEN_VECTORS = 8  # vectors that are inspected along a range whose stride is not constant


class TileSteps(NamedTuple):
    """The steps of tiles through a sum, one after the other.

    Attributes:
        number: number of steps of the busiest core.
        products: cycles of the multiply-adds of one step.
        fed: cycles to load the operands of one step; loads overlap with ``products``.
        beside: cycles of one step that overlap neither with products nor with loads.
        speed: the fraction of the peak rate that is reached.
    """

    number: float
    products: float
    fed: float = 0.0
    beside: float = 0.0
    speed: float = 1.0

    @property
    def cycles(self) -> float:
        return self.number * (max(self.products, self.fed) + self.beside) / self.speed


class Moved(NamedTuple):
    """``number`` operations, each costing the `TileCosts` field named ``cost``, or its entry ``way`` if it is a
    tuple."""

    cost: str
    number: float
    way: int = 0

SPENT_ON = {"loads and stores": ("scalar_line", "conflict", "panel_vector", "as_it_lies", "widened",
                                     "result_row"),
            "strided stores": ("stored_across",), "results": ("result",),
            "computed operands": ("operation",),
            "packing": ("along", "across", "scattered", "copied", "unit_order")}

_PARTS = {cost: part for part, costs in SPENT_ON.items() for cost in costs}


def price(target: Target, steps: TileSteps | None = None, moved: Iterable[Moved] = (), slowed: float = 1.0) -> Price:
    """Return the cycles of ``steps`` and of the data in ``moved``, by cause, all multiplied by ``slowed``."""
    spent = {} if steps is None else {"products": slowed * steps.cycles}
    for m in moved:
        each = getattr(target.core.tile, m.cost)
        part = _PARTS[m.cost]
        spent[part] = spent.get(part, 0.0) + slowed * m.number * (each[m.way] if isinstance(each, tuple) else each)
    return spent


# *** CPU ***
def vector_steps(target: Target, number: float, rows: int, vectors: int) -> TileSteps:
    """Return the steps of a register tile of ``rows`` × ``vectors`` accumulators: per step one scalar load for each
    row, one vector load for each vector, and a multiply-add for each accumulator."""
    core = target.core
    least, beside = core.tile.step
    return TileSteps(number, rows * vectors / core.issue, max((rows + vectors) / core.issue, least), beside)


def unit_steps(number: float, unit: MatrixUnit, copies: tuple[int, int]) -> TileSteps:
    """Return the steps of a one-thread matrix unit with ``copies`` (rows, columns) of its tile: per step one operand
    load for each row and for each column of tiles."""
    products = math.prod(copies) * 2.0 * unit.m * unit.n * unit.k / unit.rate
    return TileSteps(number, products, sum(copies) * unit.load, speed=unit.efficiency)


def unit_results(target: Target, count: int, turned: int | None = None) -> Moved:
    """Return the cost of storing ``count`` results of a unit. If memory is not contiguous along its columns, ``turned``
    is the side of the blocks that are transposed in registers first."""
    often = 1.0 if turned is None else next(often for side, often in target.core.tile.turned if turned >= side)
    return Moved("result", count * often)


def chain_price(target: Target, products: float, seen: float = 1.0, rescaled: bool = False,
                far: bool = False) -> Price:
    """Return the price of contractions of computed operands (back-to-back GEMM).

    Args:
        products: vectors of multiply-adds.
        seen: the fraction of them that masks leave.
        rescaled: running sums are rescaled after every block (online softmax).
        far: rows are too large to stay in the second cache.
    """
    core, whole = target.core, products * seen / target.core.issue
    more = {"rescaling": core.rescaling - 1} if rescaled else {"rows larger than L2": core.spilled - 1} if far else {}
    return {"products": whole} | {part: whole * share for part, share in more.items()}


def busiest(count: int, size: int, threads: int) -> float:
    """Return the load imbalance (slowest worker / mean) of ``count`` vectors split into panels of ``size`` over
    ``threads`` workers.

    >>> busiest(16, 4, 2), busiest(12, 4, 2), busiest(9, 9, 2)
    (1.0, 1.3333333333333333, 1.0)
    """
    panels = -(-count // size)
    if panels == 1 or threads < 2:
        return 1.0  # a single panel: the workers split the rows instead
    ends = [min(panels * n // threads * size, count) for n in range(threads + 1)]
    return max(b - a for a, b in pairwise(ends)) * threads / count


def lane_cycles(target: Target, lanes: int, loads: Sequence[UOp], stores: Sequence[UOp],
                ranges: Iterable[UOp], work: float = 0.0, shared: bool = False) -> dict[UOp | None, float]:
    """Return the cycles to load, compute and store one vector of elements, by the range that the lanes run along, the
    cheapest first; the key None is for scalars. A range shorter than ``lanes`` needs more vectors.

    Args:
        work: operations per element.
        shared: register copies read the elements between the lanes.
    """
    alone = access_cycles(target, lanes, loads, stores, None) + lanes * work / target.core.issue
    found = dict[UOp | None, float]()
    for r in ranges:
        own = min(lanes, power_of_two(range_size(r)))
        each = access_cycles(target, own, loads, stores, r, shared) + work / target.core.issue
        found[r] = min(each * max(lanes / range_size(r), 1.0), alone)
    return {**{r: found[r] for r in sorted(found, key=lambda r: found[r])}, None: alone}


def access_cycles(target: Target, lanes: int, loads: Sequence[UOp], stores: Sequence[UOp], r: UOp | None,
                  shared: bool = False) -> float:
    """Return the cycles to load and store ``lanes`` elements, as a vector along ``r`` or, for None, one by one. A load
    is weighted by its number of elements relative to the largest access, because a few elements stay in registers or in
    the first cache; but lanes that are far apart are collected in each step of a reduction. Lanes at a close stride
    need as many vectors as the stride, unless copies have ``shared`` them."""
    core, most = target.core, max((count_of(n.src[1].ranges) for n in (*loads, *stores)), default=1)
    beyond = max(lanes - 1, 1)  # lanes after the first
    total = 0.0
    for n in loads:
        kind = _kind(core, n.src[1], r, lanes)
        apart = stride_of(n.src[1], r) if kind == 2 and r is not None and not shared else None
        more = core.reads[kind] * (1 if apart is None else apart - 1)
        each = kind == 3 and any(t.arg[1] is Role.REDUCE for t in n.src[1].ranges)
        total += (1.0 if each else count_of(n.src[1].ranges) / most) * (1 + more * beyond)
    for n in stores:
        total += 1 + core.writes[_kind(core, n.src[1], r, lanes)] * beyond
    return round(total, 9)


def loads_of(operand: UOp) -> list[UOp]:
    """Return the loads of an operand, without those that only fill stages."""
    return [n for n in toposort(operand, lambda n: n.op is not Ops.STAGE) if n.op is Ops.LOAD]


def operations(operand: UOp) -> int:
    """Return the float operations to compute an operand from its loads; each load after the first counts as one."""
    functions = [n for n in toposort(operand) if n.op.alu and n.dtype.is_float and n.op is not Ops.CAST]
    return sum(n.op.cost for n in functions) + max(len(loads_of(operand)) - 1, 0)


def _kind(core: CpuModel, index: UOp, r: UOp | None, lanes: int) -> int:
    """Return the position in ``CpuModel.reads`` of an access pattern along ``r``: 0 contiguous, 1 broadcast (stride 0),
    2 a close stride, or all lanes within ``lanes`` neighbours, 3 any other stride, 4 scalar."""
    if r is None:
        return 4
    stride = stride_of(index, r)
    if stride is None:
        near, stride = _in_vectors(index, r, lanes)
        if near and stride is None:
            return 2
    if stride in (0, 1):
        return 1 - stride
    return 2 if stride in core.close_strides else 3


def _in_vectors(index: UOp, r: UOp, lanes: int) -> tuple[bool, int | None]:
    """Return (True if the lanes of every vector along ``r`` lie within ``lanes`` neighbouring elements, as after the
    maximum of a window of two; the stride of the lanes, or None if it is not constant). The first ``SEEN_VECTORS``
    vectors decide."""
    own = {t: factor for t, factor in linear_form(index)[0].items() if r in t.ranges}
    if not all(is_made_of(t, r) for t in own):
        return False, None
    positions = np.array(values_over(from_linear(own, 0, index), r, min(r.vmax + 1, SEEN_VECTORS * lanes)))
    size = min(lanes, len(positions))
    vectors = positions[: len(positions) // size * size].reshape(-1, size)
    steps = np.unique(np.diff(vectors))
    return bool((np.ptp(vectors, axis=1) < size).all()), int(steps[0]) if len(steps) == 1 else None


def row_price(target: Target, vectors: float, cycles: float, stored: float, loops: float, rows: float,
              chain: float = 1, together: int = 1, far: bool = False, shared: bool = False) -> Price:
    """Return the price of reductions of rows.

    Args:
        vectors: number of vectors that are read.
        cycles: cycles to read one vector.
        stored: cycles to store the results.
        loops: cycles of loop overhead.
        rows: number of row ends; the lanes are combined at each.
        chain: dependent operations at a row's end.
        together: rows whose ends overlap.
        far: the data do not stay in the second cache.
        shared: the rows read the same vectors, one after the other, and share a loop.
    """
    core = target.core
    if shared:
        return row_price(target, vectors, cycles, stored, loops / together, rows / together, chain)
    ends = rows * core.latency * chain / together
    return {"memory": vectors * cycles + stored, "loops": loops, "waiting": ends} | (
        {"interleaved rows": core.apart[far] * vectors} if together > 1 else {})


def step_price(target: Target, steps: float, lanes: int, chains: int = 0) -> Price:
    """Return the price of a scan: steps combined within vectors of ``lanes``, or ``chains`` independent chains of
    dependent steps, each with ``lanes`` lanes."""
    each = target.core.latency / chains if chains else lanes.bit_length()
    return {"steps": steps * each / lanes}


# *** GPU: grids of thread blocks ***
def rate_of_core(unit: MatrixUnit, target: Target) -> float:
    """Return the multiplications and additions per cycle of one multiprocessor on ``unit``. A multiprocessor has
    ``GpuModel.units`` units of one warp each; a unit of several warps (wgmma) uses all of them."""
    blocks = target.blocks
    if unit.emit == "muladd":
        return 2.0 * blocks.fma
    return unit.rate * (1 if unit.threads > (target.warp or blocks.warp) else blocks.units)


def waves_of(target: Target, sizes: Sequence[int], sides: Sequence[int], batch: int = 1) -> int:
    """Return the number of tiles with sides ``sides`` that one core computes, one after the other, for ``batch``
    results of ``sizes``."""
    return -(-batch * math.prod(-(-size // side) for size, side in zip(sizes, sides)) // target.cores)


def local_steps(target: Target, unit: MatrixUnit, threads: tuple[int, int], copies: tuple[int, int],
                depth: int, waves: int, length: int, groups: int = 1) -> TileSteps:
    """Return the steps of a block's tile whose operands are staged in local memory, ``depth`` elements of the sum at a
    time.

    Args:
        threads: threads (warps for a unit of a warp) along the rows and columns of the tile.
        copies: products of each thread along the rows and columns.
        waves: tiles that one core computes, one after the other.
        length: elements of the sum.
        groups: groups of ``threads`` that share the sum.
    """
    data = target.blocks
    own = copies[0] * unit.m, copies[1] * unit.n
    sides = threads[0] * own[0], threads[1] * own[1]
    words = (math.prod(threads) * sum(own) + 2 * sum(sides)) * unit.a.itemsize / 4
    products = 2 * math.prod(sides) / rate_of_core(unit, target) + data.copied * sum(sides) / data.fma
    warps = waves * math.prod(threads) * unit.threads * groups / data.warp
    hidden = max(data.warps / warps, 1.0) ** data.hiding  # few warps per core hide less latency
    beside = data.meeting / depth
    if unit.emit == "muladd":  # a slice is loaded during the products of the one before it
        beside += max(data.latency / depth - max(products, words / data.words), 0.0) / waves
    return TileSteps(waves * length * hidden, products, words / data.words, beside)


def shared_sum(target: Target, results: int, groups: int) -> Price:
    """Return the price of adding the partial sums of ``groups`` groups of threads: all of them read all parts."""
    if groups == 1:
        return {}
    return {"shared sums": results * groups * (1 + groups) / target.blocks.words + 2 * target.blocks.meeting}


def staged_steps(target: Target, unit: MatrixUnit, tile: UnitTile, columns: int, waves: int, length: int,
                 results: float = 0.0, rows: int = 0, beside: float = 0.0) -> TileSteps:
    """Return the steps of a tile that reads its operands from a ring: ``tile.below`` unit tiles high and ``columns``
    wide, at the fraction ``tile.speed`` of the unit's rate.

    Args:
        length: elements of the sum.
        results: elements of the sum that the unit could process during the epilogue, while it is idle.
        rows: rows of patches (convolution) that bulk copies transfer for each ``ROW_BYTES`` of the sum.
        beside: elements of the sum that the unit could process while the epilogue waits for the values that it loads.
    """
    data, long = target.blocks, length + results + beside
    if tile.turns:  # ping-pong: one group's epilogue overlaps with another's products
        alone = data.alone * results + beside
        long = max(length, (length + alone) / tile.turns) + alone / waves
    products = 2.0 * unit.m * tile.below * columns / rate_of_core(unit, target)
    return TileSteps(waves * long, products, beside=data.patch * rows * unit.a.itemsize / ROW_BYTES, speed=tile.speed)


def storing(target: Target, unit: MatrixUnit, after: int) -> float:
    """Return the elements of the sum that a staged unit could process during the epilogue, with ``after`` operations
    per result."""
    return (target.blocks.result + target.blocks.after * after) * _share(target, unit)


def loading(target: Target, unit: MatrixUnit, nbytes: int) -> float:
    """Return the elements of the sum that a staged unit could process while the epilogue waits for ``nbytes`` that it
    loads per result."""
    return target.blocks.loaded * nbytes * _share(target, unit)


def _share(target: Target, unit: MatrixUnit) -> float:
    return unit.rate / max(u.rate for u in target.units)
