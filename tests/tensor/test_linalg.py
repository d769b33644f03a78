"""Factorizations against NumPy's and PyTorch's definitions."""
from __future__ import annotations

import numpy as np
import pytest

from tests.tensor.helpers import check_gradient
from tinsmith import Tensor, dtypes

SHAPES = [(1, 1), (3, 3), (5, 3), (3, 5), (2, 4, 3), (2, 3, 4)]


def _matrix(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mode", ["reduced", "complete"])
def test_qr(shape: tuple[int, ...], mode: str) -> None:
    a = _matrix(*shape)
    q, r = (t.numpy() for t in Tensor(a).qr(mode))
    wanted = np.linalg.qr(a, mode=mode)
    assert (q.shape, r.shape) == (wanted.Q.shape, wanted.R.shape)
    np.testing.assert_allclose(q @ r, a, atol=2e-6)
    np.testing.assert_allclose(np.abs(r), np.abs(wanted.R), atol=3e-6)
    square = np.swapaxes(q, -1, -2) @ q
    np.testing.assert_allclose(square, np.broadcast_to(np.eye(q.shape[-1]), square.shape), atol=2e-6)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("full", [True, False])
def test_svd(shape: tuple[int, ...], full: bool) -> None:
    a = _matrix(*shape)
    u, s, v = (t.numpy() for t in Tensor(a).svd(full))
    k = min(shape[-2:])
    np.testing.assert_allclose(s, np.linalg.svd(a)[1], rtol=1e-5)
    np.testing.assert_allclose((u[..., :k] * s[..., None, :]) @ v[..., :k, :], a, atol=3e-6)
    for m in (np.swapaxes(u, -1, -2) @ u, v @ np.swapaxes(v, -1, -2)):
        np.testing.assert_allclose(m, np.broadcast_to(np.eye(m.shape[-1]), m.shape), atol=4e-6)
    assert u.shape[-1] == (shape[-2] if full else k) and v.shape[-2] == (shape[-1] if full else k)


def test_svd_of_less_than_full_rank() -> None:
    a = np.outer([1.0, 2.0, 3.0], [1.0, 1.0, -1.0]).astype(np.float32)
    u, s, v = (t.numpy() for t in Tensor(a).svd())
    np.testing.assert_allclose(s, [np.sqrt(42), 0, 0], atol=1e-5)
    np.testing.assert_allclose(u.T @ u, np.eye(3), atol=2e-6)
    np.testing.assert_allclose((u * s) @ v, a, atol=2e-6)
    assert Tensor.zeros(2, 2).svd()[1].tolist() == [0, 0]


def test_gradients() -> None:
    a = _matrix(4, 3).astype(np.float64)
    weights = np.arange(1.0, 4.0)

    def singular(x: Tensor) -> Tensor:
        return x.svd()[1] * Tensor(weights, dtype=dtypes.float64)

    def spectral(x: Tensor) -> Tensor:  # no sign of a singular vector is left
        u, s, v = x.svd(full_matrices=False)
        return u @ (s * Tensor(weights, dtype=dtypes.float64)).diag() @ v

    check_gradient(singular, a)
    check_gradient(spectral, a)
    check_gradient(lambda x: x.qr()[1], a)


def test_newton_schulz_makes_a_matrix_orthogonal() -> None:
    for shape in ((3, 3), (2, 4), (4, 2)):
        x = Tensor(_matrix(*shape)).newton_schulz(30, (2, -1.5, 0.5)).numpy()
        small = x @ x.T if shape[0] <= shape[1] else x.T @ x
        np.testing.assert_allclose(small, np.eye(min(shape)), atol=1e-4)


def test_refusals() -> None:
    with pytest.raises(ValueError, match="matrix"):
        Tensor([1.0]).qr()
    with pytest.raises(TypeError, match=r"\.float\(\)"):
        Tensor([[1, 2]]).svd()
