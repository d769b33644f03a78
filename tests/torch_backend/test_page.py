"""The coverage table of docs/torch.md is that of the rules."""
from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the backend of torch.compile needs PyTorch")

from tests import torchdoc  # noqa: E402


def test_the_coverage_table_is_current() -> None:
    text = torchdoc.PAGE.read_text("utf-8")
    release = ".".join(torch.__version__.split(".")[:2])
    if f"(PyTorch {release})" not in text:
        pytest.skip(f"the table is of another release than PyTorch {release}")
    assert text == torchdoc.page(), "python tests/torchdoc.py rewrites it"
