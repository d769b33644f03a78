"""LLVM and PYTHON renderers: every op of every dtype has its defined value; accesses are in bounds."""
from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.codegen.render_cases import ALL, CHECKS, WIDTHS, check_constants
from tests.codegen.running import run_on
from tests.codegen.test_transcendentals import reference, ulps
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.ir import Op, Ops, UOp

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


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=lambda d: d.name)
@pytest.mark.parametrize("op", [Ops.EXP, Ops.EXP2], ids=lambda o: o.name)
@pytest.mark.parametrize("width", [1, 2, 4, 8, 16, 32])
def test_powers_in_vectors_of_any_width(width: int, op: Op, dtype: DType) -> None:
    """Vectors of any width: a native scale instruction, where available, exists for three register sizes only."""
    end = 2 * float(np.log2(np.finfo(dtype.numpy).max))
    limits = [0.0, -0.0, np.inf, -np.inf, np.nan, 3e38, -3e38, 1e10, -1e10, end, -end]
    x = np.concatenate([limits, np.linspace(-end, end, 160 - len(limits))]).astype(dtype.numpy)
    value = UOp(op, None, (UOp(Ops.PARAM, dtype, (), (1, x.shape)),))
    opts = [Opt(OptOps.VECTOR, 0, width)] if width > 1 else []
    (got,) = run_on("CPU", UOp(Ops.SINK, None, (value,)), {value.src[0]: x}, opts)
    assert ulps(got, reference(op, x)).max() <= 2


def run_guarded(device: str, what: str) -> subprocess.CompletedProcess[str]:
    """Run in a child process, because a fault ends the process."""
    return subprocess.run([sys.executable, "-m", "tests.codegen.guarded", device, what], cwd=ROOT, capture_output=True,
                          text=True, check=False)


def test_no_access_leaves_a_buffer() -> None:
    done = run_guarded("CPU", "all")
    assert done.returncode == 0, done.stderr


def test_the_guard_catches_an_access_outside() -> None:
    assert run_guarded("CPU", "outside").returncode < 0
