"""Plans: the memory predicted before the first kernel equals the measured one."""
from __future__ import annotations

import gc
from collections.abc import Callable

import numpy as np
import pytest

import tinsmith
from tinsmith import Context, GlobalCounters, Tensor, TinyJit, nn
from tinsmith.core.errors import ArgumentError, DTypeError, JitError, OutOfMemoryError
from tinsmith.inspect.explanation import Plan
from tinsmith.runtime import realize


def check(make: Callable[[], Plan], run: Callable[[], object]) -> Plan:
    """Plan, run, and compare the measured peak memory with the plan, to the byte."""
    gc.collect()
    plan = make()
    before = GlobalCounters.mem_used_per_device
    GlobalCounters.reset()
    run()
    for device, memory in plan.memory.items():
        assert GlobalCounters.mem_peak_per_device.get(device, 0) - before.get(device, 0) == memory.new
        assert GlobalCounters.mem_peak_per_device.get(device, 0) == memory.peak + memory.others
    assert GlobalCounters.kernel_count == plan.kernels + plan.copies
    return plan


def test_forward() -> None:
    x, layer = Tensor.rand(64, 128).realize(), nn.Linear(128, 256)
    layer.weight.realize(layer.bias)
    out = layer(x).softmax()
    GlobalCounters.reset()
    plan = out.plan()
    assert GlobalCounters.kernel_count == 0 and out.uop.op.name == "MUL"
    memory = plan.memory["CPU"]
    assert memory.inputs == 4 * (64 * 128 + 128 * 256 + 256) and memory.results == 4 * 64 * 256
    assert plan.peak_bytes == memory.peak and plan.new_bytes == memory.new
    check(out.plan, out.realize)
    assert plan.seconds > 0 and plan.operations >= 2 * 64 * 128 * 256 and plan.traffic >= memory.inputs + memory.results
    assert out.plan().kernels == 0 and str(out.plan()) == "nothing to compute: all values are in memory"


def test_data_from_the_host() -> None:
    x, y = Tensor(np.ones((100, 10), np.float32)), Tensor(np.arange(7))
    plan = tinsmith.plan(x + 1, y)
    assert (plan.copies, plan.memory["CPU"].copied) == (2, 4000 + y.numpy().nbytes)
    x, y = Tensor(np.ones((100, 10), np.float32)), Tensor(np.arange(7))
    out = x + 1
    check(lambda: tinsmith.plan(out, y), lambda: out.realize(y))


def test_views() -> None:
    x = Tensor.rand(50, 60).realize()
    view = x[10:20].T
    assert view.plan().kernels == 0  # a view of memory is in memory
    for made in (lambda: (x.T + 1)[3:7], lambda: (x + 1).reshape(3000)[::3].contiguous(), lambda: x[::2].contiguous(),
                 lambda: x.expand(2, 50, 60).sum(2)):
        out = made()
        check(out.plan, out.realize)
    part = x[5:9]
    part += 1
    check(x.plan, x.realize)
    y = Tensor.rand(50, 60).realize()
    y += 1
    assert check(y.plan, y.realize).memory["CPU"].results == 0  # a new version takes the old one's memory


def test_a_training_step_and_its_optimizer() -> None:
    layers = [nn.Linear(64, 64) for _ in range(3)]
    parameters = [p for layer in layers for p in (layer.weight, layer.bias)]
    opt = nn.optim.AdamW(parameters, lr=0.01)
    x = Tensor.rand(256, 64).realize()
    for _ in range(3):
        opt.zero_grad()
        h = x
        for layer in layers:
            h = layer(h).gelu()
        loss = h.square().mean().backward()
        opt.plan()  # the first one takes memory for parameters and state, as a step does
        nodes = [t.uop for t in parameters]
        assert opt.plan().memory["CPU"].temporaries > 256 * 64 * 4
        assert [t.uop for t in parameters] == nodes
        check(opt.plan, opt.step)
        assert loss.item() > 0
        del loss, h


def test_planning_a_step_changes_nothing() -> None:
    results = []
    for planned in (False, True):
        w = Tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True).realize()
        row, opt = w[0], nn.optim.Adam([w], lr=0.5)
        for _ in range(3):
            opt.zero_grad()
            (w @ w + row).sum().backward()
            if planned:
                assert opt.plan().kernels > 0
                assert opt.plan(memory_budget="1MB").budget == 1_000_000
            opt.step()
        results.append((w.tolist(), row.tolist()))
    assert results[0] == results[1] and results[0][0][0] == results[0][1]


def test_captured() -> None:
    layers = [nn.Linear(256, 256, bias=False) for _ in range(3)]
    opt = nn.optim.SGD([layer.weight for layer in layers], lr=0.1)

    @TinyJit
    def step(x: Tensor) -> Tensor:
        opt.zero_grad()
        for layer in layers:
            x = layer(x).relu()
        loss = x.square().mean().backward()
        opt.step()
        return loss

    x = Tensor.rand(512, 256).realize()
    with pytest.raises(JitError, match="not captured"):
        step.plan()
    for _ in range(2):
        step(x)
    for _ in range(3):
        assert check(step.plan, lambda: step(x)).memory["CPU"].temporaries > 512 * 256 * 4


def test_a_captured_program_from_disk_has_times(tmp_path: object) -> None:
    x = Tensor.rand(64, 64).realize()

    def captured() -> Plan:
        @TinyJit
        def f(x: Tensor) -> Tensor:
            return (x @ x).exp().sum(0)

        for _ in range(3):
            f(x)
        return f.plan()

    with Context(CACHE_DIR=str(tmp_path), CHECK_IR=0):
        fresh = captured()
        realize._compiled.clear()
        again = captured()
    assert again.memory["CPU"].peak == fresh.memory["CPU"].peak and again.kernels == fresh.kernels
    assert again.seconds > 0 and again.traffic == fresh.traffic


def test_several_devices() -> None:
    x = Tensor.rand(8, 64).shard(("CPU", "CPU:1"), axis=0).realize()
    w = Tensor.rand(64, 64).shard(("CPU", "CPU:1")).realize()
    out = (x @ w).relu()
    plan = check(out.plan, out.realize)
    assert {d: m.inputs for d, m in plan.memory.items()} == dict.fromkeys(("CPU", "CPU:1"), 4 * (4 * 64 + 64 * 64))


def test_the_table_names_lines_and_fits_the_page() -> None:
    weights = [Tensor.rand(256, 256).realize() for _ in range(4)]
    x = Tensor.rand(1024, 256).realize()
    line = test_the_table_names_lines_and_fits_the_page.__code__.co_firstlineno
    for w in weights:
        x = (x @ w).gelu()
    plan = tinsmith.plan(*x.sum().gradient(*weights))
    text = str(plan)
    assert repr(plan) == text and all(len(row) <= 120 for row in text.splitlines())
    assert f"gelu (test_planning.py:{line + 5})" in text
    assert any(v.kind == "input" and v.origin == ("rand", __file__, line + 1) for v in plan.values)
    largest = plan.values[0]
    assert largest.nbytes == 1024 * 256 * 4 == max(v.nbytes for v in plan.values)
    assert any(v.kind == "temporary" and v.first <= plan.memory["CPU"].step <= v.last for v in plan.values
               if v.first is not None and v.last is not None)


def test_constants_and_values_that_were_read_have_their_line() -> None:
    x = Tensor([1.0, 2.0, 3.0]).realize() * 2
    assert x.tolist() == [2.0, 4.0, 6.0]
    for t, method in ((x, "mul"), (Tensor.ones(3), "ones")):
        (result,) = (v for v in t.plan().values if v.kind == "result")
        assert result.origin is not None and result.origin[0] == method


def test_running_out_of_memory_shows_the_plan() -> None:
    a = Tensor([1.0, 2.0]).realize()
    out = (a.reshape(2, 1).expand(2, 1 << 49) + 1).contiguous()
    plan = out.plan()
    assert plan.memory["CPU"].results == 1 << 52
    with pytest.raises(OutOfMemoryError, match="4503599627370496 bytes requested") as caught:
        out.realize()
    assert isinstance(caught.value.plan, Plan)
    assert str(plan) in str(caught.value) and "test_planning.py" in str(plan)

    @TinyJit
    def wide(a: Tensor) -> Tensor:
        return a.reshape(2, 1).expand(2, 1 << 20) + 1

    for _ in range(2):
        wide(a)
    with pytest.MonkeyPatch.context() as patch:
        def none_left(*_: object) -> None:
            raise OutOfMemoryError("CPU", "no bytes left")

        patch.setattr("tinsmith.backend.memory.FreeLists.alloc", none_left)
        with pytest.raises(OutOfMemoryError, match="no bytes left") as caught:
            wide(a)
    assert "made by" in str(caught.value) and "8.4 MB  result" in str(caught.value)


def test_wrong_arguments() -> None:
    with pytest.raises(DTypeError, match="argument 0 is int"):
        Tensor([1]).plan(3)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="is no tensor"):
        tinsmith.plan(None)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="no tensor"):
        tinsmith.plan()


def _norm_of_data() -> list[Tensor]:
    x = Tensor(np.ones((64, 48), np.float32))
    return [((x - x.mean(1, keepdim=True)) @ Tensor(np.ones((48, 32), np.float32))).softmax()]


def _attention() -> list[Tensor]:
    q, k, v = (Tensor.rand(2, 4, 32, 16).realize() for _ in range(3))
    return [Tensor.scaled_dot_product_attention(q, k, v)]


def _network_with_gradients() -> list[Tensor]:
    layers = [nn.Conv2d(1, 4, 3), Tensor.relu, nn.BatchNorm2d(4), Tensor.max_pool2d, lambda t: t.flatten(1),
              nn.Linear(36, 3)]
    parameters = nn.state.get_parameters(layers)
    Tensor.realize(*parameters)
    with Tensor.train():
        loss = Tensor(np.ones((2, 1, 8, 8), np.float32)).sequential(layers).square().mean()  # type: ignore[arg-type]
    return [loss, *loss.gradient(*(p for p in parameters if p.requires_grad is not False))]


@pytest.mark.parametrize("make", [
    lambda: [(Tensor([1, 2]) + 1).sum()], _norm_of_data, _attention, _network_with_gradients,
    lambda: [Tensor.rand(512, 512).realize().sort()[0]], lambda: [Tensor.rand(64, 300).realize().cumsum(1).var()],
])
def test_plan_and_explain_agree_on_memory(make: Callable[[], list[Tensor]]) -> None:
    tensors = make()
    plan, explained = tinsmith.plan(*tensors), tinsmith.explain(*tensors, run=False)
    memory = plan.memory["CPU"]
    assert memory.temporaries == explained.temporary_bytes
    assert memory.temporary_count == explained.temporary_count
    assert (memory.inputs, plan.kernels) == (explained.input_bytes, len(explained.kernels))
    assert plan.copies == len(explained.steps) - len(explained.kernels)
    assert memory.results == explained.output_bytes
