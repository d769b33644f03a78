"""Emits blocks of threads: the numbers that the device supplies, shared stages with barriers, idle threads."""
from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod

from tinsmith.codegen.blocks import grid_axes, thread_axes
from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.roles import THREADS, Role, digits, range_size
from tinsmith.codegen.scopes import Coords, ScopeWriter
from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops, UOp


class BlockWriter(ScopeWriter):
    """What a thread of a grid needs around the lines of a kernel.

    Thread ranges are open from the start: ``gidx0``, ``lidx0`` are their values. What depends on no thread is computed
    by all of them alike, but only the first thread of each axis that a store does not depend on stores it.
    """

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.threads_of: list[tuple[frozenset[UOp], UOp]] = []  # the ranges that each axis of a block stands for
        self.role: UOp | None = None  # the number of a thread's warps, where those behind the last fill rings
        self.group: UOp | None = None  # of readers that take turns: the number of a thread's group
        self.turn: UOp | None = None  # of a block that goes through several places of the grid
        self.own_turn: UOp | None = None  # the same, counted by each group
        self._whole_block: UOp | None = None
        self._barriers = self._own_ranges = 0

    def open_grid(self) -> None:
        """Names for the block's place in the grid and the thread's place in the block."""
        for number, axis in enumerate(grid_axes(self.kernel) if not self.kernel.blocks else ()):
            if axis:
                self.name_places(axis, self.special(f"gidx{number}", prod(range_size(r) for r in axis)), 0)
        axes = thread_axes(self.kernel)
        for product in self.kernel.products[:1]:
            if product.arg.threads > 1:  # the lanes of a warp: each stores the elements that its unit gives it
                mine = frozenset(r for p in self.kernel.products for r in p.src[2:])
                self.threads_of.append((mine, self.special("lidx0", product.arg.threads)))
        first = len(self.threads_of)
        if self.kernel.roles or len(axes) + first > 3:
            size, groups = prod(range_size(axis[0]) for axis in axes), self.kernel.tiles_in_turn
            total = self.special(f"lidx{first}", size * groups + self.kernel.roles)
            self.role, self.group = total if self.kernel.roles else None, total if groups > 1 else None
            for axis, own in zip(axes, digits([axis[0] for axis in axes], total).values()):
                self.name_thread(axis, self.raw(own if len(axes) > 1 else total))
        else:
            for number, axis in enumerate(axes, first):
                self.name_thread(axis, self.special(f"lidx{number}", range_size(axis[0])))

    def special(self, name: str, size: int) -> UOp:
        return self.emit(0, UOp(Ops.SPECIAL, dtypes.index, (), (name, size)))

    def known_as(self, r: UOp, line: UOp) -> None:
        self.scopes[0].ranges.add(r)
        self.scopes[0].values[(r, ())] = line

    def name_thread(self, axis: list[UOp], line: UOp) -> None:
        self.threads_of.append((frozenset(axis), line))
        for r in axis:
            self.known_as(r, line)

    def places(self, write: Callable[[], None], group: UOp | None = None) -> None:
        """Write what a block does for its place in the grid, or for one place after the other; a group that takes turns
        with others does so for the places that are its own."""
        axis = [r for ranges in grid_axes(self.kernel) for r in ranges]
        if not self.kernel.blocks or not axis:
            return write()
        total = prod(range_size(r) for r in axis)
        blocks = min(self.kernel.blocks, total)
        first = self.special("gidx0", blocks)
        groups, mine = (1, UOp.index(0)) if group is None else (self.kernel.turns, group)
        turn = self.new_range(-(-total // blocks), Role.LOOP)
        if turn.op is not Ops.RANGE:
            self.name_places(axis, first, 0)
            return write()
        turns = (UOp.index(total + blocks - 1) - first) // blocks
        self.open(turn, self.raw(UOp.index(0)), self.raw((turns + (groups - 1) - mine).simplify() // groups))
        self.turn, self.own_turn = (turn * groups + mine).simplify(), turn
        line = self.scopes[-1].lines[0]
        self.name_places(axis, (line if group is None else line * groups + mine) * blocks + first, self.here)
        write()
        self.turn = None
        return self.close()

    def name_places(self, axis: list[UOp], total: UOp, depth: int) -> None:
        """Names for the ranges of the grid, as digits of a place's number."""
        pitch = 1
        for r in axis:
            line = total if len(axis) == 1 else (total // pitch % range_size(r))
            if r.arg[0] in self.kernel.backwards:
                line = (line * -1 + (range_size(r) - 1)).simplify()
            self.scopes[depth].ranges.add(r)
            self.scopes[depth].values[(r, ())] = self.raw(line, depth)
            pitch *= range_size(r)

    @contextmanager
    def only(self, condition: UOp, registers: int | None = None, whole: bool = False) -> Iterator[None]:
        """What is written here is done by some threads alone; ``whole``: with all that they compute for it."""
        before = self.outermost
        with self.branch(condition, registers=registers):
            self.outermost = self.here if whole else before
            yield
            self.outermost = before

    @property
    def block_size(self) -> int:
        return prod(self.threads_along(axis, line) for axis, line in self.threads_of)

    def threads_along(self, axis: frozenset[UOp], line: UOp) -> int:
        """The size of an axis of the block."""
        own = line.op is Ops.SPECIAL and line is not self.role
        return int(line.arg[1]) if own else int(range_size(next(iter(axis))))

    # *** stores of one thread ***

    @contextmanager
    def first_threads(self, node: UOp) -> Iterator[None]:
        """An IF around what must be stored once although all threads have come here."""
        idle = [line for axis, line in self.threads_of if axis.isdisjoint(node.ranges)]
        if not idle or self._whole_block in node.ranges:
            yield
            return
        condition = functools.reduce(UOp.__and__, (line.eq(0) for line in idle))
        with self.branch(self.raw(condition)):
            yield

    # *** local memory that a block shares ***

    @property
    def whole_block(self) -> UOp:
        """A range that is the thread's number in its block."""
        if self._whole_block is None:
            number: UOp | None = None
            pitch = 1
            for axis, line in self.threads_of:
                part = line * pitch if pitch > 1 else line
                number = part if number is None else number + part
                pitch *= self.threads_along(axis, line)
            self._whole_block = self.new_range(pitch, Role.LOCAL)
            self.known_as(self._whole_block, self.raw(number if number is not None else UOp.index(0)))
        return self._whole_block

    def new_range(self, size: int, role: Role) -> UOp:
        """A range of the linearizer's own, further in than all of the kernel's."""
        self._own_ranges += 1
        number = self.kernel.count + self._own_ranges
        self.position[number] = len(self.kernel.order) + self._own_ranges
        return UOp.range(size, number, role)

    def barrier(self, slots: Sequence[UOp] = ()) -> None:
        """Wait for all threads of the block; ``barriers.py`` leaves out what is one too many, but none that orders
        ``slots``: those of a ring, or counters of warps."""
        self.force(UOp(Ops.BARRIER, None, tuple(slots), self._barriers))
        self._barriers += 1

    def fill_shared(self, node: UOp, fill: UOp, coords: Coords) -> None:
        """Fill a stage of a block between barriers: what others still read is not written, what is read is there."""
        self.barrier()
        threads = any(r.arg[1] in THREADS for r in node.src[1:])
        self.fill([fill if threads or self.block_size == 1 else self.distributed(node, fill)], coords)
        self.barrier()

    def distributed(self, node: UOp, fill: UOp, turn: Role = Role.LOOP) -> UOp:
        """The elements of a stage shared out among all threads, neighbours to neighbours in the memory copied from. The
        turns that a thread takes are a loop, or copies."""
        load = next((n for n in fill.toposort() if n.op is Ops.LOAD), None)
        loops = [r for r in reversed(node.src[1:]) if not r.arg[1].expanded]
        if load is not None:
            loops.sort(key=lambda r: _stride(load.src[1], r))
        elements, threads = prod(range_size(r) for r in loops), self.block_size
        turns = -(-elements // threads)
        element: UOp = self.whole_block
        if turns > 1:
            element = self.new_range(turns, turn) * threads + element
        offset, value = (fill.src[n].substitute(digits(loops, element)).simplify() for n in (1, 2))
        valid = (element.lt(elements),) if elements % threads else ()
        return UOp(Ops.STORE, None, (fill.src[0], offset, value, *valid))

    def fill(self, body: list[UOp], coords: Coords) -> None:
        """Store every element of a stage."""
        raise NotImplementedError


def _stride(index: UOp, r: UOp) -> float:
    """How far apart neighbours along a range are, on an average of the first few."""
    last = min(int(range_size(r)) - 1, 15)
    ends = [index.substitute({x: UOp.index(last * (x is r)) for x in index.ranges}).simplify() for last in (0, last)]
    return abs(ends[1].arg - ends[0].arg) / max(last, 1) if all(e.is_const for e in ends) else 0.0
