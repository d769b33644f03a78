"""Emission of histograms and ranks of keys that the threads of a block share, and of the scatter by rank (the opt
RANK, ``codegen/transform/thread_blocks.py``).

Each warp handles a contiguous piece of the steps, 32 at a time. MATCH returns the number of lower lanes with the same
key; the warp's counter of that key holds the count of earlier iterations. Then one thread per key sums the counters of
the warps. A store whose address is a base per key plus the rank is first exchanged in local memory, so that adjacent
threads store adjacent elements of one key (coalesced; Merrill and Grimshaw 2011). The key's thread loads the base for
all of them.
"""
from __future__ import annotations

from tinsmith.codegen.emit.emitter import Emitter
from tinsmith.codegen.emit.reductions import running_by_warps
from tinsmith.codegen.emit.scopes import Coords
from tinsmith.codegen.transform.thread_blocks import counted, exchanged, follows, place_of, step_of
from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.structure import Role, range_size


class CountWriter:
    """A statement with a shared count. ``thread`` is the range of the block's threads, ``turns`` the steps per thread.
    """

    def __init__(self, lin: Emitter, store: UOp, fold: UOp) -> None:
        count = counted(fold)
        assert count is not None
        self.lin, self.store, self.fold, self.count = lin, store, fold, count
        self.warp, self.threads = lin.kernel.target.warp, lin.block_size
        self.thread = next(r for r in lin.kernel.order if r.arg[1] is Role.LOCAL)
        line = lin.known((self.thread, ()))
        assert line is not None
        self.line, self.here = line, len(lin.scopes) - 1
        self.turns = range_size(count.steps) // self.threads
        self.copies: list[Coords] = list(lin.all_coords(store.ranges))
        self.counters = lin.local(dtypes.int32.ptr(), self.threads // self.warp * self.threads)

    def run(self) -> None:
        """Write the statement."""
        if self.here:
            self.lin.barrier()
        if self.count.before is None:
            self.count_all()
        else:
            self.rank_all()

    def statement(self, line: UOp) -> UOp:
        """Return the statement with its count replaced by ``line``."""
        if line.dtype is not self.fold.dtype:
            line = self.lin.combine(self.here, Ops.CAST, self.fold.dtype, [line])
        return self.store.substitute({self.fold: self.lin.named(line)})

    def index(self, line: UOp) -> UOp:
        return self.lin.combine(self.here, Ops.CAST, dtypes.index, [line])

    def add(self, a: UOp, b: UOp) -> UOp:
        return self.lin.combine(self.here, Ops.ADD, a.dtype, [a, b])

    def load(self, memory: UOp, at: UOp) -> UOp:
        line = self.lin.force(UOp(Ops.LOAD, memory.dtype.scalar, (memory, at)))
        self.lin.scopes[-1].values[line] = line
        return line

    def write(self, memory: UOp, at: UOp, value: UOp, *valid: UOp) -> None:
        self.lin.force(UOp(Ops.STORE, None, (memory, at, value, *valid)))

    def warp_barrier(self) -> None:
        self.lin.force(UOp(Ops.WARP_BARRIER, None, (self.counters,)))

    def count_all(self) -> None:
        """Count the keys; each thread stores the result of one key."""
        places = [step_of(self.thread, UOp.index(turn), self.turns, self.warp) for turn in range(self.turns)]
        self.turn_by_turn([self.lin.value(self.count.key.substitute({self.count.steps: p}).simplify())
                           for p in places])
        self.lin.store_as_usual(self.statement(self.over_warps()[0]))

    def turn_by_turn(self, keys: list[UOp]) -> tuple[list[UOp], list[UOp]]:
        """Update each warp's counters step by step. Return, per step, the counter's address and the number of earlier
        equal keys in the warp's piece."""
        lin, here = self.lin, self.here
        first = lin.raw((self.line // self.warp * self.threads).simplify(), here)
        zero = lin.emit(0, UOp.const(dtypes.int32, 0))
        for part in range(self.threads // self.warp):
            own = (first + part * self.warp + self.line % self.warp).simplify()
            self.write(self.counters, lin.raw(own, here), zero)
        places, ranks = [], []
        for key in keys:
            self.warp_barrier()
            at = self.add(first, self.index(key))
            both = lin.emit(here, UOp(Ops.MATCH, dtypes.int32.vec(2), (key,), (self.threads - 1).bit_length()))
            before, equal = (lin.emit(here, UOp(Ops.GEP, dtypes.int32, (both,), (lane,))) for lane in range(2))
            old = self.load(self.counters, at)
            last = lin.combine(here, Ops.CMPEQ, dtypes.bool, [self.add(before, UOp.const(dtypes.int32, 1)), equal])
            self.warp_barrier()
            self.write(self.counters, at, self.add(old, equal), last)
            places.append(at)
            ranks.append(self.add(old, before))
        lin.barrier([self.counters])
        return places, ranks

    def over_warps(self) -> tuple[UOp, list[UOp]]:
        """Return, for the key numbered like the thread, the total over all warps and the exclusive prefix of each warp.
        """
        warps = self.threads // self.warp
        parts = [self.load(self.counters, self.lin.raw(self.line + warp * self.threads, self.here))
                 for warp in range(warps)]
        total, before = parts[0], [self.lin.emit(0, UOp.const(dtypes.int32, 0))]
        for part in parts[1:]:
            before.append(total)
            total = self.add(total, part)
        return total, before

    def rank_all(self) -> None:
        """Rank every step and store its value; sorted by key through local memory if ``first_place`` finds a base per
        key."""
        lin, first = self.lin, self.first_place()
        # base address of the thread's key; its load is in flight while the keys are counted
        begin = None if first is None else lin.value(first)
        places, ranks = self.turn_by_turn([lin.value(self.count.asked, c) for c in self.copies])
        total, before = self.over_warps()
        if begin is not None:
            ahead = running_by_warps(lin, Ops.ADD, total, self.thread)[0]
            before = [self.add(part, ahead) for part in before]
            begins = lin.local(begin.dtype.ptr(), self.threads)
            self.write(begins, self.line, lin.combine(self.here, Ops.SUB, begin.dtype, [begin, ahead]))
        for warp, part in enumerate(before):
            self.write(self.counters, lin.raw(self.line + warp * self.threads, self.here), part)
        lin.barrier([self.counters, *([] if begin is None else [begins])])
        wholes = [self.add(rank, self.load(self.counters, at)) for rank, at in zip(ranks, places)]
        if begin is not None:
            return self.exchange(wholes, begins)
        for whole, coords in zip(wholes, self.copies):
            lin.store_as_usual(self.statement(whole), coords)

    def first_place(self) -> UOp | None:
        """Return the base address of the key numbered like the thread; None if the address is not base[key] + rank."""
        key, mine = self.count.asked, UOp(Ops.CAST, self.count.asked.dtype, (self.thread,))
        place = place_of(self.store)
        if not exchanged(self.store) or place.dtype is not dtypes.int32 or self.fold not in place.src:
            return None
        steps = {self.thread, *(r for r, _ in self.copies[0])}
        rest = next(s for s in place.src if s is not self.fold)
        others = [rest.substitute({key: UOp.const(key.dtype, 0)})]
        others += [n.substitute({place: UOp.const(place.dtype, 0)}) for n in (self.store.src[1], *self.store.src[3:])]
        return None if any(steps & n.ranges for n in others) else rest.substitute({key: mine})

    def exchange(self, slots: list[UOp], begins: UOp) -> None:
        """Scatter values to ``slots`` of local memory, sorted by key, and store them from there coalesced."""
        lin, here, steps = self.lin, self.here, range_size(self.count.steps)
        memory, (_, index, value, *valid) = lin.memory(self.store.src[0], ()), self.store.src
        key, place, seen = self.count.asked, place_of(self.store), follows(self.count.asked, value)
        what = lin.local(value.dtype.ptr(), steps)
        whose = what if seen else lin.local(dtypes.int32.ptr(), steps)
        for slot, coords in zip(map(self.index, slots), self.copies):
            self.write(what, slot, lin.value(value, coords))
            if not seen:
                self.write(whose, slot, lin.combine(here, Ops.CAST, dtypes.int32, [lin.value(key, coords)]))
        lin.barrier()
        for turn in range(self.turns):
            slot = lin.raw((self.line + turn * self.threads).simplify(), here)
            moved = self.load(what, slot)
            own = lin.value(key.substitute({value: lin.named(moved)})) if seen else self.load(whose, slot)
            turned = lin.combine(here, Ops.CAST, dtypes.int32, [slot])
            at = {place: lin.named(self.add(self.load(begins, self.index(own)), turned))}
            guards = [g for v in valid if (g := lin.guard(v.substitute(at), ())) is not None]
            self.write(memory, lin.indexed(index.substitute(at), ()), moved, *guards)


def write_counts(lin: Emitter, store: UOp, fold: UOp) -> None:
    """Write a statement with a count that the threads of a block share."""
    CountWriter(lin, store, fold).run()
