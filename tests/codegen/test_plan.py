"""The planner: kernel structure, the cheapest legal candidate, and the reason why the next best lost."""
from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from tests.codegen.test_estimate import TARGET, kernel, matmul, param
from tinsmith import Tensor, dtypes, explain
from tinsmith.codegen.compile_kernel import choose, compile_kernel
from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.codegen.planner import planner
from tinsmith.codegen.planner.candidate import Candidate, apply_if_it_fits, apply_to, stride_of
from tinsmith.codegen.planner.cost import access_cycles
from tinsmith.codegen.planner.gpu.products import Generator
from tinsmith.codegen.planner.planner import candidates
from tinsmith.codegen.render.cuda import CUDARenderer
from tinsmith.core.errors import ArgumentError
from tinsmith.core.settings import Context
from tinsmith.ir import Ops, UOp
from tinsmith.ir.structure import Contraction, Map, Role, Rows, Scan, Scatter, range_size, structure
from tinsmith.nn.io.ggml import KINDS as QUANTIZED
from tinsmith.nn.io.ggml import unpacked
from tinsmith.target.target import Target


def scattered() -> UOp:
    where = UOp(Ops.PARAM, TARGET_INT, (), (2, (64, 1))).expand((64, 32))
    return param(1, (5, 32)).scatter(where, param(3, (64, 32)), 0, "ADD")


TARGET_INT = Tensor([0]).dtype
KINDS: dict[str, tuple[UOp, type]] = {
    "product": (matmul(32, 48, 64), Contraction), "sum": (param(1, (64, 96)).reduce("ADD", (1,)), Rows),
    "transpose": (param(1, (64, 96)).permute((1, 0)), Map), "scatter": (scattered(), Scatter)}


@pytest.mark.parametrize("name", KINDS)
def test_the_cheapest_candidate_is_applied(name: str) -> None:
    value, kind = KINDS[name]
    k = kernel(value)
    found = structure(k.sink)
    assert isinstance(found, kind)
    ways = candidates(k, TARGET)
    assert len(ways) > 1 and all(w.price for w in ways)
    assert not k.opts, "prices touch no kernel"
    best, again = min(ways, key=lambda w: w.cycles), kernel(value)
    best.apply(again)
    made = choose(k, TARGET)
    assert (made.structure, made.chosen, made.cycles) == (kind.__name__.lower(), best.what, best.cycles)
    assert k.opts == again.opts != []


def test_a_scan_is_one_whatever_else_is_computed() -> None:
    kernels = explain(Tensor.empty(8, 64).cumsum(1), run=False).kernels
    assert Scan.__name__.lower() in [k.plan.structure for k in kernels if k.plan is not None]


def test_the_runner_up_is_named_with_what_it_spends_more_on() -> None:
    made = choose(kernel(matmul(256, 256, 256)), TARGET)
    assert made.other != made.chosen and "register tile" in made.other
    assert "more cycles, mostly" in made.why or "× the cycles, mostly" in made.why or made.why == "the same cycles"
    text = str(explain(Tensor.empty(256, 256) @ Tensor.empty(256, 256), run=False))
    assert "planned as contraction: " in text and "; next best: " in " ".join(text.split())


ILLEGAL = Opt(OptOps.UNROLL, 17, 2)


def two_ways(apply: Callable[[Kernel], None]) -> Generator:
    """Two candidates: a correct one, and a cheaper one that calls ``apply`` after an opt of its own."""
    def begun(k: Kernel) -> None:
        apply_to(k, OptOps.UPCAST, k.ranges[0], 2)
        apply(k)

    def offered(k: Kernel, target: Target) -> Iterator[Candidate]:
        yield Candidate("dear", {"memory": 9.0}, lambda k: apply_to(k, OptOps.UPCAST, k.ranges[0], 4))
        yield Candidate("cheap", {"memory": 1.0}, begun)
    return offered


def test_what_does_not_suit_is_dropped_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(planner.CORES, Map, (two_ways(lambda k: apply_if_it_fits(k, ILLEGAL)),))
    made = choose(k := kernel(param(1, (64,)) + 1), TARGET)
    assert k.opts == [Opt(OptOps.UPCAST, 0, 4)] and not made.mistakes
    assert (made.chosen, made.other) == ("dear", "cheap") and "not applicable: Opt(" in made.why
    assert "no such axis" in made.why and "; axes: " not in made.why


def unasked(k: Kernel, target: Target) -> Iterator[Candidate]:
    """A generator that applies an illegal opt before it offers anything."""
    k.copied().apply(ILLEGAL)
    yield Candidate("none", {}, print)


@pytest.mark.parametrize("offered", [(two_ways(lambda k: k.apply(ILLEGAL)),), (unasked, two_ways(lambda k: k.apply(
    ILLEGAL)))])
def test_an_opt_that_is_refused_is_a_mistake_of_ours(
        offered: tuple[Generator, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """An illegal opt of a generator fails tests; a user's program gets the next candidate, and explain() reports it."""
    monkeypatch.setitem(planner.CORES, Map, offered)
    with pytest.raises(ArgumentError, match="no such axis"):
        choose(kernel(param(1, (64,)) + 1), TARGET)
    with Context(CHECK_IR=0):
        made = choose(k := kernel(param(1, (64,)) + 1), TARGET)
    assert k.opts == [Opt(OptOps.UPCAST, 0, 4)] and made.chosen == "dear" and len(made.mistakes) == len(offered)
    assert "; refused (bug): cheap: " in str(made) and "no such axis" in str(made)


def test_prices_are_data_of_the_target() -> None:
    """The choice between a packed and an unpacked panel follows the memory costs of the target."""
    core = TARGET.core
    dear = replace(TARGET, core=core._replace(tile=core.tile._replace(along=1e3, across=(1e3, 1e3), scattered=1e3)))
    packed, not_packed = (choose(kernel(matmul(256, 256, 1000)), t) for t in (TARGET, dear))
    assert "panel packed" in packed.chosen and packed.cycles < not_packed.cycles
    assert "panel unpacked" in not_packed.chosen, "whether a panel is packed is a price, too"


def test_a_contraction_that_no_tile_suits_is_taken_for_rows() -> None:
    x, y = (UOp(Ops.PARAM, TARGET_INT, (), (n, (64, 64))) for n in (1, 2))
    shape = (64, 64, 64)
    product = (x.reshape((64, 1, 64)).expand(shape) * y.reshape((1, 64, 64)).expand(shape)).reduce("ADD", (2,))
    made = choose(kernel(product), TARGET)
    assert made.structure == "contraction" and made.chosen.startswith("vectorize along")


@pytest.mark.parametrize(("columns", "together"), [(64, True), (256, True), (512, False), (2048, False)])
def test_several_short_rows_are_gone_through_side_by_side(columns: int, together: bool) -> None:
    """The second pass over a row waits for the combined lanes of the first; long rows hide that latency. With one pass,
    out-of-order execution of the next row hides most of it: only the shortest rows gain."""
    x = param(1, (512, columns))
    spread = x - x.reduce("MAX", (1,)).expand(x.shape)
    made = choose(k := kernel((spread * spread).reduce("ADD", (1,))), TARGET)
    rows = [o for o in k.opts if o.op is OptOps.UPCAST]
    assert bool(rows) == ("rows interleaved" in made.chosen) == together
    once = choose(kernel(x.reduce("ADD", (1,))), TARGET)
    assert ("rows interleaved" in once.chosen) == (columns == 64)


@pytest.mark.parametrize("columns", [17, 64, 100, 250])
def test_rows_side_by_side_are_what_each_is_alone(columns: int) -> None:
    x = np.random.default_rng(columns).standard_normal((96, columns)).astype(np.float32)
    power = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(Tensor(x).softmax().numpy(), power / power.sum(1, keepdims=True), rtol=1e-5)
    np.testing.assert_allclose(Tensor(x).var(1).numpy(), x.var(1, ddof=1), rtol=1e-5)
    spread = x - x.mean(1, keepdims=True)
    want = spread / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(Tensor(x).layernorm().numpy(), want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("columns", [*range(2, 10), 12, 16, 17, 24, 32])
def test_no_reduction_of_short_rows_is_scalar(columns: int) -> None:
    """Unrolled windows have no lanes in the sums of a row if the lanes are its columns; the price says so."""
    x = param(1, (600, columns))
    spread = x - x.reduce("MAX", (1,)).expand(x.shape)
    power = spread.alu("EXP2").reduce("ADD", (1,)).expand(x.shape)
    for value in (x.reduce("ADD", (1,)), spread - power.alu("LOG2")):
        choose(k := kernel(value), TARGET)
        assert all(any(r.arg[1] is Role.VECTOR for r in f.src[0].ranges) for f in k.folds)


@pytest.mark.parametrize("columns", range(2, 9))
def test_a_sum_over_rows_of_few_columns_reads_each_vector_once(columns: int) -> None:
    """Lanes run along the rows, and all columns are computed together from the same full vectors."""
    k = kernel(param(1, (4, 512, columns)).reduce("ADD", (1,)))
    choose(k, replace(TARGET, threads=1))
    lanes, copies = ([r for r in k.ranges if r.arg[1] is role] for role in (Role.VECTOR, Role.UPCAST))
    assert [range_size(r) for r in copies] == [columns]
    load = k.loads[0]
    assert stride_of(load.src[1], lanes[0]) == columns and stride_of(load.src[1], copies[0]) == 1


@pytest.mark.parametrize("shape", [(1, 1), (0, 3), (3, 2), (61, 3), (127, 5), (64, 7), (501, 8), (37, 13), (89, 16)])
def test_short_rows_and_few_columns_give_the_results_of_numpy(shape: tuple[int, int]) -> None:
    x = np.random.default_rng(shape[1]).standard_normal(shape).astype(np.float32)
    for axis in (0, 1):
        np.testing.assert_allclose(Tensor(x).sum(axis).numpy(), x.sum(axis), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(Tensor(x[None]).sum(axis + 1).numpy(), x[None].sum(axis + 1), rtol=1e-4, atol=1e-5)
        if shape[axis]:
            np.testing.assert_array_equal(Tensor(x).max(axis).numpy(), x.max(axis))
            np.testing.assert_array_equal(Tensor(x).argmax(axis).numpy(), x.argmax(axis))
    spread = x - x.max(1, keepdims=True)
    want = spread - np.log(np.exp(spread).sum(1, keepdims=True))
    np.testing.assert_allclose(Tensor(x).log_softmax(1).numpy(), want, rtol=1e-4, atol=1e-5)


def test_ways_for_blocks_of_threads_have_names() -> None:
    chosen = {}
    for name, (value, _) in KINDS.items():
        made = compile_kernel(UOp(Ops.SINK, None, (value,)), CUDARenderer()).plan
        chosen[name] = "" if made is None else made.chosen
    assert chosen["sum"] == "threads of a block share each row"
    assert chosen["transpose"] == chosen["scatter"] == "coalesced threads"


@pytest.mark.parametrize(("value", "best", "next_best"), [
    (param(1, (4096, 4096)).permute((1, 0)), "transpose through local memory", "coalesced threads"),
    (param(1, (16384, 512)).reduce("ADD", (1,)), "threads of a block share each row",
     "threads of a block share long reductions"),
    (param(1, (16384, 4096)).reduce("ADD", (0,)), "coalesced threads along columns",
     "threads of a block share long reductions"),
    (param(1, (16, 64)).reduce("ADD", (0,)), "threads of a block share long reductions", "")])
def test_ways_for_blocks_of_threads_are_compared_by_the_estimate(value: UOp, best: str, next_best: str) -> None:
    made = compile_kernel(UOp(Ops.SINK, None, (value,)), CUDARenderer()).plan
    assert made is not None and (made.chosen, made.other) == (best, next_best)
    assert bool(made.cycles) == bool(next_best) == ("cycles, mostly" in made.why)


def test_tiles_for_blocks_of_threads_are_compared_by_price() -> None:
    made = compile_kernel(UOp(Ops.SINK, None, (matmul(256, 384, 512),)), CUDARenderer()).plan
    assert made is not None and made.structure == "contraction" and made.cycles > 0
    assert "in local memory" in made.chosen and "in local memory" in made.other != made.chosen
    assert "cycles" in made.why


@pytest.mark.parametrize("kind", sorted(QUANTIZED))
def test_lanes_run_along_the_blocks_of_a_quantized_matrix(kind: str) -> None:
    """Adjacent elements of a row are contiguous within a quantization block, whatever separates two blocks."""
    size, nbytes, _ = QUANTIZED[kind]
    if kind.startswith("IQ"):
        pytest.importorskip("gguf", reason="pip install 'tinsmith[gguf]'")
    weight = unpacked(Tensor.empty(64 * 4096 // size * nbytes, dtype=dtypes.uint8), kind).reshape(64, 4096)
    made = explain(Tensor.empty(1, 4096) @ weight.transpose(0, 1), run=False).kernels[-1].plan
    assert made is not None and re.fullmatch("vectorize along R[0-9]+ of 4096", made.chosen)


def test_what_a_vector_reads_is_asked_of_vectors() -> None:
    """Blocks of full vectors are read as contiguous memory; shorter ones cost as much as scattered elements, and a
    repeated element is cheap for any length of range."""
    r, memory = UOp.range(7 << 20, 0, Role.REDUCE), param(1, (16 << 20,))
    def cycles(index: UOp) -> float:
        return access_cycles(TARGET, 16, [UOp(Ops.LOAD, memory.dtype, (memory, index))], [], r)

    assert cycles(r // 32 * 34 + r % 32 + 2) == cycles(r) < cycles(r // 2) < cycles(r * 8)
    assert cycles(r * 2) < cycles(r * 3) < cycles(r * 8) < cycles(r * 9), "close lanes are selected from full vectors"
    assert cycles(r // 24 * 34 + r % 24) == cycles(r * 9)
    assert cycles(r // 4096) == cycles(UOp.index(3))
