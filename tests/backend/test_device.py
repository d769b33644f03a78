"""The device registry: canonical names, opening on first use, registration, errors that list the known names."""
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tinsmith.backend.cpu.device import CPUDevice
from tinsmith.backend.device import Allocator, Compiled, Compiler, Device
from tinsmith.backend.memory import Buffer
from tinsmith.backend.program import Program
from tinsmith.core.counters import GlobalCounters
from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import ArgumentError, DeviceError, KernelError, OutOfMemoryError, TinsmithError
from tinsmith.core.settings import Context
from tinsmith.tensor.tensor import Tensor


@pytest.mark.parametrize(("name", "want"), [("cpu", "CPU"), ("CPU:0", "CPU"), ("cpu:1", "CPU:1"), ("CPU:c", "CPU:C"),
                                            ("cpu:1:c", "CPU:1:C"), ("Cpu:0:c", "CPU:C")])
def test_canonical_names(name: str, want: str) -> None:
    assert Device.canonicalize(name) == want
    assert Device.canonicalize(want) == want


def test_alias() -> None:
    with Context(ALIAS="METAL=CPU,GPU=CPU"):
        assert Device.canonicalize("metal:1") == "CPU:1"


def test_default() -> None:
    with Context(DEV="cpu:1"):
        assert Device.DEFAULT == "CPU:1" == Tensor([1.0]).device
    with Context(DEV=""):
        assert Device.DEFAULT == "CPU"


def test_one_object_per_device() -> None:
    assert Device["CPU"] is Device["cpu:0"] and Device["CPU"] is not Device["CPU:1"]
    assert "CPU" in Device.opened() and Device["CPU"].has_programs


def test_unknown_device() -> None:
    with pytest.raises(DeviceError, match="QUANTUM") as error:
        Device["QUANTUM"]
    assert "CPU" in str(error.value)
    with pytest.raises(TinsmithError):
        Tensor([1.0], device="CPU:QUANTUM").realize()


def test_memory_without_programs() -> None:
    assert not Device["NPY"].has_programs
    with pytest.raises(DeviceError, match="memory without programs"):
        _ = Device["NPY"].renderer


def test_register() -> None:
    def make(name: str) -> CPUDevice:
        cpu = Device["CPU"]
        return CPUDevice(name, cpu.allocator, cpu.compiler, cpu.runtime, cpu.renderer)

    Device.register("Toy", make)
    assert "TOY" in Device.known()
    x = Tensor([1.0, 2.0], device="TOY")
    assert (x + 1).tolist() == [2, 3] and (x + 1).to("CPU").tolist() == [2, 3]
    with pytest.raises(ArgumentError):
        Device.register("no name", make)
    with pytest.raises(ArgumentError, match="needs a class, got 5"):
        Device.register("Toy", 5)  # type: ignore[arg-type]


def test_buffers() -> None:
    values = np.arange(6, dtype=np.int32)
    b = Buffer("CPU", 6, dtypes.int32)
    assert not b.is_allocated()
    b.copyin(memoryview(values))
    part = b.view(2, dtypes.int32, 8)
    assert b.is_allocated() and part.numpy().tolist() == [2, 3] and b.numpy().tolist() == values.tolist()
    b.failed = ValueError("boom")
    with pytest.raises(KernelError, match="boom"):
        b.numpy()


def test_memory_is_counted_by_device_and_its_holders_are_named() -> None:
    before = GlobalCounters.mem_used_per_device.get("PYTHON", 0)
    held = Buffer("PYTHON", 1234, dtypes.float32).allocate()
    assert GlobalCounters.mem_used_per_device["PYTHON"] == before + 4 * 1234
    with pytest.raises(OutOfMemoryError, match="1 of 1234 × float"):
        Buffer("PYTHON", 1 << 60, dtypes.float32).allocate()
    assert held.is_allocated()
    del held
    assert GlobalCounters.mem_used_per_device.get("PYTHON", 0) == before


def test_a_constant_read_on_one_device_is_none_of_anothers_inputs() -> None:
    assert (Tensor.ones(3) * 5).tolist() == [5.0] * 3
    other = Tensor.ones(3, device="PYTHON") * 5
    assert other.device == "PYTHON" and other.realize().uop.base.arg.device == "PYTHON"
    assert (Tensor.ones(3) * 5).realize().device == "CPU"


# *** devices made by hand ***


class _Bytes(Allocator):
    def alloc(self, nbytes: int) -> bytearray:
        return bytearray(nbytes)

    def copyin(self, opaque: bytearray, offset: int, source: memoryview) -> None:
        opaque[offset : offset + source.nbytes] = source

    def copyout(self, target: memoryview, opaque: bytearray, offset: int) -> None:
        target[:] = memoryview(opaque)[offset : offset + target.nbytes]


class MyMetalDevice(Compiled):
    """A device in the form of the tutorials' outline: allocator, renderer, compiler, program."""

    def __init__(self, device: str) -> None:
        super().__init__(device, _Bytes(), Compiler(), Program)


def test_a_device_of_four_parts_holds_data_and_says_what_it_lacks() -> None:
    Device.register("FOURPARTS", MyMetalDevice)
    x = Tensor([1, 2], device="FOURPARTS")
    assert x.tolist() == [1, 2] and (x.to("CPU") + 1).tolist() == [2, 3]
    with pytest.raises(DeviceError, match=r"FOURPARTS has no renderer.*MyMetalDevice's super\(\)\.__init__"
                                          r"\(.*renderer\).*CRenderer.*Device\.register.*new_accelerator\.md"):
        (x + 1).numpy()


def test_a_part_must_be_made() -> None:
    Device.register("CLASSES", lambda name: Compiled(name, _Bytes, Compiler(), Program))  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"allocator=_Bytes is a class.*allocator=_Bytes\(\)"):
        Tensor([1], device="CLASSES").numpy()
    assert "CPU" in list(Device.get_available_devices()) and "CLASSES" not in list(Device.get_available_devices())


class _ThereAllocator(Allocator):
    """An allocator written as tinygrad's are."""

    def _alloc(self, size: int, options: object = None) -> bytearray:
        return bytearray(size)

    def copyin(self, dest: bytearray, src: memoryview) -> None:  # type: ignore[override]
        dest[:] = src

    def copyout(self, dest: memoryview, src: bytearray) -> None:  # type: ignore[override]
        dest[:] = src


class _HalfAllocator(_ThereAllocator):
    def alloc(self, nbytes: int) -> bytearray:
        return self._alloc(nbytes)


@pytest.mark.parametrize("kind, wrong", [
    (_ThereAllocator, r"no method alloc\(nbytes\)"),
    (_HalfAllocator, r"a method copyin that does not take \(opaque, offset, source\)")])
def test_an_allocator_must_have_its_methods(kind: type[Allocator], wrong: str) -> None:
    with pytest.raises(ArgumentError, match=rf"{kind.__name__}.*allocator of THERE has {wrong}.*_alloc.*new_accel"):
        Compiled("THERE", kind(), Compiler(), Program)


def test_what_is_registered_must_make_a_device() -> None:
    Device.register("NOTHING", lambda name: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(DeviceError, match=r"registered as NOTHING returned None.*a subclass of Compiled"):
        Device["NOTHING"]


def test_an_unknown_device_names_register() -> None:
    with pytest.raises(DeviceError, match=r"no device 'MYMETALX'.*Device\.register\('MYMETALX', its class\)"):
        Device["MYMETALX"]


def test_the_smallest_device_of_the_page_is_small() -> None:
    page = (Path(__file__).parents[2] / "docs" / "new_accelerator.md").read_text("utf-8")
    first = page.split("```python\n")[1].split("```")[0].splitlines()
    assert first[0] == "# mymetal.py" and "class MyMetalDevice(Compiled):" in first and len(first) <= 40
