"""Training utilities, captured: parameter groups, schedules, clipping, gradient accumulation, averages, loss scaling.

tests/parity/test_optim.py compares their values with PyTorch's.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tinsmith import Tensor, TinyJit, dtypes, nn
from tinsmith.core.errors import ArgumentError, DTypeError, GradientError, KeywordError
from tinsmith.nn import optim
from tinsmith.nn.optim import (
    EMA,
    SGD,
    Adagrad,
    Adam,
    AdamW,
    GradScaler,
    Muon,
    OptimizerGroup,
    clip_grad_norm_,
    clip_grad_value_,
)
from tinsmith.nn.optim.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9}, "Adam": {"amsgrad": True}, "AdamW": {}, "NAdam": {}, "RAdam": {},
    "Adagrad": {"lr_decay": 0.1}, "RMSprop": {"momentum": 0.9, "centered": True}, "LAMB": {}, "LARS": {}, "Muon": {}}


class Net:
    """A small network with its data and a loss."""

    def __init__(self) -> None:
        Tensor.manual_seed(1)
        self.layers: list[Any] = [nn.Linear(4, 8), Tensor.tanh, nn.Linear(8, 2)]
        rng = np.random.default_rng(0)
        self.x = Tensor(rng.standard_normal((16, 4)).astype(np.float32)).realize()
        self.y = Tensor(rng.standard_normal((16, 2)).astype(np.float32)).realize()
        self.params = nn.state.get_parameters(self.layers)

    def loss(self) -> Tensor:
        return (self.x.sequential(self.layers) - self.y).square().mean()

    def values(self) -> list[Any]:
        return [p.tolist() for p in self.params]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_with_groups_a_schedule_and_clipping_is_captured_once(name: str) -> None:
    ends = []
    for captured in (False, True):
        net = Net()
        opt = getattr(optim, name)([{"params": net.params[:2]}, {"params": net.params[2:], "lr": 0.01}], lr=0.02,
                                   **OPTIMIZERS[name])
        schedule = SequentialLR(opt, [LinearLR(opt, 0.1, total_iters=2), CosineAnnealingLR(opt, 6)], [2])

        def step(net: Net = net, opt: Any = opt, schedule: Any = schedule) -> Tensor:
            opt.zero_grad()
            loss = net.loss().backward()
            clip_grad_norm_(net.params, 0.5)
            opt.step()
            schedule.step()
            return loss

        call: Any = TinyJit(step) if captured else step
        for _ in range(5):
            call()
        ends.append((net.values(), schedule.get_last_lr()))
        if captured:
            assert call.replays == 3 and len(call.captures) == 1 and len(call.jit_cache) <= 2
    np.testing.assert_allclose(np.concatenate([np.ravel(v) for v in ends[0][0]]),
                               np.concatenate([np.ravel(v) for v in ends[1][0]]), rtol=2e-4, atol=1e-6)
    assert ends[0][1] == ends[1][1] == pytest.approx([0.01, 0.005])


def test_a_parameters_update_is_one_kernel() -> None:
    net = Net()
    opt = AdamW(net.params)
    net.loss().backward()
    first, *rest = opt.schedule_step()
    items = [str(item) for item in first.schedule(*rest)]
    updates = [item for item in items if "float(8, 4)" in item or "float(2, 8)" in item]
    joined = [item for item in items if item.startswith("CPU E_") and "3 kerne" in item
              and "1 float(1,), 2" not in item]  # not of the count
    assert len(joined) == 4, "weights and biases: m, v and the parameter together"
    assert len(updates) <= 4, updates


def test_master_weights_everywhere() -> None:
    for name in OPTIMIZERS:
        w = Tensor(np.eye(3, dtype=np.float32)).cast("bfloat16").realize()
        for wanted in (True, False):
            opt = getattr(optim, name)([w], 1e-4, master_weights=wanted)
            assert (opt.master_weights[0] is not None) is wanted
            opt.zero_grad()
            w.float().square().sum().backward()
            opt.step()
            assert w.dtype is dtypes.bfloat16


def test_groups() -> None:
    a, b = Tensor([1.0]), Tensor([2.0])
    opt = SGD([{"params": [a], "lr": 0.5}, {"params": [b], "momentum": 0.5}], 0.25, 0.9)
    assert isinstance(opt, OptimizerGroup) and [type(p) for p in opt.parts()] == [SGD, SGD]
    assert [dict(g)["momentum"] for g in opt.param_groups] == [0.9, 0.5]
    assert "lr=0.5" in repr(opt.param_groups[0])
    for group in opt.param_groups:
        group["lr"] *= 0.5
    assert [p.lr.item() for p in opt.parts()] == [0.25, 0.125]
    with pytest.raises(ArgumentError, match=r"no 'rate' to be set.*one of lr, momentum"):
        opt.param_groups[0]["rate"] = 1
    with pytest.raises(KeyError):
        opt.param_groups[0]["rate"]
    with pytest.raises(ArgumentError, match=r"group 1 has 1 tensors of groups before it"):
        SGD([{"params": [a]}, {"params": [b, a]}], 0.1)
    with pytest.raises(ArgumentError, match=r"group 1 is \{'lr': 1\} \(dict\)"):
        SGD([{"params": [a]}, {"lr": 1}], 0.1)
    with pytest.raises(KeywordError, match="did you mean momentum="):
        SGD([{"params": [a], "momentom": 1}], 0.1)


def test_an_optimizer_of_ones_own_has_groups_and_schedules() -> None:
    class Sign(optim.Optimizer):
        def _step(self, params: list[Tensor], grads: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
            return [self.lr * g.sign() for g in grads], []

    class Root(LRScheduler):
        def factor(self, t: Tensor) -> Tensor:
            return (t + 1).rsqrt()

    a, b = Tensor([1.0]), Tensor([2.0])
    opt = Sign([{"params": [a]}, {"params": [b], "lr": 0.25}], lr=0.5)
    schedule = Root(opt)
    for _ in range(4):
        opt.zero_grad()
        (a + b).sum().backward()
        opt.step()
        schedule.step()
    falls = sum(t**-0.5 for t in range(1, 5))
    np.testing.assert_allclose([a.item(), b.item()], [1 - 0.5 * falls, 2 - 0.25 * falls], rtol=1e-6)
    with pytest.raises(NotImplementedError, match="must implement factor"):
        LRScheduler(opt)


def test_a_schedule_outside_of_the_captured_step() -> None:
    w = Tensor([8.0])
    opt = SGD([w], lr=1.0)
    schedule = LambdaLR(opt, lambda t: 1.0 if t < 2 else math.pow(0.5, int(t)))

    @TinyJit
    def step() -> None:
        opt.zero_grad()
        w.sum().backward()
        opt.step()

    for _ in range(4):
        step()
        schedule.step()
    assert w.item() == 8 - 1 - 1 - 0.25 - 0.125 and step.replays == 2 and len(step.captures) == 1


def test_state_of_schedules_is_their_own() -> None:
    net = Net()
    opt = AdamW(net.params, 0.1)
    schedule = StepLR(opt, 2, 0.5)
    assert sorted(nn.state.get_state_dict(schedule)) == ["base_lrs.0", "count"]
    for _ in range(3):
        schedule.step()
    other = AdamW(Net().params, 0.7)
    resumed = StepLR(other, 2, 0.5)
    nn.state.load_state_dict(resumed, nn.state.get_state_dict(schedule))
    resumed.step()
    assert other.lr.item() == np.float32(0.025), "the saved first rate counts"


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_parameter_without_axes(name: str) -> None:
    w, v = Tensor(0.75), Tensor([0.75])
    for p in (w, v):
        opt = getattr(optim, name)([p], **OPTIMIZERS[name])
        p.sin().sum().backward()
        opt.step()
    assert w.shape == () and w.item() == v.item() != 0.75


def test_mistakes_with_schedules() -> None:
    opt = SGD([Tensor([1.0])], 0.1)
    plateau = ReduceLROnPlateau(opt)
    with pytest.raises(ArgumentError, match="no value of the metric"):
        plateau.step()
    wrong: list[tuple[Callable[[], Any], str]] = [
        (lambda: SequentialLR(opt, [StepLR(opt, 1)], [3]), r"milestones \[3\] for 1 schedulers"),
        (lambda: SequentialLR(opt, [StepLR(opt, 1), plateau], [3]), "ReduceLROnPlateau among"),
        (lambda: OneCycleLR(opt, 0.1), "how many steps"), (lambda: StepLR(opt, 0), "step_size is 0"),
        (lambda: OneCycleLR(Adagrad([Tensor([1.0])]), 0.1, 9), "no momentum.*cycle_momentum=False"),
        (lambda: LambdaLR(opt, [abs, abs]), "2 functions for 1 groups")]
    for make, message in wrong:
        with pytest.raises(ArgumentError, match=message):
            make()
    with pytest.raises(DTypeError, match=r"the optimizer is 0.1 \(float\)"):
        StepLR(0.1, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize("power", [1.0, 2.0, 3.0, math.inf])
def test_clipping_by_norm(power: float) -> None:
    net = Net()
    (net.loss() * 100).backward()
    before = [p.grad.numpy() for p in net.params if p.grad is not None]
    norm = np.linalg.norm(np.concatenate([g.ravel() for g in before]).astype(np.float64), power)
    found = clip_grad_norm_(net.params, 0.5, power)
    assert found.item() == pytest.approx(norm, rel=1e-5)
    for p, g in zip(net.params, before):
        assert p.grad is not None
        np.testing.assert_allclose(p.grad.numpy(), g * (0.5 / (norm + 1e-6)), rtol=1e-5)
    assert clip_grad_norm_(net.params, 100.0, power).item() == pytest.approx(0.5, rel=1e-5), "small ones stay"
    assert net.params[0].grad is not None
    np.testing.assert_allclose(net.params[0].grad.numpy(), before[0] * (0.5 / (norm + 1e-6)), rtol=1e-5)


def test_clipping_of_what_is_not_finite_or_not_there() -> None:
    w, v = Tensor([1.0, 2.0]), Tensor([1.0])
    assert clip_grad_norm_([w, v], 1.0).item() == 0
    (w * Tensor([math.inf, 1.0])).sum().backward()
    with pytest.raises(GradientError, match="the norm of 1 gradients is inf"):
        clip_grad_norm_([w, v], 1.0, error_if_nonfinite=True)
    clip_grad_value_(w, 3.0)
    assert w.grad is not None and w.grad.tolist() == [3.0, 1.0] and v.grad is None
    assert nn.utils.clip_grad_norm_ is clip_grad_norm_
    with pytest.raises(KeywordError, match="did you mean max_norm="):
        clip_grad_norm_(w, max_nrm=1.0)  # type: ignore[call-arg]


def test_accumulated_gradients_are_those_of_the_whole_batch() -> None:
    ends = []
    for parts in (1, 4):
        net = Net()
        opt = Adam(net.params, 0.01)

        @TinyJit
        def step(net: Net = net, opt: Any = opt, parts: int = parts) -> None:
            opt.zero_grad()
            for x, y in zip(net.x.chunk(parts), net.y.chunk(parts)):
                ((x.sequential(net.layers) - y).square().mean() / parts).backward()
            opt.step()

        for _ in range(4):
            step()
        assert step.replays == 2
        ends.append(np.concatenate([np.ravel(v) for v in net.values()]))
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-4, atol=1e-6)


def test_an_average_of_parameters() -> None:
    net = Net()
    net.params[0].replace(net.params[0].cast("bfloat16"))
    statistics = Tensor([1.0], requires_grad=False)
    opt, ema = SGD(net.params, 0.1), EMA([net.layers, statistics], 0.75)
    assert len(ema.params) == 4 and ema.averages[0].dtype is dtypes.float32
    expected = [p.numpy().astype(np.float32) for p in net.params]

    @TinyJit
    def step() -> None:
        opt.zero_grad()
        net.loss().backward()
        opt.step()
        ema.update()

    for _ in range(5):
        step()
        expected = [0.75 * e + 0.25 * p.numpy().astype(np.float32) for e, p in zip(expected, net.params)]
    for average, e in zip(ema.averages, expected):
        np.testing.assert_allclose(average.numpy(), e, rtol=1e-5, atol=1e-7)
    before, judge = net.values(), TinyJit(net.loss)
    usual = [judge().item() for _ in range(3)][-1]
    with ema.applied():
        assert net.params[1].tolist() == ema.averages[1].tolist() and net.params[0].dtype is dtypes.bfloat16
        inside = [judge().item() for _ in range(3)]
    assert net.values() == before and inside[0] == inside[2] != usual and judge().item() == usual
    step()
    assert step.replays == 4 and net.values() != before
    with pytest.raises(ArgumentError, match="no tensor to average"):
        EMA([statistics])


@pytest.mark.parametrize("captured", [False, True])
def test_loss_scaling_skips_steps_that_overflow(captured: bool) -> None:
    w = Tensor([1.0, 2.0], dtype="float16").realize()
    opt, scaler = Adam([w], 0.125), GradScaler(2.0**16, growth_interval=2)

    def step(x: Tensor) -> Tensor:
        opt.zero_grad()
        loss = (w * x).sum()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        return loss

    call = TinyJit(step) if captured else step
    scales, first = [], []
    for value in (1.0, 1.0, 1.0, 1.0, math.nan, 1e-7):
        call(Tensor([value, 0.5], dtype="float16").realize())
        scales.append(scaler.get_scale())
        first.append(w.tolist()[0])
    assert scales == [2.0**15, 2.0**15, 2.0**16, 2.0**15, 2.0**14, 2.0**14]
    assert first[0] == 1.0 and first[3] == first[2] == first[4] and all(map(math.isfinite, w.tolist()))
    assert first[1] == 0.875 and first[5] < first[4]
    reference = Adam([v := Tensor([1.0, 2.0])], 0.125)
    for value in (1.0, 1.0, np.float16(1e-7)):
        reference.zero_grad()
        (v * Tensor([value, 0.5], dtype="float32")).sum().backward()
        reference.step()
    np.testing.assert_allclose(w.numpy(), v.numpy(), rtol=2e-3, err_msg="as if the overflows had not been")
    if isinstance(call, TinyJit):
        assert call.replays == 4 and len(call.captures) == 1


def test_mistakes_with_loss_scaling() -> None:
    net, scaler = Net(), GradScaler(4.0)
    opt = SGD(net.params, 0.1)
    with pytest.raises(ArgumentError, match="no step since the last update"):
        scaler.update()
    losses = scaler.scale([net.loss(), net.loss()])
    (losses[0] + losses[1]).backward()
    scaler.unscale_(opt)
    with pytest.raises(ArgumentError, match="unscaled since the last update"):
        scaler.unscale_(opt)
    assert net.params[0].grad is not None
    unscaled = net.params[0].grad.numpy()
    opt.zero_grad()
    (net.loss() * 2).backward()
    np.testing.assert_allclose(unscaled, net.params[0].grad.numpy(), rtol=1e-5)
    off = GradScaler(enabled=False)
    assert off.scale(t := net.loss()) is t and off.get_scale() == 1
    off.unscale_(opt)
    off.step(opt)
    off.update()


def test_muon_for_matrices_and_adamw_for_the_rest() -> None:
    net = Net()
    matrices = [p for p in net.params if p.ndim == 2]
    opt = OptimizerGroup(Muon(matrices, 0.05), AdamW([p for p in net.params if p.ndim != 2], 0.05))
    losses = []
    for _ in range(12):
        opt.zero_grad()
        losses.append(net.loss().backward().item())
        opt.step()
    assert losses[-1] < 0.8 * losses[0]


def test_a_counter_beside_a_captured_step_is_no_reason_to_capture_again() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.net, self.done = Net(), 0
            self.opt, self.scaler = AdamW(self.net.params, 0.01), GradScaler(8.0)
            self.schedule = StepLR(self.opt, 2, 0.5)
            self.step = TinyJit(self.forward_and_back)

        def forward_and_back(self) -> None:
            self.opt.zero_grad()
            self.scaler.scale(self.net.loss()).backward()
            self.scaler.step(self.opt)
            self.scaler.update()
            self.schedule.step()

    trainer = Trainer()
    for trainer.done in range(6):
        trainer.step()
        trainer.schedule.step()
    assert trainer.step.replays == 4 and len(trainer.step.captures) == 1
    assert trainer.schedule.get_last_lr() == pytest.approx([0.01 * 0.5**6])
