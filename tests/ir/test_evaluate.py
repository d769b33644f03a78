"""The interpreters: dtypes, symbolic sizes, exact scalars, and kernel graphs against tensor graphs."""
from __future__ import annotations

import numpy as np
import pytest

from tests.ir.helpers import param
from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.lower.lower import lower
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import ArgumentError
from tinsmith.ir import Ops, UOp
from tinsmith.ir.interpret import kernel as kernel_module
from tinsmith.ir.interpret.kernel import evaluate_kernel
from tinsmith.ir.interpret.tensor import evaluate, evaluate_scalar
from tinsmith.ir.text.printer import kernel_graph_text
from tinsmith.ir.uop import Window
from tinsmith.ir.verify import verify_kernel, verify_tensor

F32, I32 = dtypes.float32, dtypes.int32


@pytest.mark.parametrize("dtype", dtypes.all, ids=str)
def test_results_keep_their_dtype(dtype: object) -> None:
    x = param(0, (), dtype)
    out = evaluate([x + x, x.reshape((1,)).reduce("MAX", (0,)), x.cast(F32)], {x: np.ones((), dtype.numpy)})
    assert [o.dtype for o in out] == [dtype.numpy, dtype.numpy, np.float32]
    assert [o.shape for o in out] == [(), (1,), ()] and all(type(o) is np.ndarray for o in out)


def test_inputs_are_checked() -> None:
    x = param(0, (2,), F32)
    with pytest.raises(KeyError, match="PARAM#0"):
        evaluate([x + 1], {})
    with pytest.raises(ValueError, match="float64"):
        evaluate([x + 1], {x: np.zeros(2)})
    with pytest.raises(ValueError, match="shape"):
        evaluate([x + 1], {x: np.zeros(3, np.float32)})
    with pytest.raises(TypeError, match="no value"):
        evaluate([UOp.range(3, 0, None)])


def test_symbolic_sizes() -> None:
    n = UOp.variable("n", 1, 9)
    bound = UOp(Ops.BIND, None, (n, UOp.index(3)))
    x = param(0, (1,), F32)
    data = {x: np.ones(1, np.float32)}
    assert evaluate([x.expand((n,)).reduce("ADD", (0,))], {**data, n: 5})[0][0] == 5
    assert evaluate([x.expand((bound,)).reduce("ADD", (0,)), bound], data)[0][0] == 3
    assert evaluate([bound * 2])[0] == 6 and evaluate_scalar(bound + 1, {}) == 4


def test_deep_graph() -> None:
    node = x = param(0, (), I32)
    for _ in range(5000):
        node = node.maximum(x)
    assert evaluate([node], {x: np.asarray(3, np.int32)})[0] == 3
    i = UOp.variable("i", 0, 9)
    deep = i
    for _ in range(20_000):
        deep = deep + i
    assert evaluate_scalar(deep, {i: 1}) == 20_001


def test_scalars_are_exact_and_wrap_as_their_dtype_does() -> None:
    i = UOp.variable("i", 0, 9)
    big = UOp.index(1 << 40)
    assert evaluate_scalar(big * big * i, {i: 3}) == 3 << 80
    assert evaluate_scalar(UOp.const(dtypes.int8, 127) + 1, {}) == -128
    assert evaluate_scalar(i.lt(3) & i.ge(1), {i: 2}) is True
    assert evaluate_scalar(i // 0 + i % 0, {i: 5}) == 0 and evaluate_scalar(-i // 2, {i: 5}) == -3
    with pytest.raises(KeyError, match="i"):
        evaluate_scalar(i + 1, {})
    with pytest.raises(TypeError, match="not index arithmetic"):
        evaluate_scalar(param(0, (2,)).reduce("ADD", (0,)), {})


# *** kernel graphs, under several lists of opts, have the value of the tensor graph ***

A, B, V, IDX = param(1, (4, 6), F32), param(2, (6, 5), F32), param(1, (9,), F32), param(2, (4, 6), I32)


def _softmax(x: UOp) -> UOp:
    e = (x - x.reduce("MAX", (1,)).expand(x.shape)).alu("EXP")
    return e / e.reduce("ADD", (1,)).expand(x.shape)


WINDOW = Window(0, 1, 2, 1, 9, 4)
GRAPHS = {
    "elementwise": A * 2 + A.alu("SIN"), "sum": A.reduce("ADD", (0, 1)), "max": A.reduce("MAX", (1,)),
    "matmul": (A.reshape((4, 6, 1)).expand((4, 6, 5)) * B.reshape((1, 6, 5)).expand((4, 6, 5))).reduce("ADD", (1,)),
    "softmax": _softmax(A), "window": V.reshape((9, 1)).expand((9, 3)).window(WINDOW).reduce("ADD", (1,)),
    "unwindow": param(1, (4, 3), F32).unwindow(WINDOW).reduce("ADD", (1,)),
    "pad": A.pad(((1, 2), (0, 1))).alu("EXP").permute((1, 0)).flip((0,)).reshape((7, 7)).shrink(((1, 6), (0, 4))),
    "gather": A.gather(IDX, 0), "scatter-add": A.scatter(IDX, A * 2, 1, "ADD"),
    "scatter-set": A.scatter(IDX, A * 2, 0, None),
    "iota": UOp.iota(7).cast(F32) * 2, "narrow": param(1, (4, 6), dtypes.float16).reduce("ADD", (1,)),
    "bfloat16": param(1, (8,), dtypes.bfloat16).reshape((2, 4)).reduce("ADD", (0,)),
    "int8": param(1, (4, 6), dtypes.int8).reduce("MUL", (0,)), "bool": A.lt(0.0).reduce("OR", (1,)),
}
OPTS = [
    [], [Opt(OptOps.UPCAST, 0, 3)], [Opt(OptOps.PADTO, 0, 4), Opt(OptOps.VECTOR, 0, 2)], [Opt(OptOps.STAGE, 0, ())],
    [Opt(OptOps.STAGE, 0, (0,))], [Opt(OptOps.UNROLL, 1, 4)], [Opt(OptOps.MERGE, 0, 1)], [Opt(OptOps.TILE, 0, 2)],
    [Opt(OptOps.TILE, 0, 2), Opt(OptOps.STAGE, 0, (0,)), Opt(OptOps.THREAD, 0)], [Opt(OptOps.SWAP, 0, 1)],
]


def _inputs(sink: UOp) -> dict[UOp, np.ndarray]:
    rng = np.random.default_rng(0)
    return {p: rng.integers(-1, 6, p.shape).astype(p.dtype.numpy) if p.dtype.is_int else
            rng.standard_normal(p.shape).astype(p.dtype.numpy) for p in sink.toposort() if p.op is Ops.PARAM}


def _run(sink: UOp, inputs: dict[UOp, np.ndarray], outputs: list[np.ndarray]) -> list[np.ndarray]:
    buffers = [*(o.reshape(-1).copy() for o in outputs), *([np.zeros(0)] * 3)]
    for p, value in inputs.items():
        buffers[p.arg[0]] = value
    evaluate_kernel(sink, buffers)
    return [b.reshape(o.shape) for b, o in zip(buffers, outputs)]


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("opts", OPTS, ids=lambda o: "+".join(x.op.name for x in o) or "none")
def test_kernel_graph_means_the_tensor_graph(name: str, opts: list[Opt]) -> None:
    sink = UOp(Ops.SINK, None, (GRAPHS[name],))
    verify_tensor(sink)
    kernel = Kernel(lower(sink))
    try:
        for opt in opts:
            kernel.apply(opt)
    except ArgumentError:
        pytest.skip("not legal here")
    verify_kernel(kernel.sink)
    inputs = _inputs(sink)
    (want,) = evaluate([GRAPHS[name]], inputs)
    (got,) = _run(kernel.sink, inputs, [np.zeros_like(want)])
    np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64),
        rtol=1e-2 if want.itemsize == 2 else 1e-5)


def test_pieces_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = _inputs(GRAPHS["matmul"])
    (want,) = evaluate([GRAPHS["matmul"]], inputs)
    kernel = Kernel(lower(UOp(Ops.SINK, None, (GRAPHS["matmul"],))))
    kernel.apply(Opt(OptOps.STAGE, 0, (0,)))
    for limit in (1, 7, 50):
        monkeypatch.setattr(kernel_module, "_PIECE", limit)
        (got,) = _run(kernel.sink, inputs, [np.zeros_like(want)])
        np.testing.assert_allclose(got, want, rtol=1e-6)


def _memory(number: int, size: int) -> UOp:
    return UOp(Ops.PARAM, dtypes.int32.ptr(), (), (number, (size,)))


def _sink(*stores: UOp) -> UOp:
    return UOp(Ops.SINK, None, stores)


R = UOp.range(4, 0, None)


def test_out_of_bounds_is_an_error_only_where_valid() -> None:
    out, x = np.zeros(4, np.int32), np.arange(1, 5, dtype=np.int32)
    shifted = _memory(1, 4).load(R + 1)
    with pytest.raises(IndexError, match="index 4 is out of bounds for size 4"):
        evaluate_kernel(_sink(_memory(0, 4).store(R, shifted)), [out, x])
    with pytest.raises(IndexError, match="index -1 is out of bounds for size 4"):
        evaluate_kernel(_sink(_memory(0, 4).store(R - 1, UOp.const(I32, 1))), [out])
    masked = _memory(1, 4).load(R + 1, R.lt(3))
    evaluate_kernel(_sink(_memory(0, 4).store(R, masked)), [out, x])
    np.testing.assert_array_equal(out, [2, 3, 4, 0])
    evaluate_kernel(_sink(_memory(0, 4).store(R - 1, UOp.const(I32, 9), R.ge(1))), [out])
    np.testing.assert_array_equal(out, [9, 9, 9, 0])


def test_conflicting_stores_are_an_error() -> None:
    with pytest.raises(ValueError, match="different values"):
        evaluate_kernel(_sink(_memory(0, 4).store(UOp.index(0), R.cast(I32))), [np.zeros(4, np.int32)])


def test_statements_run_in_order_and_see_each_other() -> None:
    out, other = _memory(0, 4), _memory(1, 4)
    first = out.store(R, R.cast(I32))
    second = UOp(Ops.AFTER, dtypes.void, (other.store(R, out.load(R) + 10), first))
    a, b = np.full(4, 7, np.int32), np.zeros(4, np.int32)
    evaluate_kernel(_sink(second), [a, b])
    np.testing.assert_array_equal(b, [10, 11, 12, 13])


def test_a_fold_takes_the_steps_between_its_limits_and_goes_on_from_its_start() -> None:
    q = UOp(Ops.RANGE, dtypes.index, (R, R + 2, UOp.index(6)), (1, None))
    total = UOp(Ops.FOLD, None, (_memory(1, 6).load(q), q, R.cast(I32) * 100), Ops.ADD)
    sink = _sink(_memory(0, 4).store(R, total))
    verify_kernel(sink)
    out = np.zeros(4, np.int32)
    evaluate_kernel(sink, [out, np.array([1, 2, 4, 8, 16, 32], np.int32)])
    np.testing.assert_array_equal(out, [3, 106, 212, 324])
    assert "over R1:R0:R0+2:6 from the second" in kernel_graph_text(sink)


def test_unfilled_places_of_a_stage_may_not_be_read() -> None:
    i = UOp.range(3, 1, None)
    stage = UOp(Ops.STAGE, dtypes.int32.ptr(), (i.cast(I32), i), (4,))
    with pytest.raises(IndexError, match="uninitialized element"):
        evaluate_kernel(_sink(_memory(0, 4).store(R, stage.load(R))), [np.zeros(4, np.int32)])
    out = np.zeros(4, np.int32)
    evaluate_kernel(_sink(_memory(0, 4).store(R, stage.load(R, R.lt(3)))), [out])
    np.testing.assert_array_equal(out, [0, 1, 2, 0])


def test_ranges_of_symbolic_size() -> None:
    n = UOp.variable("n", 0, 4)
    r = UOp.range(n, 0, None)
    out = np.zeros(4, np.int32)
    for size in (0, 3):
        evaluate_kernel(_sink(_memory(0, 4).store(r, r.cast(I32) + 1)), [out], {n: size})
        assert out.tolist() == [1, 2, 3, 0][:4] if size else out.tolist() == [0] * 4


def test_buffers_are_checked() -> None:
    store = _sink(_memory(0, 4).store(R, R.cast(I32)))
    for bad in (np.zeros(4, np.int64), np.zeros(3, np.int32), np.zeros(8, np.int32)[::2]):
        with pytest.raises(ValueError, match="buffer 0"):
            evaluate_kernel(store, [bad])
