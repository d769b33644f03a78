"""What a way to run a kernel takes, in cycles of the busiest core, by what they are spent on.

Generators describe a way: the steps of its tiles, and how many of what moves beside them. Only this file knows what
these take, from the rows of the target: so all ways have one price, and none is touched to have it.
"""
from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tinsmith.codegen.render.base import Target
from tinsmith.codegen.roles import count_of, range_size
from tinsmith.codegen.tuning import stride_of
from tinsmith.ir import UOp
from tinsmith.ir.layout import ROW_BYTES
from tinsmith.ir.linear import from_linear, linear_form
from tinsmith.ir.symbolic import is_made_of, values_over
from tinsmith.ir.units import MatrixUnit, Tile

Price = dict[str, float]
SEEN_VECTORS = 8  # of a range that is no constant step through memory: they tell for the others


class Steps(NamedTuple):
    """Steps of tiles through a sum, one after the other.

    Attributes:
        number: of the busiest core.
        products: cycles of a unit's multiplications in a step, ``fed``: those in which its operands come meanwhile,
            ``beside``: what is added to the longer of the two.
        speed: the share of this that is reached.
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
    """So many of what ``cost``, a field of ``TileCosts``, is the price of: with several prices, that of ``way``."""

    cost: str
    number: float
    way: int = 0


SPENT_ON = {"operands and results": ("scalar_line", "panel_vector", "as_it_lies", "widened",
                                     "result_row"),
            "stores across lanes": ("stored_across",), "results": ("result",),
            "packing": ("along", "across", "scattered", "copied", "unit_order")}
_PARTS = {cost: part for part, costs in SPENT_ON.items() for cost in costs}


def price(target: Target, steps: Steps | None = None, moved: Iterable[Moved] = (), slowed: float = 1.0) -> Price:
    """Cycles of steps and of what moves; ``slowed``: all of it takes so many times as long."""
    spent = {} if steps is None else {"products": slowed * steps.cycles}
    for m in moved:
        each = getattr(target.core.tile, m.cost)
        part = _PARTS[m.cost]
        spent[part] = spent.get(part, 0.0) + slowed * m.number * (each[m.way] if isinstance(each, tuple) else each)
    return spent


# *** loops of cores ***


def vector_steps(target: Target, number: float, rows: int, vectors: int) -> Steps:
    """Of a register tile: multiply-adds, and loads of a scalar for each row and of the vectors."""
    core = target.core
    least, beside = core.tile.step
    return Steps(number, rows * vectors / core.issue, max((rows + vectors) / core.issue, least), beside)


def unit_steps(number: float, unit: MatrixUnit, copies: tuple[int, int]) -> Steps:
    """Of a unit of one thread with tiles of sums side by side, each of which takes a row's or a column's operand."""
    products = math.prod(copies) * 2.0 * unit.m * unit.n * unit.k / unit.rate
    return Steps(number, products, sum(copies) * unit.load, speed=unit.efficiency)


def unit_results(target: Target, count: int, turned: int | None = None) -> Moved:
    """Results of a unit on their way from its tiles to memory, which does not run along columns where they are
    ``turned``, in blocks of so many rows and columns."""
    often = 1.0 if turned is None else next(often for side, often in target.core.tile.turned if turned >= side)
    return Moved("result", count * often)


def chain_price(target: Target, products: float, seen: float = 1.0, rescaled: bool = False,
                far: bool = False) -> Price:
    """Of contractions of computed operands: vectors of ``products``, of which masks leave a share to be ``seen``; with
    running sums that are ``rescaled``, or rows too ``far`` to stay in the second cache."""
    core, whole = target.core, products * seen / target.core.issue
    more = {"rescaling": core.rescaling - 1} if rescaled else {"rows beyond the cache": core.spilled - 1} if far else {}
    return {"products": whole} | {part: whole * share for part, share in more.items()}


def busiest(count: int, size: int, threads: int) -> float:
    """How much longer the busiest worker takes than if ``count`` vectors, which come in panels of ``size``, were shared
    out evenly.

    >>> busiest(16, 4, 2), busiest(12, 4, 2), busiest(9, 9, 2)
    (1.0, 1.3333333333333333, 1.0)
    """
    panels = -(-count // size)
    if panels == 1 or threads < 2:
        return 1.0  # the workers share the rows
    ends = [min(panels * n // threads * size, count) for n in range(threads + 1)]
    return max(b - a for a, b in pairwise(ends)) * threads / count


def lane_cycles(target: Target, lanes: int, loads: Sequence[UOp], stores: Sequence[UOp],
                ranges: Iterable[UOp]) -> dict[UOp | None, float]:
    """Cycles to read and write as many elements as a vector has, with lanes along each of some ranges, of which a short
    one fills a part of them, the cheapest first; None: one by one."""
    alone = access_cycles(target, lanes, loads, stores, None)
    found = {r: alone - (alone - access_cycles(target, lanes, loads, stores, r)) * min(1.0, range_size(r) / lanes)
             for r in ranges}
    return {**{r: found[r] for r in sorted(found, key=lambda r: found[r])}, None: alone}


def access_cycles(target: Target, lanes: int, loads: Sequence[UOp], stores: Sequence[UOp], r: UOp | None) -> float:
    """Cycles for a vector of ``lanes`` elements along ``r``, or as many one by one. Loads of few elements, which stay
    in registers or near, count for as much as they are."""
    core, most = target.core, max((count_of(n.src[1].ranges) for n in (*loads, *stores)), default=1)
    beyond = max(lanes - 1, 1)  # each lane but the first
    total = 0.0
    for n in loads:
        total += count_of(n.src[1].ranges) / most * (1 + core.reads[_kind(n.src[1], r, lanes)] * beyond)
    for n in stores:
        total += 1 + core.writes[_kind(n.src[1], r, lanes)] * beyond
    return round(total, 9)


def _kind(index: UOp, r: UOp | None, lanes: int) -> int:
    """How memory lies for vectors along ``r``, as ``Core.reads`` counts it."""
    if r is None:
        return 4
    stride = stride_of(index, r)
    if stride is None:
        near, stride = _in_vectors(index, r, lanes)
        if near and stride is None:
            return 2
    if stride in (0, 1):
        return 1 - stride
    return 2 if stride in (2, 4) else 3


def _in_vectors(index: UOp, r: UOp, lanes: int) -> tuple[bool, int | None]:
    """Whether the lanes of a vector along ``r`` share elements that lie side by side, as a window of two had them as
    its maximum, and their step if it is constant, as it is in blocks of whole vectors. The first few vectors tell."""
    own = {t: factor for t, factor in linear_form(index)[0].items() if r in t.ranges}
    if not all(is_made_of(t, r) for t in own):
        return False, None
    positions = np.array(values_over(from_linear(own, 0, index), r, min(r.vmax + 1, SEEN_VECTORS * lanes)))
    size = min(lanes, len(positions))
    vectors = positions[: len(positions) // size * size].reshape(-1, size)
    steps = np.unique(np.diff(vectors))
    return bool((np.ptp(vectors, axis=1) < size).all()), int(steps[0]) if len(steps) == 1 else None


def row_price(target: Target, vectors: float, cycles: float, stored: float, loops: float, rows: float,
              chain: float = 1, together: int = 1, far: bool = False) -> Price:
    """Of reductions: each of so many vectors takes ``cycles`` and its share of ``loops``, results take what is
    ``stored``; at the end of each of ``rows``, which ``together`` wait for, is a chain of operations. ``far``: what is
    read and written does not stay in the second cache."""
    core = target.core
    ends = rows * core.latency * chain / together
    return {"memory": vectors * cycles + stored, "loops": loops, "waiting": ends} | (
        {"rows apart": core.apart[far] * vectors} if together > 1 else {})


def step_price(target: Target, steps: float, lanes: int, chains: int = 0) -> Price:
    """Of running values: steps combined in vectors of ``lanes``, or waiting for each other in several ``chains`` with
    lanes of their own."""
    each = target.core.latency / chains if chains else lanes.bit_length()
    return {"steps": steps * each / lanes}


# *** grids of blocks ***


def rate_of_core(unit: MatrixUnit, target: Target) -> float:
    """Multiplications and additions in a cycle of a core of a grid, which has several units for a warp each; those of
    several warps take all of them."""
    blocks = target.blocks
    if unit.emit == "muladd":
        return 2.0 * blocks.fma
    return unit.rate * (1 if unit.threads > (target.warp or blocks.warp) else blocks.units)


def waves_of(target: Target, sizes: Sequence[int], sides: Sequence[int], batch: int = 1) -> int:
    """How many tiles with such sides a core computes, one after the other, in a batch of results of such sizes."""
    return -(-batch * math.prod(-(-size // side) for size, side in zip(sizes, sides)) // target.cores)


def local_steps(target: Target, unit: MatrixUnit, threads: tuple[int, int], copies: tuple[int, int],
                depth: int, waves: int, length: int) -> Steps:
    """Of tiles whose operands pass through local memory, ``depth`` elements of the sum at a time.

    Args:
        threads: (or warps with the unit) along the rows and columns of a block's tile, ``copies``: products of each.
    """
    data = target.blocks
    own = copies[0] * unit.m, copies[1] * unit.n
    sides = threads[0] * own[0], threads[1] * own[1]
    words = (math.prod(threads) * sum(own) + 2 * sum(sides)) * unit.a.itemsize / 4
    products = 2 * math.prod(sides) / rate_of_core(unit, target) + data.copied * sum(sides) / data.fma
    warps = waves * math.prod(threads) * unit.threads / data.warp
    hidden = max(data.warps / warps, 1.0) ** data.hiding  # few warps wait for each other's results
    return Steps(waves * length * hidden, products, words / data.words, data.meeting / depth)


def staged_steps(target: Target, unit: MatrixUnit, tile: Tile, columns: int, waves: int, length: int,
                 results: float = 0.0, rows: int = 0) -> Steps:
    """Of a tile that a unit's row lists: rows below each other and so many columns, at the tile's share of its rate.

    Args:
        length: of the sum; ``results``: steps of it in which the unit waits for what follows.
        rows: of patches, that copies bring for a row's bytes of steps.
    """
    data, long = target.blocks, length + results
    if tile.turns:  # one group's results are stored while another's products are under way
        alone = data.alone * results
        long = max(length, (length + alone) / tile.turns) + alone / waves
    products = 2.0 * unit.m * tile.below * columns / rate_of_core(unit, target)
    return Steps(waves * long, products, beside=data.patch * rows * unit.a.itemsize / ROW_BYTES, speed=tile.speed)


def storing(target: Target, unit: MatrixUnit, after: int) -> float:
    """Steps of the sum that a staged unit does while results are stored, with so many operations on each."""
    share = unit.rate / max(u.rate for u in target.units)
    return (target.blocks.result + target.blocks.after * after) * share
