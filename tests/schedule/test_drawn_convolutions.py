"""Convolutions of random sizes on a device where copies are free: what can go through boxes does."""
from __future__ import annotations

import itertools
from random import Random
from typing import Any

import numpy as np
import pytest

from tests.properties.runner import FEW
from tests.schedule.helpers import make_copies_free
from tinsmith import Context, Tensor

DEVICE = "PYTHON:G512:C3:B232448"


def drawn(random: Random) -> dict[str, Any] | None:
    """Return a convolution of random sizes; None if its windows do not fit the image."""
    pick = random.choice
    n, size = pick([1, 2, 3, 8]), (random.randint(3, 13), random.randint(3, 13))
    kernel, stride = (pick([1, 1, 2, 3, 5]), pick([1, 2, 3, 5])), (pick([1, 1, 2]), pick([1, 1, 2]))
    dilation, padding = pick([1, 1, 2]), (random.randint(0, 2), random.randint(0, 2))
    if any(s + 2 * p < dilation * (k - 1) + 1 for s, p, k in zip(size, padding, kernel)):
        return None
    image, last, of = (n, pick([64, 72]), *size), random.random() < 0.5, pick(["y", "x", "w", "w"])
    return {"image": image, "weight": (64, image[1], *kernel), "channels last": last, "of": of,
            "how": {"stride": stride, "dilation": dilation, "padding": padding}}


def computed(case: dict[str, Any], dtype: Any, device: str) -> np.ndarray:
    """Return a convolution's result, or one of its gradients, for small integers."""
    def integers(shape: tuple[int, ...], last: bool) -> Tensor:
        a = np.random.default_rng(sum(shape)).integers(-3, 4, shape).astype(dtype)
        if not last:
            return Tensor(a, device=device).realize()
        return Tensor(a.transpose(0, 2, 3, 1).copy(), device=device).realize().permute(0, 3, 1, 2)

    x, w = integers(case["image"], case["channels last"]), integers(case["weight"], False)
    x.requires_grad, w.requires_grad = True, True
    y = x.conv2d(w, **case["how"])
    if case["of"] == "y":
        return y.numpy()
    return y.gradient(x if case["of"] == "x" else w, gradient=integers(y.shape, case["channels last"]))[0].numpy()


@pytest.mark.parametrize("dtype", [np.float16, np.float32], ids=["float16", "TF32"])
def test_drawn_convolutions_and_gradients(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A window of 2 elements that moves by 2 over a padded image had a box when it was planned, and none later."""
    make_copies_free(monkeypatch, DEVICE)
    cases = (c for seed in itertools.count() if (c := drawn(Random(f"{dtype.__name__} {seed}"))) is not None)
    for case in itertools.islice(cases, max(FEW // 4, 1)):
        with Context(ALLOW_TF32=int(dtype is np.float32)):
            got, want = computed(case, dtype, DEVICE), computed(case, dtype, "CPU")
        np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-3 * np.abs(want).max(), err_msg=str(case))
