"""Machine measurements: results are stored, and damaged stored results are ignored."""
from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from benchmarks.corpus.targets import device_name
from tests.golden.running import run
from tinsmith.backend import machine as module
from tinsmith.backend.device import Device
from tinsmith.backend.machine import _Measurement, machine, measure, roofline
from tinsmith.backend.memory import Buffer
from tinsmith.backend.program import Program
from tinsmith.codegen.compile_kernel import compile_kernel
from tinsmith.codegen.planner.roofline import Machine
from tinsmith.core.disk_cache import cache_entries, cache_put
from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import DeviceError
from tinsmith.core.settings import Context
from tinsmith.ir import Ops, UOp


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(module, "_measured", {})
    with Context(CACHE_DIR=str(tmp_path), CACHELEVEL=1):
        yield tmp_path


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce the measured footprints, so that the test is short on a busy machine."""
    monkeypatch.setattr(module, "FARTHEST", 32 << 20)
    monkeypatch.setattr(module, "LEVELS", (16 << 20,))


def test_what_is_not_measured_is_said_to_be_so(empty: Path) -> None:
    found = machine("CPU")
    target = Device["CPU"].renderer.target
    assert not found.measured and (found.l1, found.l2) == (target.l1_bytes, target.l2_bytes)


def test_a_measurement_is_kept(empty: Path, small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    found = measure("CPU", budget=0.2)
    assert found.measured and machine("CPU") == found
    monkeypatch.setattr(module, "_measured", {})
    assert machine("CPU") == found and machine("CPU:1") == found._replace(device="CPU:1")
    assert not machine("PYTHON").measured
    sane(found)
    whole = [u.name for u in Device["CPU"].renderer.target.units if u.fragment_a.whole]
    assert [r.name for r in found.units] == whole


def sane(m: Machine) -> None:
    """Check what holds on any busy machine: no rate is zero, and all workers are not slower than one."""
    for r in (*m.memory, *m.peaks, *m.units):
        assert 0 < r.one <= r.all, r
    assert [r.name for r in m.peaks] == ["float32", "float64", "int32", "int64"]
    assert [r.capacity for r in m.memory] == sorted(r.capacity for r in m.memory)
    assert 0 < m.launch <= m.call and m.wake >= 0


def test_a_damaged_entry_is_not_believed(empty: Path, small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    measure("CPU", budget=0.2)
    (entry,) = [path for path, _, _ in cache_entries() if path.parents[1].name == "machine"]
    for text in (b"", b"{}", b'{"memory": 1}'):
        cache_put("machine", entry.name, text)
        monkeypatch.setattr(module, "_measured", {})
        assert not machine("CPU").measured


def test_the_interpreter_is_measured_without_waiting_for_it(empty: Path) -> None:
    found = measure("PYTHON", budget=0.1)
    sane(found)
    assert len(found.memory) == 1 and found.peak(dtypes.float32).one < 1e9
    assert found.units == (), "a product of a matrix unit takes it seconds"


def test_memory_without_programs_is_refused(empty: Path) -> None:
    with pytest.raises(DeviceError, match="NPY"):
        measure("NPY")


def test_the_command_prints_a_table_and_a_second_process_knows_it(tmp_path: Path) -> None:
    first = run(["-m", "tinsmith", "machine"], tmp_path)
    assert first.returncode == 0, first.stderr
    for text in ("Copies, bytes read and written", "Fused multiply-adds", "float32", "waking the workers", "L2"):
        assert text in first.stdout
    assert max(map(len, first.stdout.splitlines())) <= 120
    script = "from tinsmith.backend.machine import machine; print(machine().measured)"
    assert run(["-c", script], tmp_path).stdout == "True\n"
    assert run(["-m", "tinsmith", "machine"], tmp_path).stdout == first.stdout
    failed = run(["-m", "tinsmith", "machine", "NOWHERE"], tmp_path)
    assert failed.returncode == 1 and "there is no device 'NOWHERE'" in failed.stdout


def test_a_grid_is_measured_with_threads_for_all_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured with a single block, a GPU of 60 TFLOP/s would appear to have 1 TFLOP/s."""
    found: list[Program] = []

    def second(self: _Measurement, programs: Sequence[Program], buffers: Sequence[Buffer]) -> list[float]:
        found.extend(programs)
        return [1.0]

    monkeypatch.setattr(_Measurement, "seconds", second)
    measured = _Measurement(device_name("sm_90a"), 0.1)
    rate, (program,) = measured.peak(dtypes.float32), found
    threads = math.prod((*program.kernel.grid, *program.kernel.block))
    assert threads == measured.target.cores * measured.target.resident
    assert rate.one == rate.all == 2 * threads * 16 * 4096


def test_the_roofline_of_a_product_is_that_of_its_unit(empty: Path) -> None:
    """The unit is recorded with the launch, so that it is known for programs from the disk cache too."""
    opened = Device["PYTHON:G256"]
    x, y = (UOp(Ops.PARAM, dtypes.float16, (), (n, (256, 256))) for n in (1, 2))
    a = x.cast(dtypes.float32).reshape((256, 1, 256)).expand((256, 256, 256))
    b = y.cast(dtypes.float32).permute((1, 0)).reshape((1, 256, 256)).expand((256, 256, 256))
    product, sums = (compile_kernel(UOp(Ops.SINK, None, (v,)), opened.renderer) for v in (
        (a * b).reduce("ADD", (2,)), x.cast(dtypes.float32).reduce("ADD", (1,))))
    assert product.unit in {u.name for u in opened.target.units} and not sums.unit
    plain = roofline("PYTHON:G256", product.ops, product.bytes)
    assert roofline("PYTHON:G256", product.ops, product.bytes, product.unit) < plain == roofline(
        "PYTHON:G256", product.ops, product.bytes, "another machine's")
