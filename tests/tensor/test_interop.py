"""Memory shared between NumPy and tensors, in both directions, for as long as either needs it. PyTorch and JAX:
tests/parity/test_interop.py."""
from __future__ import annotations

import gc
import sys
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tinsmith
from tinsmith import Context, Device, GlobalCounters, Tensor, TinyJit, dtypes
from tinsmith.backend.cpu.device import CPUDevice, HostAllocator
from tinsmith.core.dtypes import to_dtype
from tinsmith.core.errors import ArgumentError, DeviceError, DTypeError
from tinsmith.nn.optim import SGD
from tinsmith.tensor.interop import dlpack


def address(t: Tensor) -> int:
    buffer = t.uop.base.arg
    return int(buffer.opaque.address + buffer.offset)


def settle() -> None:
    """Collect garbage, so that dead nodes release their buffers."""
    gc.collect()
    assert GlobalCounters.mem_used >= 0


class Owner(np.ndarray):  # type: ignore[type-arg]
    """An array that supports weak references."""


# *** in ***


@pytest.mark.parametrize("dtype", [*(d.numpy for d in dtypes.all if d is not dtypes.bfloat16), np.dtype(bool)])
def test_an_arrays_memory_is_the_tensors(dtype: np.dtype[Any]) -> None:
    a = np.arange(6).reshape(2, 3).astype(dtype)
    t = tinsmith.from_dlpack(a)
    assert t.dtype is dtypes.from_numpy(dtype) and address(t) == a.ctypes.data
    np.testing.assert_array_equal(t.numpy(), a)
    a[1, 2] = 0
    np.testing.assert_array_equal((t * 1).numpy(), a)


@pytest.mark.parametrize("view", [
    np.s_[:], np.s_[1:], np.s_[1:2], np.s_[:, :], np.s_[1], np.s_[1, 2], np.s_[:, None]])
def test_dense_views_are_shared(view: Any) -> None:
    a = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    for part in (a[view], a[view].T):
        t = Tensor.from_dlpack(part, copy=False)
        assert t.shape == part.shape and np.array_equal(t.numpy(), part) and address(t) == part.ctypes.data


@pytest.mark.parametrize("part", [np.s_[:, ::2], np.s_[::-1], np.s_[:, :, 1:3], np.s_[:, :0]])
def test_what_does_not_lie_together_is_copied(part: Any) -> None:
    a = np.arange(24, dtype=np.int32).reshape(2, 3, 4)[part]
    assert np.array_equal(Tensor.from_dlpack(a).numpy(), a)
    with pytest.raises(ArgumentError, match="not one after the other"):
        Tensor.from_dlpack(np.broadcast_to(np.arange(3), (4, 3)) if 0 in a.shape else a, copy=False)


def test_unaligned_memory_is_copied() -> None:
    a = np.frombuffer(b"x" + np.arange(3, dtype=np.float32).tobytes(), np.uint8)[1:].view(np.float32)
    assert Tensor.from_dlpack(a.copy()).tolist() == Tensor(a).tolist() == [0, 1, 2]


def test_read_only_memory_is_never_written() -> None:
    a = np.ones(3, np.float32)
    a.flags.writeable = False
    t = Tensor.from_dlpack(a)
    t += 1
    assert t.tolist() == [2, 2, 2] and a.tolist() == [1, 1, 1]


def test_writes_go_to_new_memory() -> None:
    a = np.ones(2, np.float32)
    w = Tensor.from_dlpack(a)
    w.requires_grad = True
    optimizer = SGD([w], lr=0.5)

    @TinyJit
    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = (w * x).sum().backward()
        optimizer.step()
        return loss

    with Tensor.train():
        losses = [step(Tensor([1.0, 3.0])).item() for _ in range(4)]
    assert losses == [4, -1, -6, -11] and a.tolist() == [1, 1]


def test_a_capture_reads_the_arrays_of_each_call() -> None:
    double = TinyJit(lambda x: x * 2)
    arrays = [np.full(3, n, np.float32) for n in range(5)]
    assert [double(Tensor.from_dlpack(a)).tolist()[0] for a in arrays] == [0, 2, 4, 6, 8] and double.replays == 3


def test_the_array_lives_as_long_as_the_tensor() -> None:
    a = np.arange(3, dtype=np.float32).view(Owner)
    alive = weakref.ref(a)
    t = Tensor.from_dlpack(a)
    late = t + 1
    del a
    settle()
    assert alive() is not None and t.tolist() == [0, 1, 2]
    del t
    settle()
    assert alive() is not None and late.tolist() == [1, 2, 3]
    del late
    settle()
    assert alive() is None


def test_a_copy_lets_the_array_go() -> None:
    a = np.arange(3, dtype=np.float32).view(Owner)
    alive = weakref.ref(a)
    t = Tensor.from_dlpack(a, copy=True)
    a[0] = 9
    assert t.tolist() == [0, 1, 2]
    del a
    settle()
    assert alive() is None


def test_what_is_no_array() -> None:
    with pytest.raises(ArgumentError, match="takes an array that has __dlpack__, got list"):
        Tensor.from_dlpack([1, 2])
    with pytest.raises(DTypeError, match="complex of 128 bits"):
        Tensor.from_dlpack(np.ones(2, np.complex128))
    taken = np.ones(2).__dlpack__()
    assert Tensor.from_dlpack(taken).tolist() == [1, 1]
    with pytest.raises(ArgumentError, match="holds no DLPack tensor"):
        Tensor.from_dlpack(sys.modules["datetime"].datetime_CAPI if "datetime" in sys.modules else taken)


class OnAnotherDevice:
    """An array that claims to be on a device unknown to Tinsmith."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return 10, 0

    def __dlpack__(self, **_: Any) -> Any:
        raise AssertionError("nobody can take it")


def test_memory_of_unknown_devices() -> None:
    for take in (Tensor.from_dlpack, Tensor):
        with pytest.raises(DeviceError, match="kind 10"):
            take(OnAnotherDevice())


# *** out ***


@pytest.mark.parametrize("dtype", [d for d in dtypes.all if d is not dtypes.bfloat16])
def test_numpy_looks_at_a_tensors_memory(dtype: Any) -> None:
    t = Tensor([[0, 1, 1], [1, 0, 1]]).cast(dtype).realize()
    seen = np.from_dlpack(t)
    assert seen.ctypes.data == address(t) and seen.dtype == dtype.numpy and np.array_equal(seen, t.numpy())
    assert np.array_equal(np.from_dlpack(t[1]), t.numpy()[1]) and np.array_equal(np.from_dlpack(t.T), t.numpy().T)


def test_capsules_of_types_that_numpy_lacks() -> None:
    for dtype in (dtypes.bfloat16, *dtypes.fp8s):
        t = Tensor([1.5, -2.0, 0.0]).cast(dtype).realize()
        back = Tensor.from_dlpack(t.__dlpack__())
        assert back.dtype is dtype and address(back) == address(t) and back.float().tolist() == [1.5, -2, 0]


def test_the_memory_lives_as_long_as_the_array() -> None:
    t = (Tensor([1.0, 2.0]) * 2).realize()
    alive = weakref.ref(t.uop.base.arg)
    seen = np.from_dlpack(t)
    del t
    settle()
    others = [(Tensor([1.0, 2.0]) * n).realize() for n in range(8)]
    assert alive() is not None and seen.tolist() == [2, 4] and len(others) == 8
    del seen
    settle()
    assert alive() is None


def test_a_new_version_leaves_what_others_look_at() -> None:
    w = Tensor([1.0, 2.0], requires_grad=True).realize()
    seen = np.from_dlpack(w)
    w.assign(w + 1).realize()
    assert seen.tolist() == [1, 2] and w.tolist() == [2, 3]
    step = TinyJit(lambda: w.assign(w * 2))
    for _ in range(4):
        seen = np.from_dlpack(w)
        before = seen.tolist()
        step()
        assert seen.tolist() == before
    assert w.tolist() == [32, 48]


def test_empty_single_flipped_and_computed() -> None:
    assert np.from_dlpack(Tensor.zeros(0, 3)).shape == (0, 3) and np.from_dlpack(Tensor(3.5)).item() == 3.5
    assert np.from_dlpack(Tensor([1, 2]).flip(0)).tolist() == [2, 1]
    assert np.from_dlpack(Tensor([1, 2]).realize().expand(2, 2)).tolist() == [[1, 2], [1, 2]]
    with pytest.raises(ArgumentError, match="no memory that others can look at"):
        Tensor([1, 2]).realize().pad((1, 1)).shard_(("CPU", "CPU:1")).__dlpack__(copy=False)


@pytest.mark.parametrize("device", ["PYTHON", "CPU:1", ("CPU", "CPU:1")])
def test_devices(device: Any) -> None:
    t = Tensor([1, 2, 3], device=device) + 1
    assert t.__dlpack_device__() == dlpack.HOST and np.from_dlpack(t).tolist() == [2, 3, 4]


def test_a_file_is_shared_or_copied(tmp_path: Any) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(bytes([1, 2, 3]))
    assert np.from_dlpack(Tensor(path)).tolist() == [1, 2, 3]
    assert np.asarray(Tensor(path)[1:]).tolist() == [2, 3]


def test_another_device_than_asked_for() -> None:
    with pytest.raises(ArgumentError, match=r"not on DLPack's \(2, 0\)"):
        Tensor([1]).__dlpack__(dl_device=(2, 0))
    t = Tensor([1.0, 2.0]).realize()
    copied = np.from_dlpack(t, copy=True) if np.lib.NumpyVersion(np.__version__) >= "2.1.0" else t.numpy()
    assert copied.ctypes.data != address(t)


class GPU:
    """A fake device whose memory the host cannot read: its addresses may only be passed on."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array, self.streams = array, []  # type: ignore[var-annotated]

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 1

    def __dlpack__(self, stream: int | None = None, **_: Any) -> Any:
        self.streams.append(stream)
        return dlpack.capsule(self.array, dtypes.from_numpy(self.array.dtype), (2, 1))


def test_a_capsule_says_which_gpu() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3).astype(ml_dtypes.bfloat16)
    found = dlpack.received("from_dlpack", GPU(array))
    assert found.place == (2, 1) and found.dtype is dtypes.bfloat16 and found.shape == (2, 3)
    assert found.address == array.ctypes.data and found.strides == (3, 1) and not found.on_host
    with pytest.raises(DeviceError, match="on a device"):
        Tensor(GPU(array))


# *** NumPy's protocol and Python's buffers ***


def test_asarray() -> None:
    t = Tensor([1, 2]).realize()
    own, seen, wide = np.array(t), np.asarray(t), np.asarray(t, dtype=np.float64)
    assert own.ctypes.data != address(t) and own.flags.writeable and np.asarray(t, copy=False).ctypes.data == address(t)
    assert seen.ctypes.data == address(t) and not seen.flags.writeable and seen.tolist() == [1, 2]
    assert wide.dtype == np.float64 and wide.flags.writeable and np.array(t, copy=True).tolist() == [1, 2]
    assert np.asarray(t.bfloat16()).dtype == ml_dtypes.bfloat16
    with pytest.raises(ValueError):
        np.asarray(t, dtype=np.float32, copy=False)
    t += 5
    assert t.tolist() == [6, 7] and seen.tolist() == own.tolist() == [1, 2]
    t = Tensor([1, 2]).realize()
    seen = np.asarray(t)
    alive = weakref.ref(t.uop.base.arg)
    del t
    settle()
    assert alive() is not None and seen.tolist() == [1, 2]


def test_buffer() -> None:
    t = Tensor([[1.5, 2.0], [3.0, 4.0]])
    view = memoryview(t) if sys.version_info >= (3, 12) else t.__buffer__(0)  # Python 3.11 asks C types only
    assert view.tolist() == [[1.5, 2], [3, 4]] and view.readonly and view.format == "f"
    assert bytes(Tensor([1, 2], dtype="uint8")) == b"\1\2"
    with pytest.raises(DTypeError, match="Python has no format"):
        t.bfloat16().__buffer__(0)
    with pytest.raises(DeviceError, match="the host can look at"):
        t.shard(("CPU", "CPU:1"), axis=0).__buffer__(0)


# *** dtypes ***

NAMES = {"float32": dtypes.float32, "float": dtypes.float32, "<f8": dtypes.float64, "dtypes.half": dtypes.float16,
         "float8_e4m3fn": dtypes.fp8e4m3}
TYPES = {np.float32: dtypes.float32, np.bool_: dtypes.bool, np.dtype("i2"): dtypes.int16,
         ml_dtypes.bfloat16: dtypes.bfloat16, bool: dtypes.bool, int: dtypes.int32, float: dtypes.float32}


@pytest.mark.parametrize(("given", "dtype"), [*NAMES.items(), *TYPES.items()], ids=str)
def test_a_dtype_by_any_name(given: Any, dtype: Any) -> None:
    assert to_dtype(given) is dtype
    ones = [Tensor.ones(2, dtype=given), Tensor([1, 1], dtype=given), Tensor([1.0, 1.0]).cast(given),
            Tensor([1, 1]).full_like(1, dtype=given), Tensor.full((2,), 1, dtype=given)]
    if dtype not in dtypes.fp8s:
        ones += [Tensor([1, 0]).sum(dtype=given).reshape(1).expand(2), Tensor.arange(1, 2, dtype=given).expand(2)]
    assert all(t.dtype is dtype for t in ones) and all(t.float().tolist() == [1, 1] for t in ones)


def test_default_dtypes_by_any_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dtypes, "default_float", np.float64)
    monkeypatch.setattr(dtypes, "default_int", "int16")
    assert Tensor([1.0]).dtype is Tensor.zeros(1).dtype is dtypes.float64 and Tensor.arange(3).dtype is dtypes.int16
    assert dtypes.is_float(np.float16) and dtypes.finfo("bfloat16").bits == 16


@pytest.mark.parametrize("given", ["flaot32", "all", "", None, 3, complex, np.complex64, object, [1]], ids=str)
def test_what_is_no_dtype(given: Any) -> None:
    with pytest.raises(DTypeError, match="there is no dtype"):
        Tensor([1]).cast(given)


# *** memory that the host cannot read: a fake GPU ***


class HiddenAllocator(HostAllocator):
    """An allocator of host memory that must not be read directly."""

    def host_view(self, opaque: Any, offset: int, nbytes: int) -> None:  # type: ignore[override]
        return None

    def copyin(self, opaque: Any, offset: int, source: memoryview) -> None:
        super().host_view(opaque, offset, source.nbytes)[:] = source

    def copyout(self, target: memoryview, opaque: Any, offset: int) -> None:
        target[:] = super().host_view(opaque, offset, target.nbytes)


class HiddenDevice(CPUDevice):
    """The CPU's kernels on hidden memory, with a stream."""

    dlpack = 2, 1
    stream = 77

    def __init__(self, name: str) -> None:
        cpu = Device["CPU"]
        super().__init__(name, HiddenAllocator(), cpu.compiler, cpu.runtime, cpu.renderer)
        self.said: list[Any] = []

    def hand_over(self, stream: int | None) -> None:
        self.said.append(stream)

    def synchronize(self) -> None:
        self.said.append("synchronize")


@pytest.fixture(scope="module")
def hidden() -> HiddenDevice:
    Device.register("HIDDEN", HiddenDevice)
    device = Device["HIDDEN"]
    assert isinstance(device, HiddenDevice)
    return device


def test_a_gpus_memory_is_handed_out(hidden: HiddenDevice) -> None:
    t = (Tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], device="HIDDEN") * 2).realize()
    assert t.__dlpack_device__() == (2, 1)
    found = dlpack.received("test", t, stream=5)
    assert found.place == (2, 1) and found.address == address(t) and hidden.said.pop() == 5
    turned = dlpack.received("test", t.T)
    assert turned.shape == (3, 2) and turned.strides == (2, 1) and turned.address != address(t)  # dense, over there
    assert turned.array.tolist() == [[2, 8], [4, 10], [6, 12]]
    with pytest.raises(ArgumentError, match="no memory that others can look at"):
        t.T.__dlpack__(copy=False)
    with pytest.raises(ValueError, match="NumPy cannot look at the memory of"):
        np.asarray(t, copy=False)
    on_host = dlpack.received("test", t.__dlpack__(dl_device=(1, 0)))
    assert on_host.on_host and on_host.array.tolist() == t.tolist() == np.asarray(t).tolist()


def test_a_gpus_memory_is_taken(hidden: HiddenDevice) -> None:
    array = np.zeros(8 + 16, np.float32)
    array = array[(-array.ctypes.data % 64) // 4 :][:8].reshape(2, 4)
    array[:] = np.arange(8).reshape(2, 4)
    gpu = GPU(array)
    with Context(DEV="HIDDEN"):
        t = Tensor.from_dlpack(gpu)
        assert gpu.streams == [77] and t.device == "HIDDEN" and address(t) == array.ctypes.data
        assert (t.T + 1).tolist() == (array.T + 1).tolist()
        copied = Tensor.from_dlpack(gpu, copy=True)
        array[:] = 0
        assert t.tolist() == [[0] * 4] * 2 and copied.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
        for part in (array[:, ::2], array[:, 1:]):
            with pytest.raises(ArgumentError, match="do not lie one after the other"):
                Tensor.from_dlpack(GPU(part))
        hidden.said.clear()
        del t
        settle()
        assert "synchronize" in hidden.said  # before the owner gets it back
