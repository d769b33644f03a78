"""Failures at run time: kernels, devices, memory, interrupts, forks, threads, missing tools."""
from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.golden.running import ROOT, environment, interruptible
from tinsmith import Device, GlobalCounters, Tensor
from tinsmith.backend.cpu.device import CPUGraph
from tinsmith.backend.device import Compiled
from tinsmith.backend.memory import Buffer
from tinsmith.backend.python.device import DEVICE, PythonProgram
from tinsmith.core.errors import ArgumentError, KernelError


class Fragile(PythonProgram):
    """A program of a device that may fail."""

    broken = False

    def __call__(self, buffers: Sequence[Buffer], variables: Sequence[int] = ()) -> None:
        if Fragile.broken:
            raise OSError("the device fell off the bus")
        super().__call__(buffers, variables)


def _fragile(name: str) -> Compiled:
    python = DEVICE("PYTHON")
    return Compiled(name, python.allocator, python.compiler, Fragile, python.renderer)


@pytest.fixture
def broken() -> Iterator[None]:
    Device.register("FRAGILE", _fragile)
    Fragile.broken = True
    yield
    Fragile.broken = False


@pytest.mark.usefixtures("broken")
def test_a_kernel_that_fails() -> None:
    a = Tensor([1.0, 2.0], device="FRAGILE")
    other = Tensor([1.0, 2.0]) + 1
    b = a * 2
    line = test_a_kernel_that_fails.__code__.co_firstlineno + 4
    for _ in range(2):  # read again, it names the failure again
        with pytest.raises(KernelError, match=r"kernel E_2.*mul.*FRAGILE: OSError: the device fell off the bus") as e:
            b.numpy()
        assert e.value.line == line and isinstance(e.value.__cause__, OSError)
    with pytest.raises(KernelError, match="fell off the bus"):
        (b + 1).realize()
    assert other.tolist() == [2, 3]
    assert a.tolist() == [1, 2]  # what the kernel would have read is intact
    Fragile.broken = False
    assert b.tolist() == [2, 4]


@pytest.mark.usefixtures("broken")
def test_a_failing_assignment_is_not_read_as_if_it_had_happened() -> None:
    w = Tensor([1.0, 2.0], device="FRAGILE").realize()
    old = w + 0
    w.assign(w * 2)
    with pytest.raises(KernelError, match="fell off the bus"):
        w.realize()
    Fragile.broken = False
    try:
        assert w.tolist() == [2, 4]
    except KernelError as error:  # its memory may be half written
        assert "fell off the bus" in str(error)
    else:
        assert old.tolist() == [1, 2]


@pytest.mark.usefixtures("broken")
def test_a_write_to_a_part_that_never_began_leaves_the_tensor_intact() -> None:
    w = Tensor(np.ones((4096, 16), np.float32), device="FRAGILE").realize()
    with Tensor.no_grad():
        w[3:5] = 2.0
        with pytest.raises(KernelError, match="fell off the bus"):
            w.realize()
        Fragile.broken = False
        assert w.sum().item() == 4096 * 16 + 2 * 16


def test_devices_that_are_not_names() -> None:
    with pytest.raises(ArgumentError, match="not a device name"):
        Device.register("no name", _fragile)


def python(program: str, home: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    env = environment(home / "cache", **settings)
    return subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=env, text=True, encoding="utf-8",
                          capture_output=True, timeout=100, check=False)


def test_a_setting_that_is_no_number(tmp_path: Path) -> None:
    done = python("import tinsmith", tmp_path, DEBUG="abc")
    assert done.returncode == 1
    assert done.stderr.splitlines() == ["tinsmith: DEBUG='abc' is not a whole number. Try: DEBUG=1"]


def test_a_setting_that_is_negative(tmp_path: Path) -> None:
    done = python("import tinsmith", tmp_path, THREADS="-3")
    assert done.returncode == 1
    assert done.stderr.splitlines() == ["tinsmith: THREADS=-3 is negative. Try: THREADS=0"]


BARE = """
import numpy as np
from tinsmith import Tensor
print(Tensor([1, 2]).dot(Tensor([3, 4])).numpy())
a = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
b = np.asarray(a.T @ a, np.float32)
print(np.allclose((Tensor(a).T @ Tensor(a)).numpy(), b, atol=1e-4))
"""


@pytest.mark.parametrize("home", ["missing", "read-only"])
def test_r18_without_tools_or_a_home(tmp_path: Path, home: str) -> None:
    place = tmp_path / "home"
    if home == "read-only":
        place.mkdir(mode=0o500)
    else:
        place = place / "nowhere"
        tmp_path.chmod(0o500)
    env = {k: v for k, v in environment(tmp_path).items() if not k.startswith("XDG_") and k != "CACHE_DIR"}
    env |= {"PATH": "", "HOME": str(place)}
    try:
        done = subprocess.run([sys.executable, "-c", BARE], cwd="/", env=env, text=True, capture_output=True,
                              timeout=100, check=False)
    finally:
        tmp_path.chmod(0o700)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["11", "True"] and done.stderr == ""


LOOP = """
import numpy as np
from tinsmith import Tensor
a = Tensor(np.full((256, 256), 1 / 256, np.float32)).realize()
w = Tensor(np.ones((256, 256), np.float32)).realize()
total = 1.0
print("ready", flush=True)
try:
    while True:
        w.assign(w + 1).realize()
        total += 1
        (a @ a).realize()
except KeyboardInterrupt:
    values = w.numpy()
    print("interrupted", (a @ a).numpy()[0, 0] * 256, (values == values[0, 0]).all(), values[0, 0] - total in (0, 1))
    raise
"""


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT for another process")
def test_ctrl_c_ends_a_long_loop(tmp_path: Path) -> None:
    with interruptible():
        process = subprocess.Popen([sys.executable, "-c", LOOP], cwd=ROOT, env=environment(tmp_path), text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)  # one is enough: see test_no_python_code_runs_when_something_dies
        out, err = process.communicate(timeout=100)
    finally:
        process.kill()
    assert out == "interrupted 1.0 True True\n", out + err
    assert err.splitlines()[-1] == "KeyboardInterrupt" and process.returncode in (130, -signal.SIGINT)


ENDLESS = """
import signal, sys, threading
import numpy as np
from tinsmith import Tensor

n, one = 10**7, Tensor(np.ones((1, 1), np.float32)).realize()
rows = Tensor(np.ones((4096, 1), np.float32)).realize()
kinds = {
    "serial": lambda: one.reshape(1, 1, 1).expand(n, n, n).sum(),
    "parallel": lambda: (one.expand(4096, n * n) * rows.expand(4096, n * n)).exp().sum(axis=1),
}
kept = Tensor(np.arange(9, dtype=np.float32)).realize()
for kind, make in kinds.items():
    value = make()
    threading.Timer(1, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT)).start()
    try:
        value.realize()
    except KeyboardInterrupt:
        a = Tensor(np.full((256, 256), 1 / 256, np.float32))
        print("interrupted", kind, (a @ a).numpy()[0, 0] * 256, kept.tolist() == list(range(9)), flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux's native pool can be taken out of a kernel")
@pytest.mark.parametrize("device", ["CPU", "CPU:C"])
@pytest.mark.parametrize("threads", [1, 2])
def test_ctrl_c_ends_a_kernel_that_would_take_years(tmp_path: Path, device: str, threads: int) -> None:
    env = {**environment(tmp_path), "DEV": device, "THREADS": str(threads)}
    with interruptible():
        done = subprocess.run([sys.executable, "-c", ENDLESS], cwd=ROOT, env=env, text=True, capture_output=True,
                              timeout=100, check=False)
    assert done.stdout == "interrupted serial 1.0 True\ninterrupted parallel 1.0 True\n", done.stdout + done.stderr
    assert done.returncode == 0, done.stderr


def test_no_python_code_runs_when_something_dies() -> None:
    """Python drops a KeyboardInterrupt that is raised inside a callback of a weak reference or a finalizer."""
    w = Tensor(np.ones((4, 4), np.float32)).realize()
    lazy = (w @ w + 1).relu()
    read = (w * 2).sum(axis=0)
    read.numpy()
    realized = (w + 3).realize()
    used = GlobalCounters.mem_used
    gone = [weakref.ref(t.uop.base) for t in (w, lazy, read, realized)]
    ran: list[str] = []
    sys.setprofile(lambda frame, event, _: ran.append(frame.f_code.co_qualname) if event == "call" else None)
    try:
        del w, lazy, read, realized
    finally:
        sys.setprofile(None)
    assert ran == []
    assert GlobalCounters.mem_used == used - 64 - 16 - 64 and all(r() is None for r in gone)


FORK = """
import os, sys
from tinsmith import Tensor
x = Tensor([1.0, 2.0, 3.0]).realize()
y = x * 2
assert (x + 1).tolist() == [2, 3, 4]
child = os.fork()
result = (y.tolist(), (x @ x).item(), Tensor.ones(300, 300).sum().item())
good = result == ([2, 4, 6], 14, 90000)
if child == 0:
    os._exit(0 if good else 1)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(good, status)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_computes(tmp_path: Path) -> None:
    done = python(FORK, tmp_path)
    assert done.stdout == "True 0\n", done.stderr


def test_threads_compute_at_the_same_time() -> None:
    """Threads with their own graphs, gradients, assignments and programs, and one tensor that all of them read."""
    shared = Tensor(np.arange(64, dtype=np.float32)).realize()
    wrong: list[Any] = []

    def work(number: int) -> None:
        try:
            w = Tensor([float(number)]).realize()
            for step in range(12):
                n = 3 + (number + step) % 4
                x = Tensor(np.full((n, n), number + step, np.float32))
                (x @ x + shared[:n]).sum().backward()
                want = np.full((n, n), 2 * n * (number + step), np.float32)
                assert np.array_equal(x.grad.numpy(), want), (x.grad.numpy(), want)
                w.assign(w + shared[step]).realize()
                assert (shared * number).sum().item() == number * 2016
            assert w.item() == number + 66
        except BaseException as error:  # whatever it is, the test must see it
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(100)
    assert not wrong, repr(wrong[0])


# *** handlers of signals ***

HANDLED = """
import random, signal, sys, threading
from tinsmith import Context, Tensor, TinyJit

class Stop(Exception): ...

def stop(number, frame):
    raise Stop

Tensor([1.0, 2.0]).sum().item()  # opens the device: Python's enum wraps an exception that comes while it is imported
signal.signal(signal.SIGALRM, stop)
draw, interval, came = random.Random(5), sys.getswitchinterval(), 0
for n in range(40):
    sums = [(Tensor([1.0] * (1000 + 7 * n + k), requires_grad=False) * 2).sum() for k in range(4)]
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001 + draw.random() * 0.1)
        with Context(CACHELEVEL=0):
            Tensor.realize(*sums)
    except Stop:
        came += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    assert [s.item() for s in sums] == [2.0 * (1000 + 7 * n + k) for k in range(4)]
assert came > 3, came
assert sys.getswitchinterval() == interval
# Without an ident: its start was interrupted, and it will never run; Python keeps it in the list.
compilers = [t for t in threading.enumerate() if t.name == "tinsmith compiler" and t.ident is not None]
for t in compilers:
    t.join(5)  # one whose start was interrupted later ends by itself
assert not any(t.is_alive() for t in compilers)

x = Tensor([1.0]).realize()
f = TinyJit(lambda x: x * 2 + 1)
for _ in range(5):
    f(x)
came = 0
for n in range(200):
    try:
        # Again and again: Python drops an exception that comes in a finalizer.
        signal.setitimer(signal.ITIMER_REAL, 0.0001 + draw.random() * 0.001, 0.5)
        while True:
            assert f(x).item() == 3.0
    except Stop:
        signal.setitimer(signal.ITIMER_REAL, 0)
        came += 1
assert came == 200
print("good")
"""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timers that send signals")
def test_an_exception_of_a_signals_handler_surfaces_as_itself(tmp_path: Path) -> None:
    done = python(HANDLED, tmp_path, DYNAMIC="0")  # it compiles a program per size
    assert done.stdout == "good\n", done.stderr


def test_a_kernel_that_a_signals_handler_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(number: int, frame: object) -> None:
        raise TimeoutError("too late")

    def interrupted(self: CPUGraph, *args: Any) -> None:
        signal.raise_signal(signal.SIGINT)

    y = Tensor([1.0, 2.0]).realize() * 3
    before = signal.signal(signal.SIGINT, stop)
    try:
        with monkeypatch.context() as patch, pytest.raises(TimeoutError, match="too late"):
            patch.setattr(CPUGraph, "__call__", interrupted)
            y.realize()
    finally:
        signal.signal(signal.SIGINT, before)
    assert y.tolist() == [3.0, 6.0]
