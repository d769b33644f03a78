"""The two columns of docs/from_pytorch.md, PyTorch and Tinsmith, run and print the same."""
from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the parity extra (torch==2.13.0) is not installed")

from tests.docrun import ROOT, blocks  # noqa: E402


def test_both_columns_print_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = blocks((ROOT / "docs" / "from_pytorch.md").read_text("utf-8").splitlines())
    namespace: dict[str, Any] = {}
    compared = 0
    for n, theirs in enumerate(found):
        if not theirs.skipped:
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec("\n".join(theirs.text), namespace)
        shown = found[n + 2].text if n + 2 < len(found) and found[n + 2].language == "text" else None
        if shown is not None:
            assert printed.getvalue().splitlines() == shown, f"line {theirs.first}"
            compared += 1
        else:
            assert printed.getvalue() == "[4.0, 4.0, 4.0] [4.0, 4.0, 4.0]\n"
    assert compared == 6
