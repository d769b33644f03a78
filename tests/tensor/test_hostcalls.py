"""Host functions among a program's kernels: the same values as generated code, captured, replayed and refused like
kernels."""
from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

from tests.schedule.helpers import kernels
from tinsmith import Context, Tensor, TinyJit, explain
from tinsmith.backend.cpu import pool as entries
from tinsmith.backend.cpu.device import CPUDevice
from tinsmith.core.errors import KernelError
from tinsmith.ir import Ops
from tinsmith.ir.ops import scans

CASES: dict[str, Callable[[Tensor], Tensor]] = {
    "cholesky": lambda x: x.matmul(x.transpose(-1, -2)).cholesky(), "det": lambda x: x.det(),
    "eigh": lambda x: x.add(x.transpose(-1, -2)).eigh()[0], "inv": lambda x: x.inv(),
    "eigenvectors": lambda x: x.add(x.transpose(-1, -2)).eigh()[1].square(),
    "lu": lambda x: x.lu()[2], "qr": lambda x: x.qr()[1].square(), "slogdet": lambda x: x.slogdet()[1],
    "solve": lambda x: x.solve(x.square()), "svd": lambda x: x.svd()[1], "pinv": lambda x: x.pinv(),
    "vectors": lambda x: x.svd()[2].square()}


def data(*shape: int, dtype: type = np.float64) -> np.ndarray:
    return np.random.default_rng(3).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("shape", [(4, 4), (2, 3, 3)])
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_generated_code(name: str, shape: tuple[int, ...],
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for calls in (True, False):
        monkeypatch.setattr(CPUDevice, "calls_host", calls)
        x = Tensor(data(*shape), requires_grad=True)
        value = CASES[name](x)
        slope = value.mul(Tensor(data(*map(int, value.shape)))).sum().gradient(x)[0]
        assert any(k.sink is not None and k.sink.src[0].op is Ops.HOST for k in kernels(value)) is calls
        found.append((value.numpy(), slope.numpy()))
    (a, da), (b, db) = found
    assert a.dtype == np.float64
    np.testing.assert_allclose(a, b, 1e-9, 1e-9)
    np.testing.assert_allclose(da, db, 1e-7, 1e-7)


@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft"])
def test_transforms_of_prime_sizes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = data(2, 134 if name == "rfft" else 67, *(() if name == "rfft" else (2,)))
    found = []
    for calls in (True, False):
        monkeypatch.setattr(CPUDevice, "calls_host", calls)
        t = Tensor(x, requires_grad=True)
        value = getattr(t, name)(dim=1) if name != "irfft" else t.irfft(134, dim=1)
        slope = value.square().mul(Tensor(data(*map(int, value.shape)))).sum().gradient(t)[0]
        found.append((value.numpy(), slope.numpy()))
    np.testing.assert_allclose(found[0][0], found[1][0], 1e-9, 1e-9)
    np.testing.assert_allclose(found[0][1], found[1][1], 1e-8, 1e-8)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_factorization_is_one_command(dtype: type) -> None:
    a = data(5, 6, 6, dtype=dtype)
    x = Tensor(a @ a.swapaxes(-1, -2) + np.eye(6, dtype=dtype)).realize()
    for value, wanted in ((x.cholesky(), np.linalg.cholesky), (x.inv(), np.linalg.inv), (x.det(), np.linalg.det)):
        assert len(kernels(value)) == 1
        found = value.numpy()
        assert found.dtype == dtype
        np.testing.assert_allclose(found, wanted(x.numpy()), 1e-3 if dtype is np.float32 else 1e-9)
    assert explain(x.cholesky(), run=False).kernels[0].name == "host_cholesky_5_6_6"
    assert "host_cholesky_5_6_6" in repr(x.cholesky().schedule())


def test_replayed_on_other_values_and_written_state() -> None:
    state = Tensor(np.eye(3, dtype=np.float32)).realize()

    @TinyJit
    def step(x: Tensor) -> Tensor:
        state.assign(state + x)
        return (state.inv() + 1).realize()

    kept = np.eye(3, dtype=np.float32)
    for n in range(6):
        x = np.diag(np.arange(1, 4) + n).astype(np.float32)
        kept = kept + x
        np.testing.assert_allclose(step(Tensor(x).realize()).numpy(), np.linalg.inv(kept) + 1, 1e-5)
    np.testing.assert_array_equal(state.numpy(), kept)


def test_views_are_read_in_order() -> None:
    a = data(4, 6)
    for view, wanted in ((Tensor(a)[:, 1:5].T, a[:, 1:5].T), (Tensor(a).flip(0)[:, :4], a[::-1, :4])):
        np.testing.assert_allclose(view.inv().numpy(), np.linalg.inv(wanted), 1e-9)


def test_matrices_without_factors_are_nan_and_the_others_are_not() -> None:
    both = Tensor(np.stack([np.eye(3), -np.eye(3), np.zeros((3, 3))]))
    found = both.cholesky().numpy()
    assert np.isnan(found[1, 0, 0]) and np.isnan(found[2]).any() | (found[2] == 0).all()
    np.testing.assert_array_equal(found[0], np.eye(3))
    inverse = both.inv().numpy()
    assert not np.isfinite(inverse[2]).all()
    np.testing.assert_array_equal(inverse[:2], [np.eye(3), -np.eye(3)])
    assert both.det().tolist() == [1, -1, 0]


@pytest.mark.parametrize("error", [MemoryError("none left"), KeyboardInterrupt()])
def test_what_a_function_raises_is_raised(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arrays: np.ndarray) -> np.ndarray:
        raise error

    x = Tensor(data(3, 3)).realize()
    with monkeypatch.context() as m:
        m.setitem(scans.FUNCTIONS, "inv", fails)
        value = x.inv()
        with pytest.raises(KernelError if isinstance(error, Exception) else KeyboardInterrupt):
            value.realize()
    np.testing.assert_allclose(x.inv().numpy(), np.linalg.inv(x.numpy()), 1e-9)


def test_other_devices_have_generated_code() -> None:
    a = data(3, 3)
    value = Tensor(a, device="PYTHON").inv()
    assert not any(k.sink is not None and k.sink.src[0].op is Ops.HOST for k in kernels(value))
    np.testing.assert_allclose(value.numpy(), np.linalg.inv(a), 1e-9)


def test_checked_one_by_one_and_with_little_memory() -> None:
    a = data(3, 3)
    with Context(CHECKED=2):
        np.testing.assert_allclose((Tensor(a).inv() + 1).numpy(), np.linalg.inv(a) + 1, 1e-9)
    with Context(CHECK_IR=1):
        np.testing.assert_allclose((Tensor(a).inv() + 2).numpy(), np.linalg.inv(a) + 2, 1e-9)
    with Context(MEMORY_BUDGET="1GB"):
        np.testing.assert_allclose((Tensor(a).inv() + 3).numpy(), np.linalg.inv(a) + 3, 1e-9)
    with Context(THREADS=1):
        np.testing.assert_allclose((Tensor(a).inv() + 4).numpy(), np.linalg.inv(a) + 4, 1e-9)


def test_threads_leave_the_number_of_lapacks_threads_as_it_was() -> None:
    counts = entries._count_of_threads()
    if counts is None:
        return  # NumPy has another library here
    before, x = counts[0](), Tensor(data(8, 20, 20)).realize()
    wanted = np.linalg.inv(x.numpy())

    def work() -> None:
        for n in range(20):
            found.append((x.inv() + n).numpy() - n)

    found: list[np.ndarray] = []
    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(found) == 80
    for f in found:
        np.testing.assert_allclose(f, wanted, 1e-7, 1e-7)
    assert counts[0]() == before
