"""What LLVM code and the PYTHON device compute for every op and dtype is the op's meaning; nothing leaves a buffer."""
from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.codegen.render_cases import ALL, CHECKS, WIDTHS, check_constants
from tinsmith.core.dtypes import DType, dtypes

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.name)
@pytest.mark.parametrize("what", CHECKS)
@pytest.mark.parametrize("device", ["PYTHON", "CPU"])
def test_meaning(device: str, what: str, dtype: DType) -> None:
    for width in WIDTHS:
        CHECKS[what](device, dtype, width)


@pytest.mark.parametrize("dtype", dtypes.ints, ids=lambda d: d.name)
@pytest.mark.parametrize("device", ["PYTHON", "CPU"])
def test_constant_right_sides(device: str, dtype: DType) -> None:
    for width in WIDTHS:
        check_constants(device, dtype, width)


def run_guarded(device: str, what: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, since the fault that is looked for would end this one."""
    return subprocess.run([sys.executable, "-m", "tests.codegen.guarded", device, what], cwd=ROOT, capture_output=True,
                          text=True, check=False)


def test_no_access_leaves_a_buffer() -> None:
    done = run_guarded("CPU", "all")
    assert done.returncode == 0, done.stderr


def test_the_guard_catches_an_access_outside() -> None:
    assert run_guarded("CPU", "outside").returncode < 0
