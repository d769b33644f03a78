"""Memory debugging: ``POISON=1`` fills fresh memory, ``CHECKED=2`` guards buffer ends and compares each kernel with the
interpreter."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from tests.codegen.running import NATIVE
from tinsmith.backend.device import Compiled, Device
from tinsmith.backend.memory import GUARD, Buffer, damaged
from tinsmith.backend.program import Call
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.errors import CheckError, VerifyError
from tinsmith.core.settings import Context
from tinsmith.ir import UOp
from tinsmith.jit.function import TinyJit
from tinsmith.tensor.tensor import Tensor

FLOATS = (dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64)


@pytest.mark.parametrize("device", ["CPU", "PYTHON", "NPY"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_fresh_memory_is_nan(device: str, dtype: DType) -> None:
    for size in (1, 3, 1000, 300_001):
        b = Buffer(device, size, dtype).allocate()
        assert np.isnan(b.numpy().astype(np.float64)).all() and b.is_poisoned()
        assert not b.copyin(memoryview(bytes(b.nbytes))).is_poisoned()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_no_processors_nan_is_taken_for_fresh_memory(dtype: DType) -> None:
    word = np.dtype(f"u{dtype.itemsize}")
    quiet = {2: (0x7FFF, 0xFE00, 0x7E00, 0xFFC0, 0x7FC0), 4: (0x7FFFFFFF, 0xFFC00000, 0x7FC00000),
             8: (0x7FFFFFFFFFFFFFFF, 0xFFF8000000000000, 0x7FF8000000000000)}  # of GPUs, x86 and Arm
    for bits in quiet[dtype.itemsize]:
        assert not Buffer("CPU", 3, dtype).copyin(np.full(3, bits, word).view(np.uint8).data).is_poisoned()


def test_fresh_integers_are_conspicuous() -> None:
    for dtype in (dtypes.int32, dtypes.uint32, dtypes.int64, dtypes.uint64):
        b = Buffer("CPU", 5, dtype).allocate()
        assert (b.numpy() > 1 << 30).all() and b.is_poisoned()


@pytest.mark.parametrize("change, filled", [({"POISON": 0}, False), ({"POISON": 1}, True), ({"CHECKED": 1}, True)])
def test_who_fills(change: dict[str, int], filled: bool) -> None:
    with Context(**({"POISON": 0} | change)):
        Buffer("CPU", 100, dtypes.float32).allocate().copyin(memoryview(bytes(400)))  # memory that comes again
        assert Buffer("CPU", 100, dtypes.float32).allocate().is_poisoned() == filled


@pytest.mark.parametrize("size", [8, 30_000], ids=["small", "large"])
@pytest.mark.parametrize("more", [False, True], ids=["lone", "several"])
def test_a_replay_that_writes_nothing_shows(size: int, more: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory reused by a replay is poisoned like fresh memory."""
    x = Tensor.ones(size).contiguous().realize()

    def function(x: Tensor) -> tuple[Tensor, ...] | Tensor:
        y = (x.flip(0) * 2).contiguous()
        return (y.flip(0) + x, y) if more else y.flip(0) + x

    jitted = TinyJit(function)
    for _ in range(6):
        result = jitted(x)
        np.testing.assert_array_equal((result[0] if isinstance(result, tuple) else result).numpy(), np.full(size, 3))
        del result
    monkeypatch.setattr("tinsmith.backend.cpu.device.CPUGraph.__call__", lambda *_: None)
    try:
        result = jitted(x)
    except VerifyError as error:
        assert "contains uninitialized memory" in str(error)
    else:
        assert not isinstance(result, tuple)
        assert np.isnan(result.uop.base.arg.numpy()).all()


# *** CHECKED=2 ***


@pytest.fixture
def checked() -> Iterator[None]:
    with Context(CHECKED=2):
        yield


def test_ends_are_guarded(checked: None) -> None:
    b = Buffer("CPU", 5, dtypes.float32)
    part = b.view(2, dtypes.float32, 4)
    assert b.offset == GUARD and part.offset == GUARD + 4
    b.copyin(memoryview(np.arange(5, dtype=np.float32)).cast("B"))
    assert b.is_intact() and b.numpy().tolist() == [0, 1, 2, 3, 4] and part.numpy().tolist() == [1, 2]
    for at in (GUARD - 1, GUARD + 20, 0, 2 * GUARD + 19):
        Device["CPU"].allocator.copyin(b.opaque, at, memoryview(b"x"))
        assert not b.is_intact() and any(d is b for d in damaged())
        Device["CPU"].allocator.copyin(b.opaque, at, memoryview(b"\xa5"))
    assert b.is_intact() and not any(d is b for d in damaged())


def _scattered(x: Tensor) -> Tensor:
    x = x.flatten()
    return Tensor.zeros(9, device=x.device).scatter_reduce(0, x.abs().cast(dtypes.int32), x, "sum")


def programs(device: str) -> Iterator[Tensor]:
    numbers = np.random.default_rng(0)
    x = Tensor(numbers.standard_normal((6, 10)).astype(np.float32), device=device)
    y = Tensor(numbers.integers(0, 6, (6, 10)), device=device)
    large = Tensor(numbers.standard_normal((200, 200)).astype(np.float32), device=device)
    yield x.softmax(1) @ x.T
    yield x.gather(0, y) + x.cumsum(1)
    yield x.layernorm().gelu().half()
    yield (x > 0).where(y, -y).sum(1)
    yield x.sort(1)[0] - x
    yield x * 0 + (x - x.mean()).std(0)
    yield Tensor.arange(30, device=device).float().sin() * 1e3
    if device == "CPU":
        yield (large @ large).exp().sum(1)
        yield Tensor(numbers.integers(0, 9, (2, 40_000)), device=device).cumsum(1)
        yield _scattered(large)
    yield _scattered(x)
    n = UOp.variable("n", 1, 6).bind(5)
    yield x.shrink(((0, n), (0, 10))).sum(0).exp()


@pytest.mark.parametrize("device", [*NATIVE, "PYTHON"])
def test_right_kernels_pass(device: str) -> None:
    wanted = [t.numpy() for t in programs(device)]
    with Context(CHECKED=2):
        for t, want in zip(programs(device), wanted):
            np.testing.assert_allclose(t.numpy(), want, rtol=1e-2, atol=1e-2)


def test_training_and_jit_pass(checked: None) -> None:
    w = Tensor.ones(4, 3, requires_grad=True).contiguous().realize()

    @TinyJit
    def step(x: Tensor) -> Tensor:
        (g,) = (x @ w).square().mean().gradient(w)
        w.assign(w - 0.1 * g)
        return w.realize().sum()

    found = [step(Tensor([[1.0, 2.0, 3.0, n]])).item() for n in range(5)]
    with Context(CHECKED=0, POISON=0):
        w.assign(Tensor.ones(4, 3)).realize()
        np.testing.assert_allclose(found, [step(Tensor([[1.0, 2.0, 3.0, n]])).item() for n in range(5)], rtol=1e-5)


def test_several_devices_pass(checked: None) -> None:
    x = Tensor(np.arange(12.0).reshape(4, 3)).shard(("CPU", "CPU:1"), 0)
    np.testing.assert_allclose((x * 2).sum(0).numpy(), np.arange(12.0).reshape(4, 3).sum(0) * 2)
    y = Tensor([1.0, 2.0], device="PYTHON")
    assert (y.to("CPU") + 1).to("PYTHON").mul(3).tolist() == [6.0, 9.0]


def broken(monkeypatch: pytest.MonkeyPatch, damage: Callable[[Sequence[Buffer]], None]) -> None:
    """The PYTHON device, with kernels that each do some damage."""
    device = Device["PYTHON"]

    def run(calls: Sequence[Call]) -> None:
        Compiled.run(device, calls)
        for call in calls:
            damage(call.buffers)

    monkeypatch.setattr(device, "run", run)


def poke(b: Buffer, at: int) -> None:
    Device[b.device].allocator.copyin(b.opaque, b.offset + at, memoryview(b"\x11\x22\x33\x44"))


@pytest.mark.parametrize("damage, message", [
    (lambda buffers: poke(buffers[0], 24), r"writes outside of its output in slot \d+ \(6 x dtypes.float\)"),
    (lambda buffers: poke(buffers[0], -4), "writes outside of its output"),
    (lambda buffers: poke(buffers[1], 24), "writes outside of its input"),
    (lambda buffers: poke(buffers[1], 4), "writes to its input in slot .*, which it should only read"),
    (lambda buffers: poke(buffers[0], 4), "computes .* as element 1 of its output in slot .*, the interpreter 3.0; "
                                          "1 of 6 elements looked at differ"),
    (lambda buffers: buffers[0].poison(), "computes nan as element 0 .*; 6 of 6 elements"),
], ids=["behind", "before", "behind an input", "input", "wrong", "unwritten"])
def test_damage_is_found(damage: Callable[[Sequence[Buffer]], None], message: str, checked: None,
                         monkeypatch: pytest.MonkeyPatch) -> None:
    x = Tensor(np.arange(6, dtype=np.float32), device="PYTHON").realize()
    y = x.mul(2) + 1
    broken(monkeypatch, damage)
    with pytest.raises(CheckError, match=rf"kernel E_\S+ \(.*\) on PYTHON {message}.*test_memory.py") as caught:
        y.realize()
    with open(__file__, encoding="utf-8") as file:
        assert "x.mul(2) + 1" in file.read().split("\n")[caught.value.line - 1]


def test_damage_elsewhere_is_found(checked: None, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Tensor(np.arange(6, dtype=np.float32), device="PYTHON").realize()
    x = Tensor(np.ones(6, np.float32), device="PYTHON").realize()
    broken(monkeypatch, lambda _: poke(other.uop.base.arg, 24))
    with pytest.raises(CheckError, match="or a later kernel of its program writes outside of <Buffer PYTHON 6 x"):
        (x * 2).realize()
    assert other.uop.base.arg.is_intact(), "damage is told once"
