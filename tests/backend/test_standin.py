"""Devices missing on this machine: at DEBUG=4 their source is shown and another device computes; otherwise an error."""
from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from tests.backend.gpus import missing_cuda
from tests.golden.running import run
from tinsmith import Context, Tensor, TinyJit, conformance
from tinsmith.backend.device import Device
from tinsmith.backend.machine import measure
from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import DeviceError
from tinsmith.ir.builder import ProgramBuilder
from tinsmith.runtime.custom_program import run_program

ABSENT = "METAL:1" if sys.platform != "darwin" else "CUDA:1"
CPU = "CPU:1"


@pytest.fixture
def absent() -> str:
    """A missing device, opened at DEBUG=4 with a stand-in."""
    with Context(DEBUG=4):
        assert Device[ABSENT].runs_on is Device[CPU]
    return ABSENT


def test_only_who_asks_for_source_gets_a_stand_in() -> None:
    with pytest.raises(DeviceError, match=r"DEBUG=4, which shows its source"):
        Device[ABSENT.replace(":1", ":3")]
    with Context(DEBUG=4), pytest.raises(DeviceError, match="NOWHERE"):
        Device["NOWHERE"]


def test_a_stand_in_is_not_the_device(absent: str) -> None:
    with pytest.raises(DeviceError, match="there is no"):
        Device.here(absent)
    assert absent.split(":")[0] not in Device.get_available_devices()
    for asks in (conformance.run, measure):
        with pytest.raises(DeviceError, match="there is no"):
            asks(absent)
    assert Device.here(CPU) is Device[CPU]


def test_values_are_right_and_kernels_are_the_devices(absent: str, capsys: pytest.CaptureFixture[str]) -> None:
    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    with Context(DEBUG=4):
        found = (Tensor(x, device=absent) @ Tensor(x, device=absent)).softmax().numpy()
    np.testing.assert_allclose(found, Tensor(x, device="CPU").matmul(Tensor(x, device="CPU")).softmax().numpy())
    shown = capsys.readouterr().out
    assert shown.count("kernel void" if "METAL" in absent else "__global__") >= 1 and f"*** {absent}" in shown


def test_training_jit_and_several_devices(absent: str) -> None:
    """A captured step of gradient descent, sharded over two missing devices."""
    group = (absent, absent.split(":")[0] + ":2")
    with Context(DEBUG=4):
        Device[group[1]]

    def losses(devices: tuple[str, ...]) -> list[float]:
        w = Tensor(np.ones((4, 3), np.float32), requires_grad=True, device="CPU").shard_(devices)

        @TinyJit
        def step(x: Tensor) -> Tensor:
            w.grad = None
            loss = (x @ w).relu().square().mean()
            loss.backward()
            assert w.grad is not None
            w.assign(w.detach() - w.grad * 0.01)
            return loss.realize()

        rows = np.arange(32, dtype=np.float32).reshape(8, 4) / 32
        return [step(Tensor(rows + n, device="CPU").shard_(devices, axis=0)).item() for n in range(4)]

    np.testing.assert_allclose(losses(group), losses(("CPU:1", "CPU:2")), rtol=1e-6)


def test_programs_by_hand_run_in_its_place(absent: str) -> None:
    g = ProgramBuilder()
    out, n = (g.add("DEFINE_GLOBAL", dtypes.int32, arg=(k, s, True)) for k, s in enumerate(("data0", "n")))
    i = g.add("LOOP", dtypes.int32, vin=(g.add("CONST", dtypes.int32, arg=0), n))
    g.add("STORE", vin=(out, i, i))
    g.add("ENDLOOP", vin=(i,))
    squares = np.zeros(4, np.int32)
    run_program(g, squares, variables={"n": 3}, device=absent)
    assert squares.tolist() == [0, 1, 2, 0]


def test_the_gpu_that_is_not_here(tmp_path: Path) -> None:
    """``DEV=CUDA DEBUG=4`` without a GPU."""
    if not missing_cuda():
        pytest.skip("there is a GPU")
    script = "from tinsmith import Tensor; print(Tensor([1, 2]).dot(Tensor([3, 4])).item())"
    shown = run(["-c", script], tmp_path, DEV="CUDA", DEBUG="4").stdout
    assert "CUDA is not on this machine" in shown and 'extern "C" __global__ void __launch_bounds__' in shown
    assert "\n11\n" in shown
