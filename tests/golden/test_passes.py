"""The output of each pass for small kernels equals its golden file."""
from __future__ import annotations

import pytest

from tests.golden.passes import FOLDER, KERNELS, written
from tinsmith.core.settings import Context


@pytest.mark.parametrize("name", KERNELS)
def test_passes_make_the_same_of_a_kernel(name: str) -> None:
    """After an intended change, run ``python -m tests.golden.passes`` and review ``git diff tests/golden/passes``."""
    with Context(BEAM=0, NOOPT=0, TC=1, NOLOCALS=0, FASTMATH=0, CHECKED=0):
        assert written(name) == (FOLDER / f"{name}.txt").read_text("utf-8")


def test_every_file_is_a_kernel() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(KERNELS)


def test_every_pass_changes_one_of_the_kernels() -> None:
    found: dict[str, bool] = {}
    for name in KERNELS:
        for part in (FOLDER / f"{name}.txt").read_text("utf-8").split("== ")[1:]:
            title, _, text = part.partition("\n")
            found[title] = found.get(title, False) or text.strip() != "(unchanged)"
    assert set(found) >= {"lower", "normalize", "ranges", "opts", "linearize", "barriers", "loads first"}
    assert all(found.values()), found
