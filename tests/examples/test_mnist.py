"""examples/mnist.py trains on several devices as on one."""
from __future__ import annotations

import importlib.util
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tinsmith.core.dtypes import dtypes
from tinsmith.nn.datasets import Digits, load_digits

FOUR = tuple(f"CPU:{n}" for n in range(4))


@pytest.fixture(scope="module")
def mnist() -> Any:
    pytest.importorskip("rich", reason="the examples extra")
    path = Path(__file__).parents[2] / "tinsmith" / "examples" / "mnist.py"
    spec = importlib.util.spec_from_file_location("example_mnist", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def float64() -> Iterator[None]:
    before = dtypes.default_float
    dtypes.default_float = dtypes.float64
    yield
    dtypes.default_float = before


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Digits:
    """A few of those that scikit-learn ships."""
    pytest.importorskip("sklearn", reason="the examples extra")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tinsmith.nn.datasets._downloaded", lambda data_set: None)  # no network
        found = load_digits(offline="digits")
    return Digits(found.train_images[:400], found.train_labels[:400], found.test_images[:20], found.test_labels[:20],
                  found.source)


def losses(mnist: Any, digits: Digits, devices: tuple[str, ...], steps: int, batch: int) -> np.ndarray[Any, Any]:
    found, accuracy = mnist.train(digits, steps, batch, 0, 2e-3, mnist.Console(file=io.StringIO()), devices)
    assert len(found) == steps and 0 <= accuracy <= 100
    return np.array(found)


@pytest.mark.usefixtures("float64")
def test_float64_on_unequal_parts(mnist: Any, digits: Digits) -> None:
    one, four = (losses(mnist, digits, devices, 10, 30) for devices in (("CPU",), FOUR))
    assert one[-1] < one[0] and np.allclose(four, one, rtol=1e-8, atol=0)


def test_float32_at_step_50(mnist: Any, digits: Digits) -> None:
    one, four = (losses(mnist, digits, devices, 50, 128) for devices in (("CPU",), FOUR))
    assert one[-1] < one[0] / 2 and abs(four[49] / one[49] - 1) < 0.02
