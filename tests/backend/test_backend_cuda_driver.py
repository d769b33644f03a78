"""Error handling and memory management of the CUDA backend against a fake driver, without a GPU."""
from __future__ import annotations

import ctypes
import os
from collections import deque
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from tests.backend.fake_driver import FAULT, NO_LAUNCH, NO_MEMORY, FakeDriver, Status
from tests.backend.gpus import needs_nvrtc
from tinsmith.backend.cuda import driver as module
from tinsmith.backend.cuda import launch_list
from tinsmith.backend.cuda.device import CUDAGraph, CUDAProgram
from tinsmith.backend.cuda.driver import CUDAError, CudaGPU, NVRTCCompiler
from tinsmith.backend.cuda.memory import CUDAAllocator
from tinsmith.backend.device import Device
from tinsmith.backend.memory import BufferSpec
from tinsmith.backend.program import BufferLocation, Call, Launched
from tinsmith.codegen.launch import Launch
from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import DeviceError, KernelError, OutOfMemoryError, TinsmithError
from tinsmith.core.settings import Context
from tinsmith.ir import ProgramBuilder
from tinsmith.runtime.custom_program import run_program
from tinsmith.tensor.tensor import Tensor


@pytest.fixture(name="fake")
def _fake(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    fake = FakeDriver()
    monkeypatch.setattr(module, "bindings", lambda name: fake)
    return fake


@pytest.fixture(name="gpu")
def _gpu(fake: FakeDriver) -> CudaGPU:
    return CudaGPU("CUDA", 0)


def program(gpu: CudaGPU, symbol: str) -> CUDAProgram:
    return CUDAProgram(gpu, Launch(symbol, symbol, [0], [], frozenset((0,)), 1, 4, 0, False, [4], [32]), b"")


def graph(gpu: CudaGPU, *symbols: str) -> CUDAGraph:
    """Return a graph of sequential kernels, each on its own base address."""
    device = SimpleNamespace(target=SimpleNamespace(replays=2, launches_early=True))
    launches = [Launched(program(gpu, s), (BufferLocation(n),), ()) for n, s in enumerate(symbols)]
    return CUDAGraph(cast(Any, device), gpu, launches)


def on(*addresses: int) -> Any:
    return [SimpleNamespace(_opaque=SimpleNamespace(address=a), offset=0, nbytes=4) for a in addresses]


# *** errors ***


@pytest.mark.parametrize("later", ["launch", "graph", "copy"])
def test_a_fault_is_not_the_kernels_that_notice_it(fake: FakeDriver, gpu: CudaGPU, later: str) -> None:
    """A fault is attributed to kernels launched since the last synchronization, not to the call that reports it."""
    memory = CUDAAllocator(gpu)
    block, replayed, next_one = memory.alloc(64), graph(gpu, "x", "y", "z"), program(gpu, "innocent")
    for _ in range(2):
        replayed(on(1, 2, 3), [])
    memory.copyout(memoryview(bytearray(64)), block, 0)
    program(gpu, "guilty").launch([block.address])
    fake.answers = {name: deque([FAULT]) for name in ("cuLaunchKernel", "cuGraphLaunch", "cuEventSynchronize")}
    does = {"launch": lambda: next_one.launch([1]), "graph": lambda: replayed(on(1, 2, 3), []),
            "copy": lambda: memory.copyout(memoryview(bytearray(64)), block, 0)}
    with pytest.raises(KernelError, match=r"ILLEGAL_ADDRESS.*launched since the last synchronization: guilty\. "):
        does[later]()
    for call in does.values():
        with pytest.raises(DeviceError, match="the device is lost: CUDA_ERROR_ILLEGAL_ADDRESS"):
            call()
    memory.free(block)
    memory.memory.trim()
    gpu.bury()
    assert "cuMemFree" not in fake.calls, "nothing is asked of a context that is gone"


def test_a_forked_process_says_so_and_asks_the_driver_nothing(fake: FakeDriver, gpu: CudaGPU) -> None:
    memory, kernel = CUDAAllocator(gpu), program(gpu, "k")
    block = memory.alloc(64)
    read, write = os.pipe()
    before = len(fake.calls)
    child = os.fork()
    if child == 0:
        said = []
        for call in (lambda: memory.alloc(4096), lambda: kernel.launch([1]), gpu.synchronize,
                     lambda: memory.copyout(memoryview(bytearray(64)), block, 0),
                     lambda: memory.copyin(block, 0, memoryview(bytes(64)))):
            try:
                call()
            except TinsmithError as error:
                said.append(f"{type(error).__name__} {error}")
        memory.free(block)
        memory.memory.trim()
        os.write(write, "\n".join([*said, str(len(fake.calls) - before)]).encode())
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    *said, asked = os.read(read, 1 << 16).decode().splitlines()
    assert len(said) == 5 and asked == "0"
    assert all(text.startswith("DeviceError") and "was forked from one" in text and "spawn" in text for text in said)
    assert not gpu.lost and memory.alloc(4096)


@pytest.mark.parametrize("lost", ["", "CUDA_ERROR_ILLEGAL_ADDRESS"])
def test_who_waits_for_each_kernel_names_it_and_what_can_be_done(monkeypatch: pytest.MonkeyPatch, lost: str) -> None:
    """The error names the kernel, compiled or hand-written, and a remedy; rerunning is none on a lost device."""
    def timed(call: Call) -> float:
        raise CUDAError("CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal address")

    x = Tensor([1.0, 2.0], device="CPU:9").realize()
    monkeypatch.setattr(Device["CPU:9"], "timed", timed)
    monkeypatch.setattr(type(Device["CPU:9"]), "lost", lost)
    remedy = "a new process: the device is lost" if lost else "read the value again"
    with Context(DEBUG=2), pytest.raises(KernelError, match=rf"kernel E_2 \(mul\) failed on CPU:9: .*{remedy}"):
        (x * 3).realize()
    g = ProgramBuilder()
    out, zero = g.add("DEFINE_GLOBAL", dtypes.int32, arg=(0, "data0", True)), g.add("CONST", dtypes.int32, arg=0)
    g.add("STORE", vin=(out, zero, zero))
    with pytest.raises(KernelError, match=r'nothing failed on CPU:9: CUDA_ERROR_ILLEGAL_ADDRESS .*device="PYTHON"'):
        run_program(g, np.zeros(1, np.int32), device="CPU:9", name="nothing")


# *** launches in the stream of another library ***


@pytest.fixture(name="native", params=[False, True], ids=["from Python", "native"])
def _native(fake: FakeDriver, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Launches from Python, and from native code, which calls this function in place of the driver's."""
    pointer, number = ctypes.c_void_p, ctypes.c_uint

    @ctypes.CFUNCTYPE(ctypes.c_int, pointer, *[number] * 7, pointer, pointer, pointer)
    def launch(*arguments: Any) -> int:
        return int(fake.cuLaunchKernel(*arguments)[0])

    address = ctypes.cast(launch, pointer).value if request.param else 0
    monkeypatch.setattr(launch_list, "driver_launch", lambda: address)
    yield


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("separate", [False, True])
def test_a_foreign_stream_gets_the_kernels_of_each_call_in_order(fake: FakeDriver, gpu: CudaGPU,
                                                                 separate: bool) -> None:
    """Calls on new, known, and more addresses than there are graphs for; alone or while the stream is captured."""
    launches = graph(gpu, "x", "y", "z")
    draw = np.random.default_rng(0)
    for n in range(200):
        addresses = [int(a) * 4096 for a in draw.integers(1, 3, 3)]
        fake.work.clear()
        launches.run(addresses, [], [4, 4, 4], 70 + n % 2, separate)
        assert fake.work == [(70 + n % 2, a) for a in addresses]
    assert ("cuGraphLaunch" in fake.calls) is not separate


@pytest.mark.usefixtures("native")
def test_a_launch_that_fails_in_a_foreign_stream_is_named(fake: FakeDriver, gpu: CudaGPU) -> None:
    launches = graph(gpu, "x", "y", "z")
    fake.answers = {"cuLaunchKernel": deque([Status.CUDA_SUCCESS, NO_LAUNCH])}
    with pytest.raises(CUDAError, match="INVALID_VALUE") as raised:
        launches.run([1, 2, 3], [], [4, 4, 4], 7)
    assert raised.value.number == 1


@pytest.mark.usefixtures("native")
def test_new_values_of_variables_reach_the_kernels_of_a_graph(fake: FakeDriver, gpu: CudaGPU) -> None:
    device = SimpleNamespace(target=SimpleNamespace(replays=2, launches_early=True))
    kernel = CUDAProgram(gpu, Launch("v", "v", [], ["n"], frozenset(), 1, 4, 0, False, [4], [32]), b"")
    launches = CUDAGraph(cast(Any, device), gpu, [*(Launched(program(gpu, s), (BufferLocation(0),), ())
                                                    for s in "xyz"), Launched(kernel, (), (0,))])
    for n in range(6):
        fake.work.clear()
        launches.run([64], [n], [4], 7)
        assert [value for _, value in fake.work] == [64, 64, 64, n]
    assert fake.calls.count("cuGraphInstantiate") == 1


# *** memory ***


def test_what_lacks_memory_gets_the_blocks_that_wait_to_be_used_again(fake: FakeDriver, gpu: CudaGPU) -> None:
    """Cached free blocks are released for an allocation of another size, and for the driver's modules and graphs."""
    memory = CUDAAllocator(gpu)
    memory.memory.cache_limit = fake.total
    memory.free(memory.alloc(700_000))
    assert fake.used >= 700_000
    block = memory.alloc(900_000)
    assert 900_000 <= fake.used <= fake.total
    memory.free(block)
    fake.answers = {"cuModuleLoadData": deque([NO_MEMORY])}
    assert program(gpu, "k").module and fake.used == 0
    fake.answers = {"cuModuleLoadData": deque([NO_MEMORY, NO_MEMORY])}
    with pytest.raises(OutOfMemoryError, match="1048576 of 1048576 bytes of the GPU free"):
        program(gpu, "k")
    assert not gpu.lost


def test_out_of_memory_changes_nothing(fake: FakeDriver, gpu: CudaGPU) -> None:
    memory = CUDAAllocator(gpu)
    kept = memory.alloc(1000)
    memory.copyin(kept, 0, memoryview(bytes(range(250)) * 4))
    with pytest.raises(OutOfMemoryError, match="2000000 bytes of the GPU's memory requested, 1000 bytes in use here"):
        memory.alloc(2_000_000)
    back = bytearray(1000)
    memory.copyout(memoryview(back), kept, 0)
    assert bytes(back) == bytes(range(250)) * 4 and not gpu.lost


@pytest.mark.parametrize("nbytes", [1, 1 << 22, (1 << 22) + 1, (20 << 20) + 3])
def test_copies_of_any_size_go_through_the_ring(fake: FakeDriver, gpu: CudaGPU, nbytes: int) -> None:
    fake.total = 1 << 30
    memory, data = CUDAAllocator(gpu), np.random.default_rng(0).integers(0, 256, nbytes + 7).astype(np.uint8)
    block, back = memory.alloc(nbytes + 7), np.zeros(nbytes, np.uint8)
    memory.copyin(block, 0, data.data)
    memory.copyout(back.data, block, 7)
    np.testing.assert_array_equal(back, data[7:])


def test_pinned_memory_goes_back_to_its_own_pool(fake: FakeDriver, gpu: CudaGPU) -> None:
    memory = CUDAAllocator(gpu)
    pinned, cached = BufferSpec(cpu_access=True), BufferSpec(cpu_access=True, uncached=True)
    one, other = memory.alloc_as(1000, pinned), memory.alloc_as(1000, cached)
    view = memory.host_view(one, 8, 4)
    assert view is not None and view.nbytes == 4 and memory.host_view(memory.alloc(8), 0, 8) is None
    memory.free(one)
    memory.free(other)
    assert memory.alloc_as(1000, cached) is other and memory.alloc_as(1000, pinned) is one


# *** graphs ***


def test_a_replay_updates_only_what_changed(fake: FakeDriver, gpu: CudaGPU) -> None:
    """From the second run on each is one launch; two sets of addresses have a graph each; then one address changes."""
    found = graph(gpu, "a", "b", "c")
    for _ in range(3):
        found(on(1, 2, 3), [])
    assert fake.calls.count("cuLaunchKernel") == 3 and fake.calls.count("cuGraphLaunch") == 2
    for _ in range(2):
        for last in (3, 4):
            found(on(1, 2, last), [])
    assert fake.calls.count("cuGraphInstantiate") == 2 and found.updated == 0
    found(on(1, 9, 3), [])
    assert fake.calls.count("cuGraphInstantiate") == 2 and found.updated == 1
    assert fake.calls.count("cuGraphExecKernelNodeSetParams") == 1 and fake.calls.count("cuLaunchKernel") == 3


# *** missing GPUs, old drivers, unknown architectures ***


def test_hidden_gpus_are_no_broken_driver(fake: FakeDriver) -> None:
    fake.answers = {"cuInit": deque([Status.CUDA_ERROR_NO_DEVICE]), "cuDriverGetVersion": deque()}
    fake.__dict__["cuDriverGetVersion"] = lambda: (Status.CUDA_SUCCESS, 13000)
    with pytest.raises(DeviceError, match=r"finds no GPU.*CUDA_VISIBLE_DEVICES"):
        module.gpu_count.__wrapped__()


def test_an_old_driver_is_told_its_version(fake: FakeDriver) -> None:
    fake.__dict__["cuInit"] = lambda flags: (Status.CUDA_SUCCESS,)
    fake.__dict__["cuDriverGetVersion"] = lambda: (Status.CUDA_SUCCESS, 12040)
    with pytest.raises(DeviceError, match=r"is for CUDA 12\.4.*driver 580"):
        module.gpu_count.__wrapped__()


@pytest.mark.parametrize("arch, remedy", [("sm_70", "DEV=CPU"), ("sm_990", "pip install -U nvidia-cuda-nvrtc")])
def test_an_architecture_that_nvrtc_does_not_know(arch: str, remedy: str) -> None:
    needs_nvrtc()
    with pytest.raises(DeviceError, match=rf"does not support {arch} \(Some GPU\), only sm_75.*{remedy}"):
        NVRTCCompiler(arch, gpu="Some GPU")
