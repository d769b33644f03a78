"""Every kernel structure at edge sizes, for every instruction set, in child processes that an out-of-bounds access
kills."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.codegen.structures import check
from tinsmith.backend.cpu import os_calls
from tinsmith.backend.device import Device
from tinsmith.core.settings import settings

ROOT = Path(__file__).parents[2]
HAS_AMX = any(u.name.startswith("amx") for u in Device["CPU"].renderer.target.units)
FEATURES = {"avx2": "avx2", "avx512, AMX off": "avx512", "AMX on": "", "generic": "generic"}


@pytest.mark.parametrize("features", FEATURES)
def test_no_access_leaves_a_buffer(features: str) -> None:
    if features != "generic" and os_calls.architecture() != "x86_64":
        pytest.skip("these are instructions of x86")
    if features == "AMX on" and not HAS_AMX:
        pytest.skip("this processor has no AMX, the system does not grant it, or CPU_FEATURES hides it")
    every = ("11", "0") if features == "generic" else ("5", str(list(FEATURES).index(features)))  # other cases for each
    done = subprocess.run(
        [sys.executable, "-m", "tests.codegen.structures", "CPU", *every], cwd=ROOT, capture_output=True, text=True,
        check=False, env={**os.environ, "CPU_FEATURES": FEATURES[features], "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}{done.stderr[-3000:]}"
    assert ("amx_bf16" in done.stdout) == (features == "AMX on")
    assert int(done.stdout.split()[0]) > 40


@pytest.mark.parametrize(("device", "first"), [("PYTHON:V16", 0), ("PYTHON:V32", 3), ("PYTHON:V64:T3", 6)])
def test_the_interpreter_agrees(device: str, first: int) -> None:
    assert settings.CHECK_IR
    assert check(device, 3, large=False, every=10, first=first) > 40
