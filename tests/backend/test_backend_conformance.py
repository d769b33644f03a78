"""The acceptance suite on the devices available on every machine."""
from __future__ import annotations

import shutil

import pytest

from tinsmith import conformance

DEVICES = ["PYTHON", "PYTHON:T3:V64", "PYTHON:G64", "CPU",
           *(["CPU:C"] if shutil.which("gcc") or shutil.which("clang") else [])]
GROUPS = {"reduce": conformance.reduce_cases, "movement": conformance.movement_cases, "index": conformance.index_cases,
          "program": conformance.program_cases}


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("device", DEVICES)
def test_conformance(device: str, group: str) -> None:
    results = [conformance.run_case(device, case) for case in GROUPS[group]()]
    assert [r for r in results if not r.ok] == []


@pytest.mark.parametrize("op", ["ADD", "EXP", "CAST float32", "IDIV int32", "WHERE"])
def test_ops_conform(op: str) -> None:
    """The rest of the ops are tested renderer by renderer in tests/codegen."""
    storage = conformance.Device["PYTHON"].renderer.target.storage
    cases = [c for c in conformance.op_cases(storage) if c.name.startswith(op)]
    assert cases
    assert [r for r in (conformance.run_case("PYTHON", c) for c in cases) if not r.ok] == []


def test_a_failure_is_reported_not_raised() -> None:
    case = conformance.Case("broken", lambda inputs: [inputs.small((3,)).reshape((4,)) + 1])
    result = conformance.run_case("PYTHON", case)
    assert not result.ok
    assert result.message
