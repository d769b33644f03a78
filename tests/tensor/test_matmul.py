"""Matrix products against NumPy."""
from __future__ import annotations

import numpy as np
import pytest

from tests.tensor.helpers import RTOL, check, values, wide
from tinsmith import Tensor, dtypes
from tinsmith.core.dtypes import sum_dtype
from tinsmith.ir import Ops

SHAPES = [((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 2)), ((2, 3), (3, 4)), ((5, 2, 3), (3, 4)), ((2, 3), (5, 3, 4)),
          ((5, 2, 3), (5, 3, 4)), ((6, 1, 2, 3), (5, 3, 4)), ((3,), (5, 3, 4)), ((5, 2, 3), (3,)), ((1, 1), (1, 1)),
          ((2, 0), (0, 3)), ((0, 2), (2, 3))]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_shapes(shapes) -> None:
    x, y = (values(s, dtypes.float32, seed=n) for n, s in enumerate(shapes))
    check(Tensor(x) @ Tensor(y), x.astype(np.float64) @ y.astype(np.float64), dtypes.float32, rtol=1e-5, atol=1e-5)
    check(Tensor(x).dot(y), x @ y, dtypes.float32, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", dtypes.all, ids=str)
def test_dtypes(dtype) -> None:
    x, y = values((4, 7), dtype, seed=1), values((7, 3), dtype, seed=2)
    result = sum_dtype(dtype) if dtype.is_bool else dtype
    want = wide(x) @ wide(y) if dtype.is_float else x.astype(result.numpy) @ y.astype(result.numpy)
    check(Tensor(x) @ Tensor(y), want, result, rtol=2 * RTOL.get(dtype, 0), atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_with_partial_tiles(dtype) -> None:
    """A zero constant cast at two loop depths is emitted once."""
    x, y = (Tensor(values(s, dtypes.float32, seed=n)).cast(dtype) for n, s in enumerate([(521, 523), (523, 7)]))
    want = x.float().numpy() @ y.float().numpy()
    check((x @ y).float(), want, dtypes.float32, rtol=0.02, atol=0.05)


def test_halves_are_summed_in_float32() -> None:
    n = 5000
    x = Tensor.ones(1, n, dtype=dtypes.float16) * 0.1
    exact = n * float(np.float16(0.1)) ** 2
    assert abs((x @ x.T).item() - exact) <= np.spacing(np.float16(exact))
    assert abs((x @ x.transpose()).item() - exact) <= np.spacing(np.float16(exact))
    assert Tensor.ones(2, 2, dtype="bfloat16").dot(Tensor.ones(2, 2, dtype="bfloat16"),
                                                   dtype="float32").dtype is dtypes.float32


def test_dot_of_vectors_is_mul_and_sum() -> None:
    node = Tensor([1, 2]).dot(Tensor([3, 4])).uop
    assert node.op is Ops.RESHAPE and node.src[0].op is Ops.REDUCE and node.src[0].src[0].op is Ops.MUL
    assert all(s.base.op is Ops.COPY for s in node.src[0].src[0].src)


def test_large() -> None:
    x, y = values((130, 70), dtypes.float32, -1, 1, 1), values((70, 110), dtypes.float32, -1, 1, 2)
    check(Tensor(x) @ Tensor(y), x.astype(np.float64) @ y.astype(np.float64), rtol=1e-4, atol=1e-5)
    check(Tensor(x.T.copy()).T @ Tensor(y.T.copy()).T, x.astype(np.float64) @ y.astype(np.float64), rtol=1e-4,
          atol=1e-5)


def test_linear_outer_and_arrays() -> None:
    x, w = values((5, 3), dtypes.float64, seed=1), values((3, 4), dtypes.float64, seed=2)
    b = values((4,), dtypes.float64, seed=3)
    check(Tensor(x).linear(Tensor(w), Tensor(b)), x @ w + b)
    check(Tensor(x).linear(Tensor(w[:, 0])), x * w[:, 0])
    check(Tensor(b).outer(Tensor(x[0])), np.outer(b, x[0]))
    check(x @ Tensor(w), x @ w)
    check(Tensor(x).matmul(w), x @ w)


@pytest.mark.parametrize("formula, shapes", [
    ("ij,jk->ik", [(2, 3), (3, 4)]), ("ij,jk", [(2, 3), (3, 4)]), ("ij->ji", [(2, 3)]), ("ij->", [(2, 3)]),
    ("ii->i", [(3, 3)]),
    ("ii", [(3, 3)]), ("bij,bjk->bik", [(5, 2, 3), (5, 3, 4)]), ("i,j->ij", [(2,), (3,)]),
    ("ij,ij->i", [(2, 3), (2, 3)]),
    ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]), ("...ij,...jk->...ik", [(5, 2, 3), (5, 3, 4)]),
    ("...ij,...jk->...ik", [(7, 5, 2, 3), (5, 3, 4)]), ("bqhd, bkhd -> bhqk", [(2, 3, 4, 5), (2, 6, 4, 5)]),
    ("i...->...", [(2, 3, 4)]),
    ("iij,jk->ik", [(3, 3, 2), (2, 4)]), ("...", [(2, 3)]), ("ij...,kj->ik...", [(2, 3, 4), (5, 3)]),
], ids=str)
def test_einsum(formula, shapes) -> None:
    inputs = [values(s, dtypes.float64, seed=n) for n, s in enumerate(shapes)]
    check(Tensor.einsum(formula, *map(Tensor, inputs)), np.einsum(formula, *inputs), rtol=1e-9)


@pytest.mark.parametrize("bad, message", [
    (lambda: Tensor.ones(2, 3) @ Tensor.ones(4, 5),
     r"\(2, 3\) and \(4, 5\).*axis 1 of the first has 3, axis 0 of the second has 4"),
    (lambda: Tensor.ones(2) @ 3, "scalars"),
    (lambda: Tensor.ones(5, 2, 3) @ Tensor.ones(4, 3, 2), "broadcast"),
    (lambda: Tensor.einsum("ij,jk->ik", Tensor.ones(2, 3), Tensor.ones(4, 5)), r"letter 'j' is 3 and 4"),
    (lambda: Tensor.einsum("ij->ik", Tensor.ones(2, 3)), "'k'"),
    (lambda: Tensor.einsum("ij", Tensor.ones(2)), "for shape"),
    (lambda: Tensor.einsum("ij,jk", Tensor.ones(2, 2)), "2 operands"),
    (lambda: Tensor.ones(2, 2).outer(Tensor.ones(2)), "two vectors"),
])
def test_errors(bad, message) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        bad()
    assert "test_matmul.py" in str(caught.value)


@pytest.mark.parametrize("device", ["CPU", "CPU:C", "PYTHON"])
def test_products_over_nothing_inside_a_graph(device: str) -> None:
    a, b, c = (Tensor.rand(*shape, device=device) for shape in ((2, 4, 17), (17, 0), (0, 16)))
    floor = Tensor(np.ones((2, 4, 16), np.float32), device=device)
    for empty in (a @ b, (a @ b).relu() + 1, (a @ b).minimum(3)):
        check((empty @ c).minimum(floor), np.zeros((2, 4, 16), np.float32))
        check(floor.minimum(empty @ c).sum(-1), np.zeros((2, 4), np.float32))
        check(empty.contiguous().sum(-1) + 1, np.ones((2, 4), np.float32))


def test_products_over_nothing_on_another_device() -> None:
    x, other = Tensor([[1.0, 2.0]]), Tensor(np.ones((4, 17), np.float32), device="CPU:1")
    nothing = (other @ Tensor.zeros(17, 0, device="CPU:1")).relu() @ Tensor.rand(0, 3, device="CPU:1")
    assert nothing.device == "CPU:1"
    both = (nothing + 1).contiguous()
    Tensor.realize(x + 1, both, other.contiguous()[:, :3] + both)
    check((other[:, :3] + both), np.full((4, 3), 2, np.float32))
