"""CUDA on a real GPU: values, memory, graphs, errors."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.backend.gpus import needs_cuda
from tests.backend.running import param, run_case, run_value
from tests.codegen.kernels import FAMILIES
from tests.codegen.running import expected
from tests.codegen.test_opts import check, draw_opts
from tests.schedule import faulty_device
from tinsmith import conformance
from tinsmith.backend.cuda.device import CUDAGraph
from tinsmith.backend.device import Device
from tinsmith.backend.memory import Buffer, BufferSpec
from tinsmith.codegen.compile_kernel import compile_kernel
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.core.counters import GlobalCounters
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.errors import DeviceError, OutOfMemoryError
from tinsmith.core.settings import Context
from tinsmith.inspect.search import search
from tinsmith.inspect.search.trial import TrialRequest
from tinsmith.ir import Ops, UOp
from tinsmith.jit.function import TinyJit
from tinsmith.tensor.tensor import Tensor

pytestmark = pytest.mark.cuda
GROUPS = {"reduce": conformance.reduce_cases, "movement": conformance.movement_cases,
          "index": conformance.index_cases, "program": conformance.program_cases}


@pytest.fixture(autouse=True)
def _on_a_gpu() -> None:
    needs_cuda()


@pytest.mark.parametrize("group", GROUPS)
def test_conformance(group: str) -> None:
    results = [conformance.run_case("CUDA", case) for case in GROUPS[group]()]
    assert [r for r in results if not r.ok] == []


@pytest.mark.parametrize("dtype", [*dtypes.all], ids=str)
def test_ops_conform(dtype: DType) -> None:
    cases = [c for c in conformance.op_cases(Device["CUDA"].target.storage) if c.name.split()[1] == dtype.name]
    assert cases and [r for r in (conformance.run_case("CUDA", c) for c in cases) if not r.ok] == []


@pytest.mark.parametrize("family", FAMILIES)
def test_any_opts_compute_the_same(family: str) -> None:
    @settings(max_examples=6, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def run(data: st.DataObject) -> None:
        case = data.draw(FAMILIES[family])
        opts = draw_opts(data.draw, case, "CUDA", blocks=True)
        want = expected(case.sink, case.inputs)
        check(case, run_case("CUDA", case, opts), want, "CUDA")
        check(case, run_case("CUDA", case, None), want, "CUDA, the default opts")

    run()


@pytest.mark.parametrize("opts", [
    [], [Opt(OptOps.LOCAL, 0, 2)], [Opt(OptOps.GROUP, 1, 8)], [Opt(OptOps.GROUPTOP, 1, 4)], [Opt(OptOps.NOLOCALS)],
    [Opt(OptOps.LOCAL, 0, 3), Opt(OptOps.GROUP, 2, 5), Opt(OptOps.UNROLL, 2, 2)], None], ids=str)
def test_threads_share_a_reduction(opts: list[Opt] | None) -> None:
    x = np.random.default_rng(0).integers(-9, 9, (7, 48)).astype(np.float32)
    got, _ = run_value("CUDA", param(1, 7, 48).reduce("ADD", (1,)), opts, x)
    np.testing.assert_array_equal(got, x.sum(1, keepdims=True))


@pytest.mark.parametrize("rows, columns", [(3, 1024), (5, 4096), (2, 50_000), (9000, 1030)])
def test_long_rows(rows: int, columns: int) -> None:
    x = np.random.default_rng(0).normal(size=(rows, columns)).astype(np.float32)
    t = Tensor(x, device="CUDA")
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    np.testing.assert_allclose(t.softmax().numpy(), e / e.sum(1, keepdims=True), rtol=2e-5, atol=1e-9)
    want = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(t.layernorm().numpy(), want, rtol=1e-4, atol=1e-5)


def test_places_beyond_32_bits() -> None:
    size = (1 << 31) + (1 << 20)
    x = Tensor.arange(size, device="CUDA", dtype=dtypes.int64).cast(dtypes.uint8).contiguous().realize()
    y = (x + 1).realize()
    for at in (0, 1 << 31, (1 << 31) + 77, size - 1):
        assert y[at].item() == (at + 1) % 256 and x[at].item() == at % 256
    assert (Tensor.arange(size, device="CUDA", dtype=dtypes.int64) == size - 5).argmax().item() == size - 5


def test_halves_go_through_the_matrix_unit() -> None:
    a, b = (np.random.default_rng(n).normal(size=(256, 256)).astype(np.float16) for n in range(2))
    got = Tensor(a, device="CUDA").matmul(Tensor(b, device="CUDA"), dtype=dtypes.float32).numpy()
    np.testing.assert_allclose(got, a.astype(np.float64) @ b.astype(np.float64), atol=2e-3)


def test_a_program_trains() -> None:
    def step(device: str) -> np.ndarray:
        x = Tensor(np.arange(32, dtype=np.float32).reshape(8, 4) / 32, device=device)
        w = Tensor(np.ones((4, 3), np.float32), device=device, requires_grad=True)
        (x @ w).relu().log_softmax().square().mean().backward()
        assert w.grad is not None
        return (w - w.grad * 0.1).numpy()

    np.testing.assert_allclose(step("CUDA"), step("CPU"), rtol=1e-5)


# *** memory ***


@pytest.mark.parametrize("nbytes", [0, 1, 3, 4096, (4 << 20) - 1, (4 << 20) + 1, 37 << 20])
def test_copies_of_any_size(nbytes: int) -> None:
    data = np.random.default_rng(0).integers(0, 256, nbytes + 5).astype(np.uint8)
    b = Buffer("CUDA", nbytes + 5, dtypes.uint8).copyin(memoryview(data))
    np.testing.assert_array_equal(b.numpy(), data)
    np.testing.assert_array_equal(b.view(nbytes, dtypes.uint8, 5).numpy(), data[5:])


@pytest.mark.parametrize("options", [BufferSpec(cpu_access=True), BufferSpec(cpu_access=True, uncached=True)])
def test_pinned_memory_is_the_hosts_and_the_gpus(options: BufferSpec) -> None:
    b = Buffer("CUDA", 1000, dtypes.float32, options).copyin(memoryview(np.arange(1000, dtype=np.float32)))
    view = b.host_view()
    assert view is not None and view.cast("f")[7] == 7
    assert Buffer("CUDA", 4, dtypes.float32).copyin(memoryview(bytes(16))).host_view() is None
    opened, out = Device["CUDA"], Buffer("CUDA", 1000, dtypes.float32, options)
    kernel = compile_kernel(UOp(Ops.SINK, None, (param(1, 1000) + 1,)), opened.renderer)
    (program,) = opened.load([(kernel, opened.compiler.compile(kernel.source))])
    program([out, b], [])
    np.testing.assert_array_equal(np.frombuffer(out.host_view() or b"", np.float32), np.arange(1, 1001))


def test_what_is_freed_is_taken_again() -> None:
    first = Buffer("CUDA", 12_345, dtypes.float32).allocate()
    address, used = first.opaque.address, GlobalCounters.mem_used
    del first
    assert GlobalCounters.mem_used == used - 4 * 12_345
    assert Buffer("CUDA", 12_345, dtypes.float32).allocate().opaque.address == address


def test_out_of_memory_leaves_everything_as_it_was() -> None:
    x = Tensor.ones(1000, device="CUDA").contiguous().realize()
    with pytest.raises(OutOfMemoryError, match=f"{4 << 40} bytes of the GPU's memory requested"):
        Buffer("CUDA", 1 << 40, dtypes.float32).allocate()
    assert (x + 1).sum().item() == 2000


def test_out_of_memory_says_who_holds_it() -> None:
    """The out-of-memory error lists sizes and the user's lines that allocated them."""
    held = Tensor.ones(3 << 20, device="CUDA").contiguous().realize()
    with pytest.raises(OutOfMemoryError, match=r"12 MB, \w+ at test_backend_cuda_device\.py:\d+") as caught:
        Tensor.ones(1 << 40, device="CUDA").contiguous().realize()
    assert held.sum().item() == 3 << 20, caught.value


@pytest.mark.parametrize("amount, fate", [(faulty_device.CRASH, "crash"), (faulty_device.HANG, "hang")])
def test_a_candidate_that_faults_or_hangs_dies_in_its_process(amount: int, fate: str) -> None:
    """The search goes on with the next candidate, and this process's GPU context is unaffected."""
    x = UOp(Ops.PARAM, dtypes.float32, (), (1, (420,)))
    sink = UOp(Ops.SINK, None, (x * x + 3.0,))
    trial = search.Trial(TrialRequest("FAULTYGPU", sink, ("tests.schedule.faulty_gpu",), limit=20))
    assert trial.prepare()["state"] == "ready"
    kernel = search._kernel(sink, "CUDA")
    kernel.apply(Opt(OptOps.UPCAST, 0, amount))
    assert trial(kernel) is None and trial.states == {fate: 1}
    good = search._kernel(sink, "CUDA")
    good.apply(Opt(OptOps.UPCAST, 0, 4))
    assert trial(good) is not None
    assert (Tensor.ones(8, device="CUDA").contiguous().realize() + 1).sum().item() == 16


# *** graphs ***


def test_wide_neighbours_run_side_by_side(graphs: list[CUDAGraph]) -> None:
    """Independent graph nodes get one level (no edges between them); a consumer depends on all of its producers."""
    xs = [Tensor(np.full(1 << 18, n, np.float32), device="CUDA").realize() for n in range(4)]
    for _ in range(4):
        ys = [(x + 1).contiguous() for x in xs]
        z = (ys[0].flip(0) + ys[3]).contiguous()
        Tensor.realize(*ys, z)
        assert z.numpy().tolist() == [5.0] * (1 << 18)
    found = next(g for g in graphs if len(g.launches) >= 4 and g.replays)
    levels = next(iter(found.replays.values())).levels
    assert levels == sorted(levels) and len(set(levels)) < len(levels)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[CUDAGraph]:
    """Collect the graphs created during the test."""
    made: list[CUDAGraph] = []
    old = CUDAGraph.__init__
    monkeypatch.setattr(CUDAGraph, "__init__", lambda self, *args: (old(self, *args), made.append(self))[0])
    return made


def test_a_realized_schedule_becomes_a_graph(graphs: list[CUDAGraph]) -> None:
    """From the second run on it is one launch; with unchanged addresses no node is updated."""
    x = Tensor(np.arange(64, dtype=np.float32), device="CUDA").realize()
    for _ in range(12):
        y = x
        for n in range(5):
            y = (y.flip(0) * (n + 1)).contiguous()
        np.testing.assert_array_equal(y.numpy(), np.arange(63, -1, -1, dtype=np.float32) * 120)
    (found,) = [g for g in graphs if len(g.launches) == 5]
    assert found.runs == 12 and found.whole_graph and 1 <= len(found.replays) <= 2 and found.updated == 0


def test_nodes_with_other_addresses_are_updated(graphs: list[CUDAGraph]) -> None:
    kept = []
    for n in range(12):
        x = Tensor(np.full(64, n, np.float32), device="CUDA").realize()
        y = x
        for _ in range(5):
            y = (y.flip(0) + 1).contiguous()
        kept += [x, y]
        np.testing.assert_array_equal(y.numpy(), np.full(64, n + 5, np.float32))
    (found,) = [g for g in graphs if len(g.launches) == 5]
    assert len(found.replays) == Device["CUDA"].target.replays and 0 < found.updated <= 7 * 5


def test_a_captured_function_replays_a_graph() -> None:
    w = Tensor(np.ones((16, 16), np.float32), device="CUDA").realize()

    def step(x: Tensor) -> Tensor:
        for _ in range(4):
            x = (x @ w).relu().contiguous() * 0.0625
        w.assign(w * 1.0 + 0.0)
        return x.realize()

    jitted = TinyJit(step)
    x = Tensor(np.random.default_rng(0).uniform(0.5, 1, (16, 16)).astype(np.float32), device="CUDA").realize()
    want = step(x).numpy()
    for _ in range(8):
        np.testing.assert_allclose(jitted(x).numpy(), want, rtol=1e-6)


# *** errors ***

FAULT = """
import numpy as np
from tinsmith import Tensor, Device
from tinsmith.backend.memory import Buffer
from tinsmith.codegen.launch import Launch
from tinsmith.core.dtypes import dtypes
kept = Tensor([1.0, 2.0], device="CPU").realize()
lost = Tensor([1.0, 2.0], device="CUDA").realize()
opened = Device["CUDA"]
source = 'extern "C" __global__ void bad_1234(float* data0) { data0[1LL << 40] = 1; }'
program = opened.load([(Launch("bad", "bad_1234", [0], [], frozenset((0,)), 1, 4, 0, False, [], []),
                        opened.compiler.compile(source))])[0]
b = Buffer("CUDA", 4, dtypes.float32).allocate()
"""


def python(text: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment})


def test_a_fault_loses_the_device_and_nothing_else() -> None:
    found = python(FAULT + """
program([b], [])
for _ in range(2):
    try:
        lost.numpy()
    except RuntimeError as error:
        print(type(error).__name__, error)
print((kept + 1).tolist())
""")
    assert found.returncode == 0, found.stderr
    first, second, rest = found.stdout.splitlines()
    assert first.startswith("KernelError") and "ILLEGAL_ADDRESS" in first and "bad_1234" in first
    assert second.startswith("DeviceError") and "the device is lost" in second and rest == "[2.0, 3.0]"


def test_synchronous_runs_name_the_kernel_and_the_line() -> None:
    for change in ({"CUDA_SYNC": "1"}, {"DEBUG": "2"}):
        found = python("""
from tinsmith import Tensor
from tinsmith.backend.cuda import device
old = device.NVRTCCompiler.compile
def broken(self, source):
    return old(self, source.replace("data0[", "data0[(1LL << 40)+", 1))
x = Tensor([1.0, 2.0, 3.0], device="CUDA").realize()
device.NVRTCCompiler.compile = broken
try:
    y = (x * 3).realize()  # the line
except RuntimeError as error:
    print("FOUND", error)
""", CACHELEVEL="0", **change)
        assert found.returncode == 0, found.stderr
        (line,) = [x for x in found.stdout.splitlines() if x.startswith("FOUND")]
        assert "kernel E_" in line and "ILLEGAL_ADDRESS" in line and "<string>:10" in line


def test_there_are_only_so_many_devices() -> None:
    with pytest.raises(DeviceError, match="there is no CUDA:99"):
        Device["CUDA:99"]


def test_kernels_are_timed_by_the_device(capsys: pytest.CaptureFixture[str]) -> None:
    with Context(DEBUG=2):
        Tensor([1.0, 2.0], device="CUDA").sum().realize()
    assert "*** CUDA" in capsys.readouterr().out


def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    text = """
from tinsmith import Tensor
from tinsmith.core.counters import GlobalCounters
print((Tensor([1.0, 2.0], device="CUDA") * 7).softmax().sum().item(), GlobalCounters.compile_count)
"""
    first, second = (python(text, CACHE_DIR=str(tmp_path), CHECK_IR="0") for _ in range(2))
    assert int(first.stdout.split()[1]) > 0 and int(second.stdout.split()[1]) == 0, (first, second)


# *** two GPUs ***


def test_two_gpus() -> None:
    needs_cuda(2)
    group = ("CUDA:0", "CUDA:1")
    x = np.random.default_rng(0).normal(size=(64, 32)).astype(np.float32)
    t = Tensor(x).shard(group, axis=0)
    np.testing.assert_allclose((t * 2).sum(0).numpy(), x.sum(0) * 2, rtol=1e-4, atol=1e-5)
    moved = Tensor(x, device="CUDA").to("CUDA:1") + 1
    for _ in range(5):
        moved = (moved.to("CUDA") * 1).to("CUDA:1")
    np.testing.assert_array_equal(moved.numpy(), x + 1)
    w = Tensor(np.ones((32, 8), np.float32)).shard(group)
    np.testing.assert_allclose((t @ w).numpy(), x @ np.ones((32, 8), np.float32), rtol=1e-4, atol=1e-4)


