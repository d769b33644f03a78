"""LARS and Muon against their formulas, and Muon against PyTorch's."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tinsmith import Tensor
from tinsmith.nn.optim import LARS, Muon, Optimizer

RNG = np.random.default_rng(0)
W, G = RNG.standard_normal((4, 3)), RNG.standard_normal((5, 4, 3))
COEFFICIENTS = (3.4445, -4.775, 2.0315)


def _steps(opt: type[Optimizer], **arguments: Any) -> np.ndarray:
    w = Tensor(W.astype(np.float32))
    made = opt([w], **arguments)
    for g in G:
        made.zero_grad()
        (w * Tensor(g.astype(np.float32))).sum().backward()
        made.step()
    return w.numpy()


def _polar(x: np.ndarray, steps: int) -> np.ndarray:
    x = x.T / (np.linalg.norm(x) + 1e-7)
    a, b, c = COEFFICIENTS
    for _ in range(steps):
        s = x @ x.T
        x = a * x + b * s @ x + c * s @ s @ x
    return x.T


def _lars(lr: float = 0.1, momentum: float = 0.9, weight_decay: float = 1e-4, ns_steps: int = 0, nesterov: bool = False,
          classic: bool = True, pre_wd: bool = True, tcoef: float = 1e-3, scale: float = 1.0) -> np.ndarray:
    p, b = W.copy(), np.zeros_like(W)
    for g in G:
        size, slope = np.linalg.norm(p), np.linalg.norm(g)
        rate = lr * (tcoef * size / (slope + weight_decay * size) if tcoef else 1.0)
        g = g + weight_decay * p if pre_wd else g
        b = momentum * b + (g * rate if classic else g)
        g = (g * rate if classic else g) + momentum * b if nesterov else b
        g = _polar(g, ns_steps) if ns_steps else g
        p = p * (1 if pre_wd else 1 - lr * weight_decay) - (g if classic else g * rate * scale)
    return p


@pytest.mark.parametrize("arguments", [
    {}, {"nesterov": True, "classic": False, "pre_wd": False}, {"tcoef": 0.01, "weight_decay": 0.1, "pre_wd": False},
    {"tcoef": 0.0, "momentum": 0.0}])
def test_lars(arguments: dict[str, Any]) -> None:
    np.testing.assert_allclose(_steps(LARS, lr=0.1, **arguments), _lars(**arguments), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("adjust", [True, False])
def test_muon(adjust: bool) -> None:
    wanted = _lars(0.1, 0.95, 0.1, 5, True, False, False, 0.0, (4 / 3) ** 0.5 if adjust else 1.0)
    np.testing.assert_allclose(_steps(Muon, lr=0.1, adjust_lr=adjust), wanted, rtol=1e-3, atol=1e-4)


def test_muon_is_pytorchs() -> None:
    torch = pytest.importorskip("torch")
    w = torch.tensor(W, dtype=torch.float32, requires_grad=True)
    opt = torch.optim.Muon([w], lr=0.1)
    for g in G:
        w.grad = torch.tensor(g, dtype=torch.float32)
        opt.step()
    np.testing.assert_allclose(_steps(Muon, lr=0.1), w.detach().numpy(), atol=0.03)  # it iterates in bfloat16


def test_refusal() -> None:
    with pytest.raises(ValueError, match="ns_coefficients"):
        LARS([Tensor([1.0])], ns_steps=2)
