"""explain(): every kernel with its reason, correct numbers, and no side effects."""
from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.golden.running import run
from tinsmith import Context, Tensor, explain
from tinsmith.core.counters import GlobalCounters
from tinsmith.core.errors import ArgumentError, KernelError
from tinsmith.inspect.explanation import CopyReport, Explanation, KernelReport
from tinsmith.nn import Linear

DEVICES = ["CPU", "PYTHON"]


def two_kernels(device: str = "CPU") -> Tensor:
    """Return a contraction that a softmax reads several times."""
    a, b = (Tensor(np.random.default_rng(n).normal(size=(32, 32)).astype(np.float32), device=device).realize()
            for n in range(2))
    return (a @ b).softmax()


@pytest.mark.parametrize("device", DEVICES)
def test_every_kernel_has_a_reason_opts_and_times(device: str) -> None:
    with Context(NOOPT=0):
        e = two_kernels(device).explain()
    assert e.kernels and all(isinstance(k, KernelReport) for k in e.steps)
    for k in e.kernels:
        assert k.reason and k.device == device and k.seconds is not None and k.seconds > 0
        assert k.estimate.seconds > 0 and k.share is not None and k.share > 0
        assert k.estimate.work.operations > 0
    assert e.kernels[-1].reason == "output" and sum(k.transcendentals for k in e.kernels) >= 32 * 32
    assert e.seconds is not None and e.predicted > 0


def test_the_reasons_are_those_that_debug_shows(capsys: pytest.CaptureFixture[str]) -> None:
    x = two_kernels()
    e = x.explain()
    with Context(DEBUG=3):
        x.realize()
    shown = capsys.readouterr().out
    text = " ".join(shown.split())
    for k in e.kernels:
        assert f"stored because: {k.reason}" in text and f"kernel {k.name}:" in text


def test_noopt_keeps_kernels_apart_and_says_so() -> None:
    x = Tensor(np.ones((4, 4), np.int32)).realize().var(axis=1)
    with Context(NOOPT=1):
        apart = x.explain(run=False)
    assert len(apart.kernels) == len(x.explain(run=False).kernels) + 1
    assert any("NOOPT=1" in k.reason for k in apart.kernels) and all(k.opts == () for k in apart.kernels)


def test_explaining_changes_nothing() -> None:
    """The tensor stays lazy, assigned state keeps its old version, and only the scheduling counters change."""
    state = Tensor([1.0, 2.0]).realize()
    before = state.numpy()
    state.assign(state * 2)
    x = (state + 1).exp()
    node, kernels = x.uop, GlobalCounters.kernel_count
    for _ in range(3):
        e = explain(x, state)
    assert x.uop is node and GlobalCounters.kernel_count == kernels and len(e.kernels) >= 1
    assert (state.numpy() == before * 2).all()
    assert np.allclose(x.numpy(), np.exp(before * 2 + 1))


def test_the_text_does_not_depend_on_what_is_cached() -> None:
    x = two_kernels()
    first = steady(x.explain())
    x.numpy()
    assert steady(x.explain()) == first == steady(two_kernels().explain())


def steady(e: Explanation) -> str:
    """Return the text without measured times."""
    return re.sub(r"[\d.]+ (us|ms|s|%)(?= |$|;|,)|^( *\d+ .*)$", "", str(e), flags=re.MULTILINE)


def test_a_backward_pass() -> None:
    layer = Linear(8, 4)
    x = Tensor(np.ones((16, 8), np.float32)).realize()
    loss = layer(x).relu().square().mean()
    loss.backward()
    e = explain(loss, layer.weight.grad, layer.bias.grad)
    text = str(e)
    assert "backward" in text and len(e.kernels) >= 2
    assert e.output_bytes == 4 * (1 + 32 + 4) and e.peak_bytes >= e.output_bytes + e.input_bytes
    assert layer.weight.grad is not None and layer.weight.grad.numpy().shape == (4, 8)


def test_copies_are_steps_too() -> None:
    e = (Tensor([1.0, 2.0]) + 1).explain()
    (copy,) = [s for s in e.steps if isinstance(s, CopyReport)]
    assert (copy.source, copy.device, copy.nbytes) == ("NPY", "CPU", 8) and "1 kernel and 1 copy" in str(e)


def test_temporaries_that_share_memory() -> None:
    """In a chain of products each result lives until the next one is computed, so two buffers are enough."""
    a = Tensor(np.eye(64, dtype=np.float32)).realize()
    x = a
    for _ in range(5):
        x = (x @ a).contiguous()
    e = x.explain(run=False)
    assert e.temporary_bytes < e.unshared_bytes == 4 * 64 * 64 * 4
    assert "without sharing" in str(e)


def test_what_is_realized_needs_nothing() -> None:
    x = Tensor([1, 2]).realize()
    for found in (x.explain(), x.reshape(2, 1).explain(), explain()):
        assert found.steps == () and str(found) == "nothing to compute: all values are in memory"


def test_what_is_no_tensor_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"None \(NoneType\) is no tensor"):
        explain(Tensor([1.0]) + 1, None)  # type: ignore[arg-type]


def test_only_compiling_shows_no_times() -> None:
    e = two_kernels().explain(run=False)
    assert e.seconds is None and all(k.seconds is None and k.share is None for k in e.kernels)
    assert "measured" not in str(e).splitlines()[0]


def test_a_buffer_that_failed_says_so() -> None:
    x = Tensor([1.0]).realize()
    x.uop.base.arg.failed = RuntimeError("burnt")
    with pytest.raises(KernelError, match="burnt"):
        (x + 1).explain()


def test_no_line_is_wider_than_120_columns() -> None:
    with Context(NOOPT=0):
        x = Tensor.rand(2, 3, 16, 16).realize().conv2d(Tensor.rand(5, 3, 3, 3).realize()).relu().max_pool2d()
        lines = str(explain(x, x.sum(), x.softmax())).splitlines()
    assert max(map(len, lines)) <= 120 and any("stored because" in line for line in lines)


def test_without_a_measurement_the_text_says_so(tmp_path: Path) -> None:
    script = "from tinsmith import Tensor; print((Tensor([1.0]) + 1).explain())"
    assert "run python -m tinsmith machine" in " ".join(run(["-c", script], tmp_path).stdout.split())
