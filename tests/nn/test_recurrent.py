"""The kernels of recurrent layers: their number per step."""
from __future__ import annotations

import pytest

from tests.schedule.helpers import kernels
from tinsmith import Tensor, nn


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_a_step_is_two_kernels(kind: str) -> None:
    """One for the product, and one for the gates and the new state."""
    layer = getattr(nn, kind)(8, 16)
    Tensor.realize(*nn.state.get_parameters(layer))

    def count(steps: int) -> int:
        with Tensor.no_grad():
            return len(kernels(layer(Tensor.ones(steps, 4, 8).contiguous().realize())[0]))

    assert count(9) - count(5) == 4 * 2
