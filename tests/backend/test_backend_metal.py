"""The METAL device on a fake of pyobjc's framework that runs kernels as C++ on threads."""
from __future__ import annotations

import re
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.codegen import metalcpu
from tests.golden.running import run
from tinsmith import Tensor, TinyJit, conformance
from tinsmith.backend.device import Device
from tinsmith.backend.memory import Buffer
from tinsmith.backend.metal import device as metal
from tinsmith.backend.python.device import BytesAllocator
from tinsmith.codegen.launch import Launch
from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import CompileError, DeviceError, OutOfMemoryError
from tinsmith.core.settings import Context

NAME = "FRAMEWORK"


class FakeBuffer:
    def __init__(self, nbytes: int) -> None:
        self.opaque, self.offset = BytesAllocator().alloc(nbytes), 0

    def length(self) -> int:
        return int(self.opaque.size)

    def contents(self) -> Any:
        return SimpleNamespace(as_buffer=lambda n: memoryview(self.opaque)[:n])


class FakeCommands:
    """A command buffer with its encoder; its commands run when it is waited for."""

    def __init__(self) -> None:
        self.launches: list[Any] = []
        self.pipeline: Any = None
        self.arguments: dict[int, Any] = {}
        self.committed = self.done = False

    def computeCommandEncoder(self) -> FakeCommands:
        return self

    def setComputePipelineState_(self, pipeline: Any) -> None:
        self.pipeline, self.arguments = pipeline, {}

    def setBuffer_offset_atIndex_(self, buffer: FakeBuffer, offset: int, n: int) -> None:
        self.arguments[n] = SimpleNamespace(opaque=buffer.opaque, offset=offset)

    def setBytes_length_atIndex_(self, data: bytes, length: int, n: int) -> None:
        self.arguments[n] = int.from_bytes(data[:length], sys.byteorder, signed=True)

    def dispatchThreadgroups_threadsPerThreadgroup_(self, grid: Any, block: Any) -> None:
        self.launches.append((self.pipeline, grid, block, [self.arguments[n] for n in sorted(self.arguments)]))

    def endEncoding(self) -> None:
        self.pipeline = None

    def commit(self) -> None:
        assert self.pipeline is None, "encoding has ended"
        self.committed = True

    def waitUntilCompleted(self) -> None:
        assert self.committed and not self.done
        self.done = True
        for (name, source), grid, block, arguments in self.launches:
            buffers = [a for a in arguments if not isinstance(a, int)]
            values = [a for a in arguments if isinstance(a, int)]
            launch = Launch(name, name, list(range(len(buffers))), [str(v) for v in values], frozenset(), 0, 0, 0, True,
                            list(grid), list(block))
            metalcpu.MetalProgram(launch, source.encode())(buffers, values)

    def error(self) -> None:
        return None

    def GPUStartTime(self) -> float:
        return 1.0

    def GPUEndTime(self) -> float:
        return 1.5


class FakeGPU:
    def name(self) -> str:
        return "Fake M1"

    def maxBufferLength(self) -> int:
        return 1 << 30

    def newCommandQueue(self) -> Any:
        return SimpleNamespace(commandBuffer=FakeCommands)

    def newBufferWithLength_options_(self, nbytes: int, options: str) -> FakeBuffer:
        assert options == "shared"
        return FakeBuffer(nbytes)

    def newLibraryWithSource_options_error_(self, source: str, options: Any, error: None) -> tuple[Any, Any]:
        assert options.fast is False, "IEEE's arithmetic"
        if "nonsense" in source:
            return None, SimpleNamespace(localizedDescription=lambda: "program_source:1: unknown nonsense")
        names = re.findall(r"^kernel void (\w+)\(", source, re.MULTILINE)
        return SimpleNamespace(newFunctionWithName_=lambda n: (n, source) if n in names else None), None

    def newComputePipelineStateWithFunction_error_(self, function: Any, error: None) -> tuple[Any, Any]:
        return function, None


class FakeOptions:
    fast = True

    @classmethod
    def new(cls) -> FakeOptions:
        return cls()

    def setFastMathEnabled_(self, value: bool) -> None:
        self.fast = value


@pytest.fixture
def framework(monkeypatch: pytest.MonkeyPatch) -> str:
    metalcpu.needs_cpp()
    module = ModuleType("Metal")
    vars(module).update(MTLCopyAllDevices=lambda: [FakeGPU()], MTLCompileOptions=FakeOptions, MTLSizeMake=lambda *s: s,
                        MTLResourceStorageModeShared="shared")
    monkeypatch.setitem(sys.modules, "Metal", module)
    metal.load_metal.cache_clear()
    Device.register(NAME, metal.DEVICE)
    Device[NAME]
    monkeypatch.undo()
    metal.load_metal.cache_clear()
    return NAME


def test_programs_run(framework: str) -> None:
    cases = [*list(conformance.program_cases())[::2], *list(conformance.index_cases())[:1]]
    results = [conformance.run_case(framework, case) for case in cases]
    assert [r for r in results if not r.ok] == []


def test_a_captured_step_and_timed_kernels(framework: str, capsys: pytest.CaptureFixture[str]) -> None:
    @TinyJit
    def step(x: Tensor) -> Tensor:
        return ((x + 1).contiguous() * x).sum().realize()

    assert [step(Tensor([1.0, float(n)], device=framework).realize()).item() for n in range(4)] == [2, 4, 8, 14]
    with Context(DEBUG=2):
        assert Tensor([1, 2], device=framework).dot(Tensor([3, 4], device=framework)).item() == 11
    assert "500000us" in capsys.readouterr().out.replace("500000.00us", "500000us"), "the GPU's own times"


def test_parts_of_buffers_and_errors(framework: str) -> None:
    b = Buffer(framework, 8, dtypes.uint8).copyin(memoryview(bytes(range(8))))
    b.view(2, dtypes.uint8, 3).copyin(memoryview(b"ab"))
    assert bytes(b.numpy()) == bytes((0, 1, 2, *b"ab", 5, 6, 7))
    with pytest.raises(OutOfMemoryError, match="at most"):
        Buffer(framework, 1 << 40, dtypes.uint8).allocate()
    launch = Launch("f", "f", [0], [], frozenset(), 0, 0, 0, True, [], [])
    with pytest.raises(CompileError, match="unknown nonsense"):
        Device[framework].load([(launch, b"nonsense")])
    many = Launch("f", "f", list(range(32)), [], frozenset(), 0, 0, 0, True, [], [])
    with pytest.raises(CompileError, match="takes 32 arguments"):
        Device[framework].load([(many, b"kernel void f() {}")])
    with pytest.raises(CompileError, match="no float64"):
        (Tensor([1.0], dtype=dtypes.float64, device=framework) * 3).realize()


def test_doctor_says_why_it_does_not_run_here(tmp_path: Any) -> None:
    if sys.platform == "darwin":
        pytest.skip("it may run here")
    with pytest.raises(DeviceError, match="macOS alone"):
        Device.here("METAL:5")
    rows = [line for line in run(["-m", "tinsmith", "doctor"], tmp_path).stdout.splitlines() if " METAL " in line]
    assert len(rows) == 1 and " no " in rows[0] and "Metal exists on macOS alone" in rows[0] and "DEBUG=4" in rows[0]
