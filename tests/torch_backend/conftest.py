"""What the tests of the backend of ``torch.compile`` share."""
from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    """A compiler without history, before and after a test; PyTorch's random numbers from the start."""
    torch = pytest.importorskip("torch", reason="the backend of torch.compile needs PyTorch")
    import tinsmith.torch as ours

    torch._dynamo.reset()
    ours.report().clear()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()
