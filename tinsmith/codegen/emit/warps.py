"""Block-wide reductions and scans by warp shuffles, then one word per warp in local memory.

    FOLD(load(STAGE(part, g'), g), g)   →   x = part;  x = x ∘ SHUFFLE(x, 16);  … SHUFFLE(x, 1);  words of the warps

In the kernel graph every thread's partial result is in local memory (``codegen/transform/thread_blocks.py``). That
form defines the semantics;
it is emitted for targets without shuffles.
"""
from __future__ import annotations

import functools
from collections.abc import Sequence

from tinsmith.codegen.emit.emitter import Emitter
from tinsmith.codegen.emit.scopes import Coords
from tinsmith.core.errors import ArgumentError
from tinsmith.ir import Op, Ops, UOp
from tinsmith.ir.algebra.linear import linear_form
from tinsmith.ir.ranges import Role, range_size
from tinsmith.ir.uop import toposort

_BETWEEN = (Ops.CONST, Ops.DEFINE_GLOBAL, Ops.GEP, Ops.VECTORIZE)


def shared_by_warps(lin: Emitter, fold: UOp, coords: Coords) -> bool:
    """Write ``fold`` with warp shuffles if it has the form above and its threads fill warps; return False otherwise."""
    found = _part_of_a_thread(fold)
    warp, threads = lin.kernel.target.warp, lin.block_size
    if found is None or not warp:
        return False
    part, own, readers = found
    if any(lin.known((mine, ())) is not lin.known((reader, ())) for mine, reader in readers.items()
           if mine.arg[1] is not Role.VECTOR):
        return False  # other threads read the partial results, too
    size, line = range_size(own), lin.known((own, ()))
    if line is None or line.op is not Ops.SPECIAL or line.arg[0] != "lidx0" or (size % warp and warp % size):
        return False
    if threads % warp and threads > warp:  # an incomplete last warp
        return False
    depth = lin.depth_of(fold)
    with lin.at_depth(depth):
        x = lin.value(part, coords)
        step = min(size, warp) // 2
        while step:
            x = lin.shuffled(fold.arg, x, step)
            step //= 2
        if size > warp:  # combine the warps' results through local memory
            x = functools.reduce(lambda total, word: lin.combine(depth, fold.arg, fold.dtype, [total, word]),
                                 _words_of_warps(lin, x, line))
        lin.remember(fold, lin.coords_of(fold, coords), x)
    return True


def _words_of_warps(lin: Emitter, x: UOp, line: UOp) -> list[UOp]:
    """Return the results of all warps that reduce the same element, exchanged through local memory. ``line`` is the
    thread index along the reduction."""
    warp, count = lin.kernel.target.warp, x.dtype.count
    words = lin.threads_along(*next((a, n) for a, n in lin.threads_of if n is line)) // warp
    memory = lin.local(x.dtype.scalar.ptr(), lin.block_size // warp * count)
    first, pitch = UOp.index(0), words * count  # offset of the warps that reduce the same element
    for axis, other in lin.threads_of:
        if other is not line:
            first = first + other * pitch
            pitch *= lin.threads_along(axis, other)
    lin.barrier()
    valid = lin.spread(lin.raw((line % warp).eq(0)), count)
    lin.force(UOp(Ops.STORE, None, (memory, lin.raw((first + line // warp * count).simplify()), x, valid)))
    lin.barrier()
    out = []
    for word in range(words):
        offset = lin.raw((first + word * count).simplify())
        out.append(lin.force(UOp(Ops.LOAD, x.dtype, (memory, offset))))
        lin.scopes[-1].values[out[-1]] = out[-1]
    return out


def running_by_warps(lin: Emitter, op: Op, x: UOp, threads: UOp) -> tuple[UOp, UOp]:
    """Return the exclusive prefix of ``x`` over ``threads``, and the total: a block-wide scan by butterfly shuffles, in
    which the upper half of each group adds the total of the lower half (after Blelloch 1990).

    Raises:
        ArgumentError: if a warp is incomplete.
    """
    line, size, here = lin.known((threads, ())), range_size(threads), lin.here
    warp, dtype = lin.kernel.target.warp, x.dtype
    assert line is not None and op.identity is not None
    if lin.block_size > warp and lin.block_size % warp:
        raise ArgumentError("Opt", f"{size} threads share a scan in blocks of {lin.block_size}, not full warps",
                            "other amounts of LOCAL")
    nothing = lin.const(x, op.identity(dtype))

    def joined(upper: UOp, other: UOp, before: UOp) -> UOp:
        found = other if before is nothing else lin.combine(here, op, dtype, [other, before])
        return lin.combine(here, Ops.WHERE, dtype, [upper, found, before])

    before, step = nothing, 1
    while step < min(size, warp):
        other = lin.emit(here, UOp(Ops.SHUFFLE, dtype, (x,), step))
        before = joined(lin.raw((line // step % 2).simplify().eq(1)), other, before)
        x = lin.combine(here, op, dtype, [x, other])
        step *= 2
    if size <= warp:
        return before, x
    words, ahead = _words_of_warps(lin, x, line), nothing
    total = words[0]
    for number, word in enumerate(words):
        if number:
            total = lin.combine(here, op, dtype, [total, word])
        if number + 1 < len(words):
            ahead = joined(lin.raw(UOp.index(number).lt(line // warp)), word, ahead)
    return lin.combine(here, op, dtype, [ahead, before]), total


def _part_of_a_thread(fold: UOp) -> tuple[UOp, UOp, dict[UOp, UOp]] | None:
    """Return a thread's partial result, the range of the threads that share the reduction, and a map from the stage's
    other ranges to the ranges that read them; None if ``fold`` has another form."""
    load = fold.src[0]
    if fold.op is not Ops.FOLD or len(fold.src) != 2 or load.op is not Ops.LOAD or len(load.src) != 2:
        return None
    stage, again = load.src[0], fold.src[1]
    if stage.op is not Ops.STAGE:
        return None
    terms, constant = linear_form(load.src[1])
    own: UOp | None = None
    table, pitch = dict[UOp, UOp](), 1
    for mine, size in zip(reversed(stage.src[1:]), reversed(stage.arg)):
        reader = next((t for t, k in terms.items() if k == pitch and t.op is Ops.RANGE), None)
        if reader is None or range_size(reader) != size or range_size(mine) != size:
            return None
        if reader is again and mine.arg[1] is Role.GROUP:
            own = mine
        elif reader.arg[1] is mine.arg[1]:
            table[mine] = reader
        else:
            return None
        pitch *= size
    if own is None or constant or len(terms) != len(stage.arg):
        return None
    return stage.src[0].substitute(table), own, table


def loads_first(lines: Sequence[UOp], most: int) -> list[UOp]:
    """Move loads of read-only global memory before the barriers of their loop that need not precede them, so that they
    are in flight while threads wait. At most ``most`` values per thread are moved."""
    if any(n.op is Ops.LOAD for line in lines if line.op is Ops.LOAD for n in toposort(line.src[1])):
        lines = _stores_later(lines, most)
    written = {u.src[0] for u in lines if u.op in (Ops.STORE, Ops.STORE_TILE)}
    now, since = 0, dict[UOp, int]()  # number of barriers so far, and before each line
    scopes: list[list[tuple[int, UOp]]] = [[]]  # the barriers of each open loop
    early: dict[UOp, list[UOp]] = {}
    lanes = 0
    moved = set[UOp]()
    for line in lines:
        at = max((since.get(s, 0) for s in line.src), default=0)
        if line.op in (Ops.RANGE, Ops.IF):
            scopes.append([])
        elif line.op in (Ops.ENDRANGE, Ops.ENDIF):
            scopes.pop()
        elif line.op is Ops.BARRIER:
            now += 1
            scopes[-1].append((now, line))
        elif line.op is Ops.LOAD and line.src[0].op is Ops.DEFINE_GLOBAL and line.src[0] not in written:
            barrier = next((b for b in scopes[-1] if b[0] > at), None)
            if barrier is not None and lanes + line.dtype.count <= most:
                lanes += line.dtype.count
                early.setdefault(barrier[1], []).append(line)
                moved.add(line)
                since[line] = barrier[0] - 1
                continue
        since[line] = now
    return [x for line in lines if line not in moved for x in (*early.get(line, ()), line)]


def _stores_later(lines: Sequence[UOp], most: int) -> list[UOp]:
    """Move global stores after later loads with only arithmetic in between: a compiler cannot know that they do not
    alias. Only for kernels with dependent loads (index, then element); others become slower."""
    written = {u.src[0] for u in lines if u.op in (Ops.STORE, Ops.STORE_TILE)}
    out, stores, waiting, lanes = list[UOp](), list[UOp](), list[UOp](), 0
    for line in lines:
        if line.op is Ops.LOAD and line.src[0].op is Ops.DEFINE_GLOBAL and line.src[0] not in written:
            lanes += sum(s.src[2].dtype.count for s in stores)
            if lanes <= most:
                out, waiting, stores = [x for x in out if x not in stores], [*waiting, *stores], []
        elif line.op is Ops.STORE and line.src[0].op is Ops.DEFINE_GLOBAL:
            if waiting:
                waiting.append(line)
                continue
            stores.append(line)
        elif not (line.op.alu or line.op.kind == "cast" or line.op in _BETWEEN):
            out, stores, waiting, lanes = [*out, *waiting], [], [], 0
        out.append(line)
    return [*out, *waiting]
