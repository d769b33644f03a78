"""Factorizations against the definitions of NumPy's and PyTorch's."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg

from tests.tensor.helpers import check_gradient
from tinsmith import Tensor, TinyJit, dtypes
from tinsmith.ir import UOp

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


def test_sixty_four_columns() -> None:
    """The steps of a factorization share kernels: the schedule stays small, and accuracy is unaffected."""
    a = _matrix(64, 64)
    symmetric, positive = a + a.T, a @ a.T + 8 * np.eye(64, dtype=np.float32)
    size = np.linalg.norm(a)
    q, r = (t.numpy() for t in Tensor(a[:, :24]).qr())
    assert abs(q @ r - a[:, :24]).max() < 1e-6 * size and abs(q.T @ q - np.eye(24)).max() < 2e-6
    lower = Tensor(positive).cholesky()
    assert len({item.name for item in lower.schedule() if item.name.startswith("E")}) <= 4
    assert abs(lower.numpy() @ lower.numpy().T - positive).max() < 2e-6 * np.linalg.norm(positive)
    x = Tensor(a).solve(Tensor(a[:, :3])).numpy()
    assert abs(x - np.eye(64)[:, :3]).max() < 1e-3
    symmetric = symmetric[:18, :18]
    values, vectors = (t.numpy() for t in Tensor(symmetric).eigh())
    np.testing.assert_allclose(values, np.linalg.eigvalsh(symmetric), atol=2e-6 * size)
    assert abs(vectors.T @ vectors - np.eye(18)).max() < 2e-6


def test_factorizations_in_a_captured_function() -> None:
    @TinyJit
    def step(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        whole = x @ x.transpose(-1, -2) + Tensor.eye(6)
        return whole.cholesky().realize(), whole.inv().realize(), whole.eigvalsh().realize()

    for seed in range(3):
        a = np.random.default_rng(seed).standard_normal((6, 6)).astype(np.float32)
        whole = a @ a.T + np.eye(6)
        lower, inverse, values = step(Tensor(a))
        np.testing.assert_allclose(lower.numpy(), np.linalg.cholesky(whole), atol=1e-4)
        np.testing.assert_allclose(inverse.numpy(), np.linalg.inv(whole), atol=1e-4)
        np.testing.assert_allclose(values.numpy(), np.linalg.eigvalsh(whole), rtol=1e-4, atol=1e-4)


LINALG = {
    "qr complete": (lambda x: x.qr("complete")[0][:, 2:].matmul(x.qr("complete")[0][:, 2:].T), (3, 2)),
    "qr square": (lambda x: x.qr()[0], (2, 2)),
    "second of inv": (lambda x: x.inv().sum().gradient(x)[0], (2, 2)),
    "second of eigh": (lambda x: (x + x.T).eigh()[1].square().mul(x).sum().gradient(x)[0], (2, 2)),
    "second of cholesky": (lambda x: (x @ x.T).cholesky().square().mul(x).sum().gradient(x)[0], (2, 2)),
    "second of qr": (lambda x: x.qr()[0].mul(x).sum().gradient(x)[0], (3, 2)),
    "second of svd": (lambda x: x.svd(False)[2].square().sum(0).mul(x[0]).sum().gradient(x)[0], (2, 2)),
}


@pytest.mark.parametrize("name", LINALG)
def test_gradients_against_differences(name: str) -> None:
    f, shape = LINALG[name]
    check_gradient(f, np.random.default_rng(3).standard_normal(shape), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(0, 0), (2, 0, 0), (0, 3, 3), (1, 1)])
def test_empty_and_single(shape: tuple[int, ...]) -> None:
    a = np.ones(shape, np.float32) * 2
    for name in ("inv", "det"):
        got, want = getattr(Tensor(a), name)().numpy(), getattr(np.linalg, name)(a)
        assert got.shape == want.shape and np.allclose(got, want)
    assert Tensor(a).cholesky().shape == shape and Tensor(a).solve(Tensor(a)).shape == shape


def test_what_matrices_refuse() -> None:
    x = Tensor([[1.0, 2.0]])
    for name in ("inv", "det", "cholesky", "lu", "slogdet", "eigh", "matrix_exp"):
        with pytest.raises(ValueError, match=name):
            getattr(x, name)()
    with pytest.raises(ValueError, match="as many rows"):
        Tensor([[1.0, 0.0], [0.0, 1.0]]).solve(Tensor([[1.0]]))
    with pytest.raises(TypeError, match=r"\.float\(\)"):
        Tensor([[1, 2], [3, 4]]).inv()
    assert not np.isfinite(Tensor.zeros(2, 2).inv().numpy()).any()


def _well(*shape: int) -> np.ndarray:
    """Return full-rank, well-conditioned matrices; symmetric and positive definite on request."""
    a = np.random.default_rng(3).standard_normal(shape)
    return a @ np.swapaxes(a, -1, -2) + np.eye(shape[-1])


@pytest.mark.parametrize("n", [1, 4])
def test_factorizations_are_scipys(n: int) -> None:
    """In float64; factors that are unique up to signs are compared by magnitude."""
    a, s = np.random.default_rng(n).standard_normal((n, n)), _well(n, n)
    x = Tensor(a)
    close = {"rtol": 1e-9, "atol": 1e-10}
    p, low, up = scipy.linalg.lu(a)
    for got, want in zip(x.lu(), (p, low, up), strict=True):
        np.testing.assert_allclose(got.numpy(), want, **close)
    q, r = scipy.linalg.qr(a)
    for got, want in zip(x.qr(), (q, r), strict=True):
        np.testing.assert_allclose(abs(got.numpy()), abs(want), **close)
    u, values, v = scipy.linalg.svd(a)
    for got, want in zip(x.svd(), (u, values, v), strict=True):
        np.testing.assert_allclose(abs(got.numpy()), abs(want), **close)
    np.testing.assert_allclose(x.svdvals().numpy(), scipy.linalg.svdvals(a), **close)
    w, vectors = scipy.linalg.eigh(s)
    for got, want in zip(Tensor(s).eigh(), (w, vectors), strict=True):
        np.testing.assert_allclose(abs(got.numpy()), abs(want), **close)
    np.testing.assert_allclose(Tensor(s).eigvalsh().numpy(), scipy.linalg.eigvalsh(s), **close)
    for upper in (False, True):
        want = scipy.linalg.cholesky(s, lower=not upper)
        np.testing.assert_allclose(Tensor(s).cholesky(upper).numpy(), want, **close)


@pytest.mark.parametrize("n", [1, 4])
def test_solutions_are_scipys(n: int) -> None:
    rng = np.random.default_rng(n)
    a, b, s = rng.standard_normal((n, n)), rng.standard_normal((n, 3)), _well(n, n)
    tall = rng.standard_normal((n + 3, n))
    low = np.tril(a) + 3 * np.eye(n)
    factor = scipy.linalg.cholesky(s, lower=True)
    close = {"rtol": 1e-8, "atol": 1e-9}
    pairs = [
        (Tensor(a).solve(Tensor(b)), scipy.linalg.solve(a, b)), (Tensor(a).inv(), scipy.linalg.inv(a)),
        (Tensor(a).det(), scipy.linalg.det(a)), (Tensor(tall).pinv(), scipy.linalg.pinv(tall)),
        (Tensor(tall).lstsq(Tensor(tall @ a + 1)).solution, scipy.linalg.lstsq(tall, tall @ a + 1)[0]),
        (Tensor(low).solve_triangular(Tensor(b), upper=False), scipy.linalg.solve_triangular(low, b, lower=True)),
        (Tensor(b).cholesky_solve(Tensor(factor)), scipy.linalg.cho_solve((factor, True), b)),
        (Tensor(a).matrix_exp(), scipy.linalg.expm(a)),
        (Tensor(a).matrix_power(3), scipy.linalg.fractional_matrix_power(a, 3)),
        (Tensor(s).matrix_power(-2), scipy.linalg.fractional_matrix_power(s, -2))]
    for got, want in pairs:
        np.testing.assert_allclose(got.numpy(), want, **close)
    assert Tensor(tall).matrix_rank().item() == n


def test_a_step_has_no_symbolic_shape() -> None:
    """A step's column is gathered: algebra on symbolic sizes took ten times as long as everything else."""
    a = Tensor(_matrix(6, 6))
    for factored in (a.cholesky(), a.lu()[2], a.qr()[1], a.svd()[1]):
        assert not any(isinstance(s, UOp) for n in factored.uop.toposort() for s in n.shape)
