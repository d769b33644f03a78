"""Scatter-adds and sorts on parallel cores."""
import math

import numpy as np
import pytest

from tinsmith import Tensor
from tinsmith.backend.device import Device
from tinsmith.codegen.compile_kernel import compile_kernel
from tinsmith.codegen.opt import OptOps
from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.uop import toposort
from tinsmith.schedule.canonical import canonical
from tinsmith.schedule.scheduler import Scheduler
from tinsmith.target.schedule_costs import RANKED_COSTS
from tinsmith.tensor.realize import _concrete

GRID = "PYTHON:G256:C8"
rng = np.random.default_rng(11)


@pytest.mark.parametrize(("places", "beside", "steps"), [(300, 12, 500), (5, 7, 300), (1000, 3, 257), (3, 9, 1031)])
def test_rows_of_one_place_are_added_up_in_order(places, beside, steps):
    base, added = (rng.standard_normal((n, beside)).astype(np.float32) for n in (places, steps))
    at = rng.integers(0, places, steps)
    expected = base.copy()
    np.add.at(expected, at, added)
    got = Tensor(base, device=GRID).scatter_add(
        0, Tensor(at, device=GRID).reshape(steps, 1).expand(steps, beside), Tensor(added, device=GRID))
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("places, steps", [(2, 700), (70, 5000)])
def test_updates_of_one_place_are_shared_by_many_cores(places: int, steps: int) -> None:
    """A gradient of 16,000 rows of which one place took 8,000 waited 1.6 ms for one block of a GPU."""
    added, at = rng.standard_normal((steps, 6)).astype(np.float32), np.full(steps, places - 1)
    got = Tensor.zeros(places, 6, device=GRID).index_put((Tensor(at, device=GRID),), Tensor(added, device=GRID), True)
    items = [i for i in Scheduler(canonical([_concrete(got.uop)])[0], GRID).run().items if i.sink is not None]
    sums = {n for i in items for n in toposort(i.sink) if n.op is Ops.REDUCE and n.dtype is dtypes.float32}
    lengths = [math.prod(n.src[0].shape[a] for a in n.arg[1]) for n in sums]
    assert len(sums) == 2 and max(lengths) <= steps // 8, "parts of the steps, then their sums"
    np.testing.assert_allclose(got.numpy()[places - 1], added.sum(0), rtol=1e-4, atol=1e-3)
    assert not got.numpy()[:places - 1].any()


@pytest.mark.parametrize("places", [9, 40, 700])
def test_elements_of_one_place(places):
    at, added = rng.integers(0, places, 400), rng.standard_normal(400).astype(np.float32)
    got = Tensor.zeros(places, device=GRID).scatter_add(0, Tensor(at, device=GRID), Tensor(added, device=GRID))
    np.testing.assert_allclose(got.numpy(), np.bincount(at, added, places), rtol=1e-4, atol=1e-5)


def test_gradient_of_a_gather_goes_through_the_steps_of_each_place():
    table = Tensor(rng.standard_normal((300, 8)).astype(np.float32), device=GRID)
    table.requires_grad = True
    rows = Tensor(rng.integers(0, 300, 400), device=GRID).realize()
    (table[rows] * 2).sum().backward()
    root = _concrete(table.grad.uop)
    items = [i for i in Scheduler(canonical([root])[0], GRID).run().items if i.sink is not None]
    assert not any(n.op is Ops.SCATTER and n.arg[1] is Ops.ADD for i in items for n in toposort(i.sink))
    last = compile_kernel(items[-1].sink, Device[GRID].renderer)
    assert any(o.op is OptOps.SKIP for o in last.opts), "a loop from where a place's steps begin to where they end"
    np.testing.assert_array_equal(table.grad.numpy()[:, 0], 2 * np.bincount(rows.numpy(), minlength=300))


@pytest.mark.parametrize("pairs", [True, False], ids=["all pairs", "digits"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.uint8, np.bool_])
def test_sorting_is_stable(dtype, pairs, monkeypatch):
    monkeypatch.setattr("tinsmith.tensor.reduce.statistics._compares_all", lambda *_: pairs)
    a = (rng.standard_normal((2, 600)) * 50).astype(dtype)
    values, indices = Tensor(a, device=GRID).sort()
    order = np.argsort(a, -1, kind="stable")
    np.testing.assert_array_equal(indices.numpy(), order)
    np.testing.assert_array_equal(values.numpy(), np.take_along_axis(a, order, -1))


@pytest.mark.parametrize("pairs", [True, False], ids=["all pairs", "digits"])
def test_zeros_and_nan_come_out_of_a_sort_as_they_went_in(pairs, monkeypatch):
    monkeypatch.setattr("tinsmith.tensor.reduce.statistics._compares_all", lambda *_: pairs)
    a = np.tile(np.array([0.0, -0.0, np.nan, -np.inf, 1.5, np.inf, -2.5], np.float32), 60)
    a.view(np.uint32)[2::14] |= 0x80000001  # NaN with another sign and payload
    for descending in (False, True):
        values, indices = Tensor(a, device=GRID).sort(descending=descending)
        kept = indices.numpy()
        np.testing.assert_array_equal(values.numpy().view(np.uint32), a[kept].view(np.uint32))
        keys = np.where(np.isnan(a), 9, np.clip(a, -8, 8))
        np.testing.assert_array_equal(kept, np.argsort(-keys if descending else keys, kind="stable"))


def test_short_rows_are_sorted_in_few_kernels():
    """A thousand numbers took 26 kernels, digit by digit, of which one ran on one thread."""
    a = Tensor(rng.integers(-100, 100, 1024), device=GRID).realize()
    kernels = [i.sink for i in Scheduler(canonical([_concrete(t.uop) for t in a.sort()])[0], GRID).run().items]
    assert len(kernels) <= 4
    assert all(n.arg[1] is Ops.ASSIGN for k in kernels for n in toposort(k) if n.op is Ops.SCATTER), "all at once"


@pytest.mark.parametrize("size", [math.isqrt(RANKED_COSTS.compared) + 1, RANKED_COSTS.piece - 1, RANKED_COSTS.piece,
                                  RANKED_COSTS.piece + 1])
def test_pieces_of_a_sort_are_ranked_by_the_threads_of_a_block(size):
    a = rng.integers(-100, 100, size).astype(np.int8)  # many equal ones
    values, indices = Tensor(a, device=GRID).sort()
    np.testing.assert_array_equal(indices.numpy(), np.argsort(a, kind="stable"))
    np.testing.assert_array_equal(values.numpy(), np.sort(a))
    roots = [_concrete(t.uop) for t in Tensor(a, device=GRID).realize().sort()]
    kernels = [i.sink for i in Scheduler(canonical(roots)[0], GRID).run().items if i.sink is not None]
    ranked = [k for k in kernels if any(o.op is OptOps.RANK for o in compile_kernel(k, Device[GRID].renderer).opts)]
    assert len(ranked) == 2, "counts of each piece, then every key goes to its place"
    assert len(kernels) <= 7 and not any(n.op is Ops.HISTOGRAM for k in kernels for n in toposort(k))


def test_gradient_of_sorted_values():
    x = Tensor(rng.standard_normal((2, 300)).astype(np.float32), device=GRID)
    x.requires_grad = True
    weights = rng.standard_normal((2, 300)).astype(np.float32)
    values, indices = x.sort(descending=True)
    (values * Tensor(weights, device=GRID)).sum().backward()
    expected = np.zeros((2, 300), np.float32)
    np.put_along_axis(expected, indices.numpy(), weights, -1)
    np.testing.assert_array_equal(x.grad.numpy(), expected)


def test_values_of_one_counter_are_made_together():
    root = _concrete(Tensor.randn(4096, device=GRID).uop)
    (item,) = [i for i in Scheduler(canonical([root])[0], GRID).run().items if i.sink is not None]
    opts = compile_kernel(item.sink, Device[GRID].renderer).opts
    assert any(o.op is OptOps.UPCAST for o in opts), opts


@pytest.mark.parametrize("op", ["sum", "prod", "amax", "amin"])
@pytest.mark.parametrize("places, steps, width", [(500, 700, 0), (70, 300, 3), (1000, 257, 0), (40, 300, 0)])
@pytest.mark.parametrize("half", [False, True])
def test_values_are_combined_with_those_that_were_there(op: str, places: int, steps: int, width: int,
                                                        half: bool) -> None:
    """A maximum of 100,000 updates took one thread 10.8 ms on a GPU, and a sum of single numbers 12.8."""
    rng = np.random.default_rng(places)
    at = rng.integers(0, places, steps)
    shape = (steps, width) if width else (steps,)
    values = rng.choice([-2.0, -1.0, 0.5, 1.0, 2.0], shape).astype(np.float32)
    base = rng.choice([-1.0, 1.0, 3.0], (places, *shape[1:])).astype(np.float32)
    values.flat[3], want = np.nan, base.copy()
    ufunc = {"sum": np.add, "prod": np.multiply, "amax": np.maximum, "amin": np.minimum}[op]
    ufunc.at(want, at, values)
    index = Tensor(at.reshape(-1, *[1] * (len(shape) - 1)), device=GRID).expand(*shape)
    kind = "bfloat16" if half else "float32"
    got = Tensor(base, device=GRID).cast(kind).scatter_reduce(0, index, Tensor(values, device=GRID).cast(kind), op)
    if not width:
        items = [i for i in Scheduler(canonical([_concrete(got.uop)])[0], GRID).run().items if i.sink is not None]
        last = compile_kernel(items[-1].sink, Device[GRID].renderer)
        assert places <= 64 or any(o.op is OptOps.SKIP for o in last.opts), "each place has its own steps"
    np.testing.assert_allclose(got.float().numpy(), want, rtol=1e-6 if op != "prod" or not half else 0.02)


def rounded(at: np.ndarray, x: np.ndarray, places: int, device: str = "CPU", op: str = "sum") -> Tensor:
    """Return the rows of ``x`` combined in float32 at their places of a table of bfloat16."""
    index = (Tensor(at, device=device) + 0).realize().reshape(-1, 1).expand(*x.shape)  # unknown to the checks
    rows = Tensor(x, device=device).cast("bfloat16").realize().cast("float32")
    return Tensor.zeros(places, x.shape[1], device=device).scatter_reduce(0, index, rows, op).cast("bfloat16")


def stored(value: Tensor) -> list[UOp]:
    """Return the values that the kernels of ``value`` store."""
    items = Scheduler(canonical([_concrete(value.uop)])[0], value.device).run().items
    return [i.sink.src[0] for i in items if i.sink is not None]


@pytest.mark.parametrize("op", ["sum", "amax"])
@pytest.mark.parametrize(("places", "beside", "steps"), [(997, 24, 100), (1000, 7, 1), (50, 3, 20), (40, 16, 39)])
def test_rounded_sums_are_those_of_a_wide_table(places: int, beside: int, steps: int, op: str) -> None:
    at = rng.integers(-1, places + 1, steps)
    at[: steps // 2] = at[0]
    x = Tensor(rng.standard_normal((steps, beside)).astype(np.float32)).cast("bfloat16").cast("float32").numpy()
    want = np.zeros((places, beside), np.float32)
    for to, row in zip(at, x):
        if to < places:
            want[to] = want[to] + row if op == "sum" else np.maximum(want[to], row)
    got = rounded(at, x, places, op=op).cast("float32").numpy()
    np.testing.assert_array_equal(got, Tensor(want).cast("bfloat16").cast("float32").numpy())


def test_a_table_of_rounded_sums_is_never_stored_in_the_wide_dtype() -> None:
    at, x = rng.integers(0, 5000, 100), rng.standard_normal((100, 64)).astype(np.float32)
    wide = [v.size for v in stored(rounded(at, x, 5000)) if v.dtype is dtypes.float32]
    assert wide == [100 * 64]
    few = [v.size for v in stored(rounded(at % 120, x, 120)) if v.dtype is dtypes.float32]
    assert few == [120 * 64], "most of the table changes"
    assert not any(v.op is Ops.SCATTER and v.arg[1] is None for v in stored(rounded(at, x, 5000, GRID)))


def test_a_wide_table_that_is_read_twice_is_stored() -> None:
    at, x = rng.integers(0, 5000, 100), rng.standard_normal((100, 64)).astype(np.float32)
    index = Tensor(at).reshape(-1, 1).expand(100, 64)
    table = Tensor.zeros(5000, 64).scatter_add(0, index, Tensor(x))
    narrow, doubled = table.cast("bfloat16"), table * 2
    np.testing.assert_allclose(narrow.cast("float32").numpy() * 2, doubled.numpy(), rtol=1e-2)
    roots = canonical([_concrete(narrow.uop), _concrete(doubled.uop)])[0]
    sinks = [i.sink.src[0] for i in Scheduler(roots, "CPU").run().items if i.sink is not None]
    assert sum(v.op is Ops.SCATTER for v in sinks) == 1
