"""WebGPU on any available adapter (Mesa's software Vulkan in the tests' own environment)."""
from __future__ import annotations

import sys

import numpy as np
import pytest

from tests.backend.running import param, run_value
from tests.backend.webgpu import WORDS, missing, needs_webgpu
from tests.codegen import render_cases
from tests.codegen.running import Array, buffers
from tinsmith import Tensor, TinyJit, conformance
from tinsmith.backend.device import Device
from tinsmith.backend.memory import Buffer
from tinsmith.codegen.compile_kernel import compile_kernel
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.errors import CompileError, DeviceError, OutOfMemoryError
from tinsmith.ir import Ops, UOp

DEVICES = ["WEBGPU", WORDS]
CASES = {"op": lambda device: conformance.op_cases(Device[device].target.storage),
         "index": lambda _: conformance.index_cases(),
         "reduce": lambda device: conformance.reduce_cases(Device[device].target.storage),
         "movement": lambda _: conformance.movement_cases(), "program": lambda _: conformance.program_cases()}
EVERY = {"op": 23, "index": 2, "reduce": 5, "movement": 3, "program": 2}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("group", CASES)
def test_conformance(group: str, device: str) -> None:
    """A part of the cases; ``python -m tinsmith conformance WEBGPU`` runs all of them."""
    needs_webgpu()
    results = [conformance.run_case(device, case) for case in list(CASES[group](device))[:: EVERY[group]]]
    assert results and [r for r in results if not r.ok] == []


def test_what_wgsl_lacks() -> None:
    """Without 64-bit integers they are pairs of 32-bit words; float64 raises an error that says so."""
    needs_webgpu()
    assert dtypes.int64 in Device[WORDS].target.storage and dtypes.float64 not in Device[WORDS].target.storage
    names = {c.name for c in conformance.cases(WORDS)}
    assert "MOD int64" in names and not [n for n in names if "float64" in n]
    with pytest.raises(CompileError, match="no float64"):
        (Tensor([1.0], dtype=dtypes.float64, device=WORDS) * 3).realize()


def run_on(device: str, sink: UOp, inputs: dict[UOp, Array], opts: list[Opt]) -> list[Array]:
    opened = Device[device]
    kernel = compile_kernel(sink, opened.renderer, opts)
    arrays = buffers(sink, inputs)
    types = {u.arg: u.dtype.scalar for u in kernel.uops if u.op is Ops.DEFINE_GLOBAL}
    held = {n: Buffer(device, arrays[n].size, types[n]).copyin(memoryview(arrays[n].reshape(-1).view(np.uint8)))
            for n in kernel.buffers}
    (program,) = opened.load([(kernel, opened.compiler.compile(kernel.source))])
    program([held[n] for n in kernel.buffers], [])
    return [held[n].numpy() for n in range(len(sink.src))]


@pytest.mark.parametrize("device, dtype", [
    (WORDS, dtypes.int64), (WORDS, dtypes.uint64), ("WEBGPU", dtypes.int64), ("WEBGPU", dtypes.int8),
    ("WEBGPU", dtypes.uint16), ("WEBGPU", dtypes.int32), ("WEBGPU", dtypes.float16), ("WEBGPU", dtypes.float32),
    ("WEBGPU", dtypes.bfloat16), ("WEBGPU", dtypes.bool)], ids=str)
@pytest.mark.parametrize("check", ["ops", "casts", "constants", "reductions", "bitcasts"])
def test_special_values(device: str, dtype: DType, check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_webgpu()
    if check == "constants" and not dtype.is_int:
        return
    monkeypatch.setattr(render_cases, "run_on", run_on)
    monkeypatch.setattr(render_cases, "ALL", tuple(d for d in render_cases.ALL if d in Device[device].target.storage))
    getattr(render_cases, f"check_{check}")(device, dtype, 1)


@pytest.mark.parametrize("opts", [[Opt(OptOps.LOCAL, 0, 2)], [Opt(OptOps.GROUP, 1, 8)], None], ids=str)
def test_threads_share_a_reduction(opts: list[Opt] | None) -> None:
    needs_webgpu()
    x = np.random.default_rng(0).integers(-9, 9, (7, 480)).astype(np.float32)
    got, source = run_value("WEBGPU", param(1, 7, 480).reduce("ADD", (1,)), opts, x)
    np.testing.assert_array_equal(got, x.sum(1, keepdims=True))
    assert ("workgroupBarrier()" in source) == (not opts or opts[0].op is OptOps.GROUP)


def test_more_blocks_than_an_axis_may_have() -> None:
    """200,003 blocks along one axis are launched as two axes; excess blocks do nothing."""
    needs_webgpu()
    x = np.arange(3 * 70_001, dtype=np.float32)
    got, source = run_value("WEBGPU", param(1, x.size) + 1, [Opt(OptOps.NOLOCALS)], x)
    np.testing.assert_array_equal(got, x + 1)
    assert "gid.y * 65535u" in source and "return;" in source
    got, _ = run_value("WEBGPU", param(1, 3, 70_001).permute((1, 0)) * 2, [Opt(OptOps.NOLOCALS)], x)
    np.testing.assert_array_equal(got, x.reshape(3, 70_001).T * 2)


def test_bytes_share_words_with_other_threads() -> None:
    """Stores of adjacent bytes by different threads, and copies from and to any byte offset, do not disturb each
    other."""
    needs_webgpu()
    values = np.random.default_rng(1).integers(-128, 128, 1003).astype(np.int8)
    x = Tensor(values, device="WEBGPU")
    np.testing.assert_array_equal((x + 1).numpy(), values + np.int8(1))
    b = Buffer("WEBGPU", 11, dtypes.uint8).copyin(memoryview(bytes(range(11))))
    b.view(3, dtypes.uint8, 5).copyin(memoryview(b"abc"))
    assert bytes(b.numpy()) == bytes((0, 1, 2, 3, 4, *b"abc", 8, 9, 10))
    assert bytes(b.view(4, dtypes.uint8, 6).numpy()) == b"bc\x08\x09"


def test_parts_of_a_buffer_may_start_anywhere() -> None:
    needs_webgpu()
    opened = Device["WEBGPU"]
    for dtype in (dtypes.float32, dtypes.uint8, dtypes.float16):
        values = np.arange(200).astype(dtype.numpy)
        base = Buffer("WEBGPU", 200, dtype).copyin(memoryview(values.view(np.uint8)))
        kernel = compile_kernel(UOp(Ops.SINK, None, (UOp(Ops.PARAM, dtype, (), (1, (5,))) + 1,)), opened.renderer)
        (program,) = opened.load([(kernel, opened.compiler.compile(kernel.source))])
        for target, source in ((153, 17), (160, 1), (99, 128)):
            program([base.view(5, dtype, target * dtype.itemsize), base.view(5, dtype, source * dtype.itemsize)], [])
            np.testing.assert_array_equal(base.numpy()[target : target + 5], np.arange(source, source + 5) + 1)


@pytest.mark.parametrize("device", DEVICES)
def test_a_program_trains_and_is_captured(device: str) -> None:
    """Steps of gradient descent with dropout, and an argmax, give what the CPU gives."""
    needs_webgpu()

    def losses(on: str) -> list[float]:
        Tensor.manual_seed(3)
        w = Tensor(np.ones((4, 3), np.float32), device=on, requires_grad=True)

        @TinyJit
        def step(x: Tensor) -> Tensor:
            w.grad = None
            loss = ((x @ w).relu().log_softmax() * (x[:, :3] > 0.2)).square().mean() + (x @ w).sin().mean()
            loss.backward()
            assert w.grad is not None
            w.assign(w.detach() - w.grad * 0.1)
            return (loss + (x @ w).argmax().float() * 1e-3).realize()

        rows = np.arange(32, dtype=np.float32).reshape(8, 4) / 32
        return [step(Tensor(rows + n, device=on)).item() for n in range(4)]

    np.testing.assert_allclose(losses(device), losses("CPU"), rtol=1e-5)


def test_errors_say_what_is_wrong() -> None:
    needs_webgpu()
    opened = Device["WEBGPU"]
    with pytest.raises(OutOfMemoryError, match="bytes requested"):
        Buffer("WEBGPU", 1 << 50, dtypes.float32).allocate()
    with pytest.raises(DeviceError, match="WEBGPU:99"):
        Device["WEBGPU:99"]
    kernel = compile_kernel(UOp(Ops.SINK, None, (param(1, 4) + 1,)), opened.renderer)
    with pytest.raises(CompileError, match="rejected the generated code"):
        opened.load([(kernel, b"fn f() { nonsense; }")])
    many = UOp(Ops.SINK, None, (sum((param(n, 4) for n in range(2, 60)), param(1, 4)),))
    kernel = compile_kernel(many, opened.renderer)
    if opened.gpu.limits["max-storage-buffers-per-shader-stage"] < 60:
        with pytest.raises(CompileError, match="works on 60 buffers"):
            opened.load([(kernel, kernel.source.encode())])


def test_without_wgpu_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from tinsmith.backend.webgpu import device

    device.load_wgpu.cache_clear()
    device.all_adapters.cache_clear()
    with monkeypatch.context() as m:
        m.setitem(sys.modules, "wgpu", None)
        with pytest.raises(DeviceError, match=r"tinsmith\[webgpu\]"):
            Device["WEBGPU:77"]
    device.load_wgpu.cache_clear()


def test_the_reason_is_known_where_it_is_missing() -> None:
    if missing():
        assert "wgpu" in missing() or "adapter" in missing()
