"""First and second derivatives of random programs against PyTorch: all differentiable methods, with ties and empty
values.

Every fourth program is compiled. The others are given their meaning by the op table, which takes no compiler's time.
"""
from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the parity extra (torch==2.13.0) is not installed")

from tests.properties.differentiable import Program, build  # noqa: E402
from tests.properties.runner import FEW  # noqa: E402
from tinsmith import Tensor  # noqa: E402
from tinsmith.core.errors import GradientError  # noqa: E402
from tinsmith.ir import Ops  # noqa: E402
from tinsmith.ir.interpret.tensor import evaluate  # noqa: E402
from tinsmith.runtime.launch import copy_to_host  # noqa: E402

RTOL, ATOL = 1e-6, 1e-7
ROUNDINGS = 64  # of first derivatives, which can be of size 1e12 (a row of zeros, normalized) and cancel in second ones


def values_of(p: Program, x: Tensor) -> Any:
    if p.compiled:
        return x.numpy()
    memory = {n: copy_to_host(n) for n in x.uop.toposort() if n.op is Ops.BUFFER}
    return evaluate([x.uop], memory)[0]


def close(p: Program, what: str, ours: Tensor, theirs: Any, noise: float = 0.0) -> None:
    """Check equality up to rounding and cancellation of larger terms, where PyTorch's value is finite."""
    expected = theirs.detach().numpy()
    assert tuple(ours.shape) == expected.shape, f"{what}: shape {ours.shape}, PyTorch {expected.shape}"
    with np.errstate(invalid="ignore", over="ignore"):
        found = np.where(np.isfinite(expected), values_of(p, ours), 0)
    expected = np.where(np.isfinite(expected), expected, 0)
    scale = max(1.0, float(np.abs(expected).max(initial=0)))
    np.testing.assert_allclose(found, expected, RTOL, ATOL * scale + noise, err_msg=what)


def derivatives(p: Program, ours: Any, theirs: Any, what: str, linear: bool = False,
                noise: float = 0.0) -> tuple[list[Any], list[Any]]:
    """Return the gradients of both scalars for each input; where PyTorch has none, ours must be missing or zero.

    Args:
        linear: whether ours may be missing where PyTorch's is zero: it keeps constant derivatives in its graph.
    """
    wanted = [p.theirs[n] for n in p.inputs]
    expected = [None if e is None else e + 0 for e in
                torch.autograd.grad(theirs, wanted, create_graph=True, allow_unused=True)]
    found = []
    for n, e in zip(p.inputs, expected):
        try:
            g = ours.gradient(p.ours[n])[0]
        except GradientError:
            assert e is None or (linear and not bool(e.any())), f"{what} for {n}: none, PyTorch has one"
            g = None
        if g is not None:
            close(p, f"{what} for {n}", g, torch.zeros(p.shape(n), dtype=torch.float64) if e is None else e, noise)
        found.append(g)
    return found, list(expected)


def projected(p: Program, ours: list[Any], theirs: list[Any]) -> tuple[Any, Any] | None:
    """Return a random weighted sum of values that both have."""
    pairs = [(a, b) for a, b in zip(ours, theirs) if a is not None and b is not None and b.requires_grad]
    mine = other = None
    for a, b in pairs:
        weights = np.asarray(p.numpy.normal(size=tuple(b.shape)).round(2))
        x, y = (a * Tensor(weights, requires_grad=False)).sum(), (b * torch.tensor(weights)).sum()
        mine, other = (x, y) if mine is None else (mine + x, other + y)
    return None if mine is None else (mine, other)


def compared(p: Program) -> None:
    for name in p.values:
        close(p, name, p.ours[name], p.theirs[name])
    finite = all(bool(torch.isfinite(p.theirs[n]).all()) for n in p.values)
    by_logarithms = any("logcumsumexp" in line for line in p.lines)  # PyTorch takes logarithms of its gradient:
    if by_logarithms and not finite:  # NaN is dropped there
        return
    kept = p.values[-3:]
    loss = projected(p, [p.ours[n] for n in kept], [p.theirs[n] for n in kept])
    if loss is None:
        return
    ours, theirs = derivatives(p, *loss, "first derivative")
    again = projected(p, ours, theirs)
    if again is None or not bool(torch.isfinite(again[1])) or by_logarithms:  # and zero has no second derivative
        return
    try:
        torch.autograd.grad(again[1], [p.theirs[n] for n in p.inputs], allow_unused=True, retain_graph=True)
    except (RuntimeError, NotImplementedError):  # PyTorch has no second derivative of some functions
        return
    slopes = [float(e.detach().abs().max()) for e in theirs if e is not None and e.numel()]
    noise = ROUNDINGS * float(np.finfo(np.float64).eps) * max(slopes, default=0.0)
    derivatives(p, *again, "second derivative", linear=True, noise=noise)


def check(seed: int) -> None:
    """Compare a random program's values, first and second derivatives with PyTorch's."""
    p = Program(seed)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch's, of deviations of one value
            build(p)
            compared(p)
    except Exception as error:
        raise AssertionError("\n".join([*p.lines, f"{type(error).__name__}: {error}"])) from error


@pytest.mark.parametrize("seed", range(FEW))
def test_gradients(seed: int) -> None:
    check(seed)
