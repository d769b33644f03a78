"""Histograms and ranks of keys shared by the threads of a block: against the graph's value, with race detection."""
from __future__ import annotations

import numpy as np
import pytest

from tests.backend.gpus import needs_nvrtc
from tests.codegen.running import Array, buffers, expected, linearize_on
from tests.codegen.test_barriers import positions, ran
from tinsmith.backend.cuda.driver import NVRTCCompiler
from tinsmith.codegen.compile_kernel import compile_kernel
from tinsmith.codegen.emit.linearize import linearize
from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.codegen.render.cuda import CUDARenderer, cuda_target
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.errors import ArgumentError, KernelError
from tinsmith.ir import Ops, UOp

GRID = "PYTHON:G64"
THREADS = 64


def sink_of(*values: UOp) -> UOp:
    return UOp(Ops.SINK, None, values)


def digits_of(pieces: int, piece: int, dtype: DType = dtypes.int32, bits: int = 6) -> UOp:
    keys = UOp(Ops.PARAM, dtype, (), (1, (pieces, piece)))
    return (keys & ((1 << bits) - 1)).cast(dtypes.int32)


def all_counts(digit: UOp, keys: int = THREADS) -> UOp:
    """Return the histogram of each piece: the number of occurrences of each key."""
    pieces, piece = digit.shape
    at = digit.reshape((1, pieces, piece)).expand((keys, pieces, piece))
    return at.eq(at.iota_like(0)).cast(dtypes.int32).reduce("ADD", (2,)).reshape((keys, pieces))


def ranks(digit: UOp, before: bool = True) -> UOp:
    """Return for each element the number of elements with its key in its piece: the earlier ones if ``before``, else
    itself and the later ones."""
    cube = (*digit.shape, digit.shape[1])
    other = digit.reshape((digit.shape[0], 1, digit.shape[1])).expand(cube)
    same = other.eq(digit.reshape((*digit.shape, 1)).expand(cube))
    place = other.iota_like(2).lt(other.iota_like(1))
    return ((place if before else place.logical_not()) & same).cast(dtypes.int32).reduce("ADD", (2,)).reshape(
        digit.shape)


def moved(digit: UOp, value: DType) -> UOp:
    """Scatter elements to the positions given by their ranks and a table in memory; out-of-range positions are
    dropped."""
    pieces, piece = digit.shape
    begin = UOp(Ops.PARAM, dtypes.int32, (), (2, (THREADS * pieces,)))
    given = UOp(Ops.PARAM, value, (), (3, (pieces * piece,)))
    place = begin.gather((digit * pieces + digit.iota_like(0)).reshape((pieces * piece,)), 0) + ranks(digit).reshape(
        (pieces * piece,))
    return given.const_like(0).scatter(place, given, 0, Ops.ASSIGN)


def values(sink: UOp, pieces: int, piece: int, dtype: DType, drawn: int = 64) -> dict[UOp, Array]:
    """Return the keys, the offset of each key and piece (a few elements are dropped), and the elements."""
    random = np.random.default_rng(pieces * piece)
    keys = random.integers(0, drawn, (pieces, piece))
    counts = np.stack([np.bincount(row % THREADS, minlength=THREADS) for row in keys], 1)
    begin = np.cumsum(counts) - counts.reshape(-1)
    begin[random.integers(0, begin.size, 3)] += pieces * piece
    elements = random.permutation(pieces * piece)
    data = {1: keys.astype(dtype.numpy), 2: begin.astype(np.int32)}
    return {p: data[p.arg[0]] if p.arg[0] in data else elements.astype(p.dtype.numpy)
            for p in sink.toposort() if p.op is Ops.PARAM}


def arrays_of(sink: UOp, inputs: dict[UOp, Array]) -> list[Array]:
    """Return all of the kernel's memory; unset elements are 0."""
    return [a if n else np.zeros_like(a) for n, a in enumerate(buffers(sink, inputs))]


def with_rank(sink: UOp, threads: int = THREADS) -> Kernel:
    kernel = linearize_on(GRID, sink)
    (fold,) = kernel.folds
    kernel.apply(Opt(OptOps.RANK, kernel.ranges.index(fold.src[1]), threads))
    return kernel


def moved_keys(digit: UOp, by_key: bool = True) -> UOp:
    """Scatter the words that contain the digits, so that the key can be read from the stored word. If not ``by_key``,
    another table gives the position of each element."""
    pieces, piece = digit.shape
    words = next(n for n in digit.toposort() if n.op is Ops.PARAM).reshape((pieces * piece,))
    begin = UOp(Ops.PARAM, dtypes.int32, (), (2, (THREADS * pieces,)))
    at = (digit * pieces + digit.iota_like(0)).reshape(words.shape)
    place = begin.gather(at if by_key else words.iota_like(0) % begin.size, 0) + ranks(digit).reshape(words.shape)
    return words.const_like(0).scatter(place, words, 0, Ops.ASSIGN)


KINDS = {"counts": all_counts, "ranks": ranks, "exchanged": lambda d: moved(d, dtypes.uint64),
         "exchanged bytes": lambda d: moved(d, dtypes.uint8), "exchanged keys": moved_keys}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("pieces", "piece"), [(1, 64), (3, 64), (2, 192)])
@pytest.mark.parametrize(("dtype", "drawn"), [(dtypes.int32, 64), (dtypes.uint64, 5), (dtypes.uint8, 256)], ids=str)
def test_threads_count_as_the_graph_says(kind: str, pieces: int, piece: int, dtype: DType, drawn: int) -> None:
    sink = sink_of(KINDS[kind](digits_of(pieces, piece, dtype)))
    inputs = values(sink, pieces, piece, dtype, drawn)
    program = linearize(with_rank(sink))
    assert len(positions(program, Ops.MATCH)) == piece // THREADS and not positions(program, Ops.RANGE)
    for seed in (0, 1, 5):
        for got, want in zip(ran(program, arrays_of(sink, inputs), seed), expected(sink, inputs)):
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("kind", KINDS)
def test_every_barrier_is_needed(kind: str) -> None:
    """Without any one block or warp barrier the interpreter finds a race."""
    sink = sink_of(KINDS[kind](digits_of(2, 192)))
    inputs, taken = buffers(sink, values(sink, 2, 192, dtypes.int32)), 0
    program = linearize(with_rank(sink))
    for at in (*positions(program, Ops.BARRIER), *positions(program, Ops.WARP_BARRIER)):
        with pytest.raises(KernelError, match="race: "):
            ran([*program[:at], *program[at + 1 :]], inputs)
        taken += 1
    assert taken == {"counts": 1, "ranks": 2}.get(kind, 4) + 2 * 192 // THREADS


def test_what_is_exchanged_goes_out_in_runs() -> None:
    """Adjacent threads store to adjacent addresses, except where another key begins."""
    sink = sink_of(moved(digits_of(1, 192), dtypes.uint64))
    inputs = values(sink, 1, 192, dtypes.int32, drawn=4)
    last = [u for u in linearize(with_rank(sink)) if u.op is Ops.STORE and u.src[0].op is Ops.DEFINE_GLOBAL]
    assert len(last) == 3
    assert all(u.src[2].op is Ops.LOAD and u.src[2].src[0].op is Ops.DEFINE_LOCAL for u in last)
    assert np.array_equal(expected(sink, inputs)[0], ran(linearize(with_rank(sink)), arrays_of(sink, inputs))[0])


def test_a_thread_finds_the_place_of_its_key_once() -> None:
    """A thread loads its key's offset once; keys are not exchanged through local memory if elements contain them."""
    for value, words in ((moved_keys(digits_of(2, 192, dtypes.uint64)), 1), (moved(digits_of(2, 192), dtypes.int8), 2)):
        program = linearize(with_rank(sink_of(value)))
        read = [u for u in program if u.op is Ops.LOAD and u.src[0].op is Ops.DEFINE_GLOBAL and u.src[0].arg == 2]
        assert len(read) == 1 and read[0].dtype.count == 1
        exchanged = [u for u in program if u.op is Ops.DEFINE_LOCAL and u.arg[1] == 192]
        assert len(exchanged) == words


def test_places_that_no_key_says_are_not_exchanged() -> None:
    sink = sink_of(moved_keys(digits_of(2, 192), by_key=False))
    inputs = values(sink, 2, 192, dtypes.int32)
    keys, table = sorted(inputs, key=lambda p: p.arg[0])
    inputs[keys] = np.arange(384, dtype=np.int32).reshape(2, 192)  # those with one entry of the table have ranks 0 to 2
    inputs[table] = np.random.default_rng(1).permutation(128).astype(np.int32) * 3
    program = linearize(with_rank(sink))
    assert not [u for u in program if u.op is Ops.DEFINE_LOCAL and u.arg[1] == 192]
    assert np.array_equal(expected(sink, inputs)[0], ran(program, arrays_of(sink, inputs))[0])


def test_where_it_is_refused() -> None:
    digit = digits_of(2, 192)
    for value, threads, why in (
            (ranks(digit, before=False), 64, "equal"), (ranks(digits_of(2, 192, bits=7)), 64, "keys from 0 to 127"),
            (ranks(digits_of(2, 100)), 64, "threads must divide"), (ranks(digit), 48, "full warps"),
            (all_counts(digit, 65), 64, "must be indexed by key"), (ranks(digits_of(1, 1 << 13)) * 2, 32, "keys from"),
            (moved(digits_of(1, 1 << 13), dtypes.uint64), 64, "do not fit into 49152 bytes")):
        with pytest.raises(ArgumentError, match=why):
            with_rank(sink_of(value), threads)
    kernel = with_rank(sink_of(ranks(digit)))
    with pytest.raises(ArgumentError, match=r"only a reduction|threads must divide|does not count"):
        kernel.apply(Opt(OptOps.RANK, 0, 64))


def test_as_cuda_a_sort_of_millions_spills_nothing() -> None:
    needs_nvrtc()

    pieces, piece = 5462, 3072
    items = UOp(Ops.PARAM, dtypes.uint64, (), (1, (pieces, piece)))
    digit = ((items >> 40) & 255).cast(dtypes.int32)
    begin = UOp(Ops.PARAM, dtypes.int32, (), (2, (256 * pieces,)))
    flat = items.reshape((pieces * piece,))
    place = begin.gather((digit * pieces + digit.iota_like(0)).reshape(flat.shape), 0)
    place = place + ranks(digit).reshape(flat.shape)
    for value in (all_counts(digit, 256), flat.const_like(0).scatter(place, flat, 0, Ops.ASSIGN)):
        program = compile_kernel(sink_of(value), CUDARenderer(cuda_target("sm_90a")))
        assert [o.op for o in program.opts] == [OptOps.RANK] and program.block[0] == 256
        _, log = NVRTCCompiler("sm_90a")._compiled(program.source)
        assert " 0 bytes spill stores" in log, log
