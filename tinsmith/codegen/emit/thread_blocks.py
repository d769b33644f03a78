"""Emission for thread blocks: grid and thread indices, stages in shared memory with barriers, single-thread stores."""
from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod

from tinsmith.codegen.emit.scopes import Coords, ScopeWriter
from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.transform.thread_blocks import grid_axes, thread_axes
from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.structure import THREADS, Role, digits, range_size


class BlockWriter(ScopeWriter):
    """A scope writer for kernels that run as a grid of thread blocks.

    The ranges of threads are open from the start; ``gidx0``, ``lidx0`` are their values. A value that depends on no
    thread range is computed by all threads; a store that does not depend on a block axis is executed only by the first
    thread along that axis.
    """

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        # per block axis: the ranges it stands for and its index line
        self.threads_of: list[tuple[frozenset[UOp], UOp]] = []
        # thread index incl. producer warps (the last warps, which fill rings); None without warp roles
        self.role: UOp | None = None
        # thread index from which a consumer warp finds its ping-pong group; None with one group
        self.group: UOp | None = None
        # number of the current tile of a persistent block's loop over the grid; None outside of the loop
        self.turn: UOp | None = None
        self.own_turn: UOp | None = None  # the same, counted per ping-pong group
        self._whole_block: UOp | None = None
        self._barriers = self._own_ranges = 0

    def open_grid(self) -> None:
        """Open the ranges of the grid (block indices) and of the block (thread indices)."""
        for number, axis in enumerate(grid_axes(self.kernel) if not self.kernel.blocks else ()):
            if axis:
                self.name_places(axis, self.special(f"gidx{number}", prod(range_size(r) for r in axis)), 0)
        axes = thread_axes(self.kernel)
        for product in self.kernel.products[:1]:
            # lanes of a warp: each lane stores the fragment elements that the matrix unit gives it
            if product.arg.threads > 1:
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
        """Write the body for the block's grid tile or, in a persistent block (``Kernel.blocks``), in a loop over its
        tiles. With ``group``, a ping-pong group computes every ``turns``-th of these tiles."""
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
        """Bind the ranges of a grid axis to the digits of the grid tile's number ``total``."""
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
        """Open a branch for the threads where ``condition`` holds. With ``whole``, values computed for it stay inside
        the branch, too."""
        before = self.outermost
        with self.branch(condition, registers=registers):
            self.outermost = self.here if whole else before
            yield
            self.outermost = before

    @property
    def block_size(self) -> int:
        return prod(self.threads_along(axis, line) for axis, line in self.threads_of)

    def threads_along(self, axis: frozenset[UOp], line: UOp) -> int:
        """Return the number of threads along one axis of the block."""
        own = line.op is Ops.SPECIAL and line is not self.role
        return int(line.arg[1]) if own else int(range_size(next(iter(axis))))

    # *** stores of one thread ***

    @contextmanager
    def first_threads(self, node: UOp) -> Iterator[None]:
        """Guard a store with an IF so that only one of the threads with equal values executes it."""
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
        """Return a range bound to the thread's linear index in its block."""
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
        """Return a new range of the linearizer, nested inside all of the kernel's ranges."""
        self._own_ranges += 1
        number = self.kernel.count + self._own_ranges
        self.position[number] = len(self.kernel.order) + self._own_ranges
        return UOp.range(size, number, role)

    def barrier(self, slots: Sequence[UOp] = ()) -> None:
        """Emit a barrier over all threads of the block. ``barriers.needed_barriers`` removes redundant ones, but none
        that names ``slots`` (the memory of a ring, or the counters of warps)."""
        self.force(UOp(Ops.BARRIER, None, tuple(slots), self._barriers))
        self._barriers += 1

    def fill_shared(self, node: UOp, fill: UOp, coords: Coords) -> None:
        """Fill a stage in shared memory between two barriers: after earlier reads of it and before later ones."""
        self.barrier()
        threads = any(r.arg[1] in THREADS for r in node.src[1:])
        self.fill([fill if threads or self.block_size == 1 else self.distributed(node, fill)], coords)
        self.barrier()

    def distributed(self, node: UOp, fill: UOp, turn: Role = Role.LOOP) -> UOp:
        """Distribute the elements of a stage over all threads of the block. Consecutive threads copy consecutive
        elements of the source memory (coalesced). Several elements per thread become a loop or copies, by the role
        ``turn``."""
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
    """Return the average memory distance of consecutive iterations of ``r``, from its first 16."""
    last = min(int(range_size(r)) - 1, 15)
    ends = [index.substitute({x: UOp.index(last * (x is r)) for x in index.ranges}).simplify() for last in (0, last)]
    return abs(ends[1].arg - ends[0].arg) / max(last, 1) if all(e.is_const for e in ends) else 0.0
