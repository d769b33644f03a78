"""``tinsmith.linalg``, ``fft``, ``special`` and ``random``: every function against PyTorch's of the same name."""
from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.parity.helpers import random, torch
from tinsmith import Tensor, TinyJit, fft, linalg, special
from tinsmith import random as draws
from tinsmith.core.errors import ArgumentError, KeywordError, ShapeError, UnknownNameError
from tinsmith.tensor.math.table import FUNCTIONS

A, B, TALL, BATCH = random(4, 4) + 3 * np.eye(4, dtype=np.float32), random(4, 3), random(5, 3), random(2, 3, 3)
SPD = A @ A.T
SYMMETRIC = A + A.T
LOWER = np.tril(A)
X, Y, P = random(3, 4, 5), random(3, 4, 5, seed=1), random(3, 4, 5) * 0.1 + 0.5
Case = tuple[Callable[..., Any], tuple[Any, ...]]


def call(*arguments: Any, **keywords: Any) -> Callable[..., Any]:
    """Return a call of a function with tensors, then ``arguments``."""
    return lambda f, *x: f(*x, *arguments, **keywords)


LINALG: dict[str, list[Case]] = {
    "norm": [(call(), (X,)), (call(3.0, 1), (X,)), (call(None, (0, 1)), (X,)), (call("nuc"), (A,)), (call(1), (A,)),
             (call(2, (-2, -1), True), (X,)), (call(math.inf), (A[0],)), (call(dim=-1, dtype="float64"), (X,))],
    "vector_norm": [(call(), (X,)), (call(3), (X,)), (call(0, 1), (X,)), (call(-math.inf, (0, 2), True), (X,))],
    "matrix_norm": [(call(ord), (X,)) for ord in ("fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf)]
    + [(call(ord, (2, 0), True), (X,)) for ord in ("fro", 1, math.inf, 2)],
    "diagonal": [(call(), (X,)), (call(offset=1, dim1=0, dim2=2), (X,))],
    "det": [(call(), (A,)), (call(), (BATCH,))], "slogdet": [(call(), (A,)), (call(), (BATCH,))],
    "cond": [(call(p), (A,)) for p in (None, 2, -2, "fro", "nuc", 1, -1, math.inf, -math.inf)],
    "matrix_rank": [(call(), (TALL @ TALL.T,)), (call(atol=2.0), (A,)), (call(rtol=0.3, hermitian=True), (SPD,))],
    "cholesky": [(call(), (SPD,)), (call(upper=True), (SPD,))],
    "qr": [(lambda f, x: positive(*f(x)), (TALL,)), (lambda f, x: positive(*f(x, "reduced")), (A,))],
    "lu": [(call(), (A,)), (call(), (BATCH,))],
    "eigh": [(lambda f, x: f(x)[0], (SYMMETRIC,)), (lambda f, x: rebuilt(*f(x, "U")), (SYMMETRIC,))],
    "eigvalsh": [(call(), (SYMMETRIC,)), (call("U"), (SYMMETRIC,))],
    "svd": [(lambda f, x: f(x)[1], (TALL,)), (lambda f, x: product(*f(x, False)), (TALL,))],
    "svdvals": [(call(), (TALL,)), (call(), (X,))],
    "solve": [(call(), (A, B)), (call(), (A, B[:, 0])), (call(left=False), (A, B.T.copy()))],
    "solve_triangular": [(call(upper=False), (LOWER, B)), (call(upper=True, unitriangular=True), (LOWER.T.copy(), B)),
                         (call(upper=False, left=False), (LOWER, B.T.copy()))],
    "lstsq": [(lambda f, *x: f(*x)[0], (TALL, random(5, 2)))],
    "inv": [(call(), (A,)), (call(), (BATCH,))],
    "pinv": [(call(), (TALL,)), (call(rtol=0.3), (TALL,)), (call(hermitian=True), (SPD,))],
    "matrix_exp": [(call(), (A * 0.3,)), (call(), (BATCH,))],
    "matrix_power": [(call(n), (A,)) for n in (-2, 0, 3)],
    "cross": [(call(), (random(4, 3), random(4, 3, seed=1))), (call(dim=0), (random(3, 4), random(3, 4, seed=1)))],
    "matmul": [(call(), (A, B)), (call(), (A, B[:, 0]))],
    "vecdot": [(call(), (X, Y)), (call(dim=0), (X, Y))],
    "multi_dot": [(lambda f, *x: f(x), (A, B, B.T.copy())), (lambda f, *x: f(x), (A[0], B)),
                  (lambda f, *x: f(x), (A[0], A, B, B[0]))],
    "tensorinv": [(call(2), (random(2, 3, 6),)), (call(ind=1), (random(6, 2, 3),))],
    "tensorsolve": [(call(), (random(2, 3, 6), random(2, 3))), (call(dims=(0, 2)), (random(2, 6, 3), random(6)))],
    "vander": [(call(), (B[0],)), (call(N=5), (X,))],
}
PAIRS = random(3, 4, 6, 2)
FFT: dict[str, list[Case]] = {
    **{name: [(call(*a), (PAIRS,)) for a in ((), (5, 1), (8, -1, "ortho"), (None, 0, "forward"))]
       for name in ("fft", "ifft", "irfft", "hfft")},
    **{name: [(call(*a), (X,)) for a in ((), (5, 1), (8, -1, "ortho"), (None, 0, "forward"))]
       for name in ("rfft", "ihfft")},
    **{name: [(call(*a), (PAIRS,)) for a in ((), ((4, 3),), (None, (0, 1), "ortho"), ((5, 6), (2, 0), "forward"))]
       for name in ("fft2", "ifft2", "irfft2", "hfft2", "fftn", "ifftn", "irfftn", "hfftn")},
    **{name: [(call(*a), (X,)) for a in ((), ((4, 3),), (None, (0, 1), "ortho"), ((5, 6), (2, 0), "forward"))]
       for name in ("rfft2", "ihfft2", "rfftn", "ihfftn")},
    **{name: [(lambda f, n=n, d=d: f(n, d), ()) for n, d in ((5, 1.0), (8, 0.5))] for name in ("fftfreq", "rfftfreq")},
    "fftshift": [(call(), (X,)), (call(1), (X,))], "ifftshift": [(call(), (X,)), (call((0, 2)), (X,))],
}
SPECIAL: dict[str, list[Case]] = {
    **{name: [(call(), (np.linspace(row.low, row.high, 60, dtype=np.float32),))] for method, row in FUNCTIONS.items()
       if (name := row.torch.removeprefix("special.") or method) in special.__all__},
    **{name: [(call(), (P,))] for name in ("expit", "exp2", "expm1", "gammaln", "log1p", "logit", "psi", "round")},
    "multigammaln": [(call(2), (P + 1,))], "polygamma": [(lambda f, x: f(2, x), (P,))],
    "xlogy": [(call(), (X, P)), (lambda f, x: f(2.0, x), (P,))],
    "xlog1py": [(call(), (X, P)), (lambda f, x: f(0.0, x), (P,))],
    "logsumexp": [(call(1), (X,)), (call((0, 2), True), (X,))],
    "softmax": [(call(1), (X,))], "log_softmax": [(call(-1), (X,))],
}
SPECIAL["round"].append((call(decimals=1), (X,)))
SPECIAL["logit"].append((call(eps=0.45), (P,)))
CASES = [(module, name, k) for module, cases in ((linalg, LINALG), (fft, FFT), (special, SPECIAL))
         for name, found in cases.items() for k in range(len(found))]
TABLES = {linalg: LINALG, fft: FFT, special: SPECIAL}


def positive(q: Any, r: Any) -> tuple[Any, Any]:
    """Return the factors of QR with a positive diagonal, which is unique."""
    sign = r.diagonal().sign()
    return q * sign, r * sign[:, None]


def rebuilt(w: Any, v: Any) -> Any:
    return (v * w) @ v.T


def product(u: Any, s: Any, v: Any) -> Any:
    return (u * s) @ v


def values(found: Any) -> list[np.ndarray[Any, Any]]:
    """Return the arrays of a result; complex numbers as pairs."""
    if isinstance(found, (tuple, list)):
        return [a for f in found for a in values(f)]
    if isinstance(found, Tensor):
        return [found.numpy()]
    return [torch.view_as_real(found.resolve_conj()).numpy() if found.is_complex() else found.numpy()]


@pytest.mark.parametrize(("module", "name", "k"), CASES, ids=[f"{m.__name__[9:]}.{n}-{k}" for m, n, k in CASES])
def test_values(module: Any, name: str, k: int) -> None:
    run, arrays = TABLES[module][name][k]
    theirs = getattr(getattr(torch, module.__name__.removeprefix("tinsmith.")), name)

    def reference(*x: Any, dtype: Any = None, **keywords: Any) -> Any:
        pairs = module is fft and name not in ("rfft", "rfft2", "rfftn", "ihfft", "ihfft2", "ihfftn", "fftshift",
                                               "ifftshift", "fftfreq", "rfftfreq")
        x = (torch.view_as_complex(x[0]), *x[1:]) if pairs else x
        more = {} if dtype is None else {"dtype": getattr(torch, dtype)}
        return theirs(*x, **keywords, **more)

    got = values(run(getattr(module, name), *map(Tensor, arrays)))
    want = values(run(reference, *map(torch.from_numpy, arrays)))
    assert len(got) == len(want)
    for a, b in zip(got, want):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4 if module is linalg else 2e-5)


@pytest.mark.parametrize("module", [linalg, fft, special], ids=lambda m: m.__name__)
def test_every_function_of_pytorchs_is_tested_or_named_as_missing(module: Any) -> None:
    theirs = getattr(torch, module.__name__.removeprefix("tinsmith."))
    names = {n for n in dir(theirs) if not n.startswith("_") and callable(getattr(theirs, n)) and n[0].islower()
             and not inspect.ismodule(getattr(theirs, n)) and inspect.isbuiltin(getattr(theirs, n))}
    assert set(module.__all__) == set(TABLES[module])
    assert names <= {*module.__all__, *getattr(module, "ABSENT", ())}, names
    for name in getattr(module, "ABSENT", ()):
        with pytest.raises(UnknownNameError, match="Try: "):
            getattr(module, name)


def test_gradients_flow_through_the_functions() -> None:
    x, y = Tensor(A), torch.from_numpy(A.copy()).requires_grad_()
    (linalg.matrix_norm(x, 1) + linalg.tensorinv(x, 1).sum() + special.erf(fft.ihfft2(x)).sum()).backward()
    theirs = torch.view_as_real(torch.fft.ihfft2(y))
    (torch.linalg.matrix_norm(y, 1) + torch.linalg.tensorinv(y, 1).sum() + torch.special.erf(theirs).sum()).backward()
    np.testing.assert_allclose(x.grad.numpy(), y.grad.numpy(), rtol=1e-3, atol=1e-4)


def test_errors_name_the_function() -> None:
    for error, run in ((ShapeError, lambda: linalg.norm(Tensor(X), 2)), (ArgumentError, lambda: linalg.norm(
            Tensor(A[0]), "fro")), (ArgumentError, lambda: linalg.matrix_norm(Tensor(A), 3)),
            (ArgumentError, lambda: linalg.multi_dot([Tensor(A)])), (ShapeError, lambda: linalg.tensorinv(Tensor(X))),
            (ShapeError, lambda: linalg.tensorsolve(Tensor(X), Tensor(A))), (ShapeError, lambda: linalg.vander(
                Tensor(1.0))), (KeywordError, lambda: linalg.det(Tensor(A), axis=1)),
            (ArgumentError, lambda: fft.hfftn(Tensor(PAIRS), (3,), (0, 1))),
            (ArgumentError, lambda: draws.set_rng_state((1, -1)))):
        with pytest.raises(error, match="Try: "):
            run()


def test_the_random_stream_is_put_back() -> None:
    draws.manual_seed(5)
    assert draws.initial_seed() == 5
    first = draws.rand(4).tolist()
    state = draws.get_rng_state()
    second = draws.randn(4).tolist()
    draws.set_rng_state(state)
    assert draws.randn(4).tolist() == second
    draws.set_rng_state(state)
    with draws.fork_rng():
        draws.manual_seed(5)
        assert draws.rand(4).tolist() == first
    assert draws.randn(4).tolist() == second
    assert draws.seed() == draws.initial_seed() != 5


def test_draws_have_their_distributions() -> None:
    draws.manual_seed(0)
    low, high = draws.uniform(2000, low=-1.0, high=3.0).numpy(), draws.normal(2000, mean=2.0, std=3.0).numpy()
    assert low.min() >= -1 and low.max() < 3 and abs(low.mean() - 1) < 0.1
    assert abs(high.mean() - 2) < 0.3 and abs(high.std() - 3) < 0.3
    assert set(draws.randint(200, low=2, high=5).tolist()) == {2, 3, 4}
    assert sorted(draws.randperm(50).tolist()) == list(range(50))
    assert abs(draws.bernoulli(Tensor.full((2000,), 0.25)).numpy().mean() - 0.25) < 0.05
    assert set(draws.multinomial(Tensor([0.0, 1.0, 1.0]), 200, True).tolist()) == {1, 2}


def test_a_captured_function_may_not_set_the_state() -> None:
    state = draws.get_rng_state()

    @TinyJit
    def step(x: Tensor) -> Tensor:
        draws.set_rng_state(state)
        return (x + draws.rand(2)).realize()

    found = [step(Tensor([1.0, 2.0]).realize()).tolist() for _ in range(4)]
    assert found[0] == found[1] == found[2] == found[3]
