"""Emits counts of equal keys that the threads of a block share (``counts.py``), and stores at places that follow them.

Each warp goes through a piece of the steps, 32 at a time: MATCH says how many of its threads have the same key before
this one, the warp's counter of that key how many there were in earlier turns. Then a thread for each key adds up the
counters of the warps. What is stored at a place that depends on a rank is exchanged in local memory first, so that
threads beside each other store elements of one key, whose places are beside each other as well (Merrill and Grimshaw,
2011).
"""
from __future__ import annotations

from tinsmith.codegen.counts import counted, exchanged, step_of
from tinsmith.codegen.emit_warps import running_by_warps
from tinsmith.codegen.emitter import Emitter
from tinsmith.codegen.roles import Role, range_size
from tinsmith.codegen.scopes import Coords
from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops, UOp


class CountWriter:
    """One statement with a count. ``thread`` is the range of the block's threads, ``turns`` what each of them takes."""

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
        """The whole statement."""
        if self.here:
            self.lin.barrier()
        if self.count.before is None:
            self.count_all()
        else:
            self.rank_all()

    def statement(self, line: UOp) -> UOp:
        """The statement where the count is what a line holds."""
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
        """Count the keys: each thread has the result for one of them."""
        places = [step_of(self.thread, UOp.index(turn), self.turns, self.warp) for turn in range(self.turns)]
        self.turn_by_turn([self.lin.value(self.count.key.substitute({self.count.steps: p}).simplify())
                           for p in places])
        self.lin.store_as_usual(self.statement(self.over_warps()[0]))

    def turn_by_turn(self, keys: list[UOp]) -> tuple[list[UOp], list[UOp]]:
        """What each warp's counters come to; for each turn where the key's counter is, and what it was."""
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
        """For the key that has a thread's number: the sum of all warps, and for each warp that of those before it."""
        warps = self.threads // self.warp
        parts = [self.load(self.counters, self.lin.raw(self.line + warp * self.threads, self.here))
                 for warp in range(warps)]
        total, before = parts[0], [self.lin.emit(0, UOp.const(dtypes.int32, 0))]
        for part in parts[1:]:
            before.append(total)
            total = self.add(total, part)
        return total, before

    def rank_all(self) -> None:
        """Rank every step, and store what it stores; in the order of the keys, if the place depends on the rank."""
        lin = self.lin
        keys = [lin.value(self.count.asked, c) for c in self.copies]
        places, ranks = self.turn_by_turn(keys)
        total, before = self.over_warps()
        for warp, part in enumerate(before):
            self.write(self.counters, lin.raw(self.line + warp * self.threads, self.here), part)
        apart = exchanged(self.store)
        if apart:  # where each key begins
            begins = lin.local(dtypes.int32.ptr(), self.threads)
            self.write(begins, self.line, running_by_warps(lin, Ops.ADD, total, self.thread)[0])
        lin.barrier([self.counters, *([begins] if apart else [])])
        wholes = [self.add(rank, self.load(self.counters, at)) for rank, at in zip(ranks, places)]
        statements = [self.statement(whole) for whole in wholes]
        if apart:
            ahead = [self.load(begins, self.index(key)) for key in keys]
            return self.exchange(statements, [self.index(self.add(*pair)) for pair in zip(wholes, ahead)])
        for statement, coords in zip(statements, self.copies):
            lin.store_as_usual(statement, coords)

    def exchange(self, statements: list[UOp], slots: list[UOp]) -> None:
        """Put places and values at the slots, and store them from there. -1 is no place."""
        lin, here, steps = self.lin, self.here, range_size(self.count.steps)
        memory, none = lin.memory(self.store.src[0], ()), lin.emit(0, UOp.const(dtypes.int32, -1))
        where = lin.local(dtypes.int32.ptr(), steps)
        what = lin.local(self.store.src[2].dtype.ptr(), steps)
        guarded = False
        for (_, index, value, *valid), slot, coords in zip((s.src for s in statements), slots, self.copies):
            at = lin.combine(here, Ops.CAST, dtypes.int32, [lin.indexed(index, coords)])
            guard = lin.guard(valid[0] if valid else None, coords)
            guarded |= guard is not None
            at = at if guard is None else lin.combine(here, Ops.WHERE, dtypes.int32, [guard, at, none])
            self.write(where, slot, at)
            self.write(what, slot, lin.value(value, coords))
        lin.barrier()
        for turn in range(self.turns):
            slot = lin.raw((self.line + turn * self.threads).simplify(), here)
            at = self.load(where, slot)
            valid = [lin.combine(here, Ops.CMPLT, dtypes.bool, [none, at])] if guarded else []
            self.write(memory, self.index(at), self.load(what, slot), *valid)


def write_counts(lin: Emitter, store: UOp, fold: UOp) -> None:
    """A statement with a count that threads share."""
    CountWriter(lin, store, fold).run()
