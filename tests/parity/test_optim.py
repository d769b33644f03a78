"""Optimizers against PyTorch: parameters after several steps, with groups that have their own options."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.parity.helpers import random, torch
from tinsmith import Tensor, TinyJit
from tinsmith.nn import optim

STEPS = 8

# PyTorch's names of options that differ only in spelling.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("SGD", {"lr": 0.1}),
    "sgd momentum": ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}),
    "sgd nesterov": ("SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True, "maximize": True}),
    "sgd dampening": ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1}),
    "adam": ("Adam", {"lr": 0.1}),
    "adam decoupled": ("Adam", {"lr": 0.1, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    "adam decay": ("Adam", {"lr": 0.1, "betas": (0.8, 0.99), "eps": 1e-3, "weight_decay": 0.1}),
    "adam amsgrad": ("Adam", {"lr": 0.1, "betas": (0.5, 0.9), "amsgrad": True, "maximize": True}),
    "adamw": ("AdamW", {"lr": 0.1, "weight_decay": 0.1}),
    "adamw amsgrad": ("AdamW", {"lr": 0.1, "betas": (0.5, 0.9), "amsgrad": True}),
    "nadam": ("NAdam", {"lr": 0.1}),
    "nadam decay": ("NAdam", {"lr": 0.1, "weight_decay": 0.1, "momentum_decay": 0.1, "betas": (0.7, 0.9)}),
    "nadam decoupled": ("NAdam", {"lr": 0.1, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    "radam": ("RAdam", {"lr": 0.1}),
    "radam short": ("RAdam", {"lr": 0.1, "betas": (0.9, 0.8), "weight_decay": 0.1}),
    "radam decoupled": ("RAdam", {"lr": 0.1, "weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True}),
    "adagrad": ("Adagrad", {"lr": 0.1}),
    "adagrad decay": ("Adagrad", {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.5}),
    "rmsprop": ("RMSprop", {"lr": 0.01}),
    "rmsprop momentum": ("RMSprop", {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.1, "alpha": 0.9}),
    "rmsprop centered": ("RMSprop", {"lr": 0.01, "centered": True, "momentum": 0.5, "maximize": True}),
    "muon": ("Muon", {"lr": 0.1}),
}


@pytest.mark.parametrize(("case", "grouped"), [*((case, True) for case in CASES), ("adamw", False), ("muon", False)])
def test_the_same_values_after_several_steps(case: str, grouped: bool) -> None:
    name, options = CASES[case]
    starts = [random(4, 3), random(3, 5, seed=1)]
    scale = [abs(random(4, 3, seed=2)), abs(random(3, 5, seed=3))]
    ours, theirs = [Tensor(a) for a in starts], [torch.tensor(a, requires_grad=True) for a in starts]

    def groups(params: list[Any]) -> list[Any]:
        changed = {"lr": 0.03, "weight_decay": 0.2}
        return [{"params": params[:1]}, {"params": params[1:], **changed}] if grouped else params

    mine = getattr(optim, name)(groups(ours), **options)
    other = getattr(torch.optim, name)(groups(theirs), **options)
    for step in range(STEPS):
        mine.zero_grad()
        other.zero_grad()
        sum((p.sin() * Tensor(s)).sum() for p, s in zip(ours, scale)).backward()  # type: ignore[union-attr]
        sum((p.sin() * torch.tensor(s)).sum() for p, s in zip(theirs, scale)).backward()
        if step == STEPS // 2:
            for opt in (mine, other):
                for group in opt.param_groups:
                    group["lr"] *= 0.5
        mine.step()
        other.step()
    close = {"rtol": 3e-2, "atol": 3e-2} if name == "Muon" else {"rtol": 2e-5, "atol": 2e-6}  # PyTorch's is in bfloat16
    for m, o in zip(ours, theirs):
        np.testing.assert_allclose(m.numpy(), o.detach().numpy(), **close)


def test_the_rectified_steps_of_long_runs() -> None:
    """RAdam's rectification at late steps, where PyTorch subtracts two large numbers in float64."""
    w = Tensor([1.0])
    mine = optim.RAdam([w], lr=0.0)
    for t in (1, 5, 6, 100, 400, 600, 3000, 20000):
        mine.count.assign(Tensor([float(t)]))
        exact = 1999 - 2 * t * 0.999**t / (1 - 0.999**t)
        np.testing.assert_allclose(mine._length().item(), exact, rtol=2e-6)


def chained(module: Any, opt: Any) -> Any:
    parts = [module.LinearLR(opt, 0.1, total_iters=4), module.CosineAnnealingLR(opt, 8, 0.01),
             module.LambdaLR(opt, lambda t: 0.5 if t < 3 else 0.25)]
    return module.SequentialLR(opt, parts, [4, 12])


SCHEDULES: dict[str, Any] = {
    "lambda": lambda m, o: m.LambdaLR(o, [lambda t: 0.9**t, lambda t: 1 / (t + 1)]),
    "step": lambda m, o: m.StepLR(o, 7, 0.3), "multi-step": lambda m, o: m.MultiStepLR(o, [2, 5, 11], 0.5),
    "constant": lambda m, o: m.ConstantLR(o, 0.2, 4), "linear": lambda m, o: m.LinearLR(o, 0.1, 0.7, 6),
    "exponential": lambda m, o: m.ExponentialLR(o, 0.9), "polynomial": lambda m, o: m.PolynomialLR(o, 9, 1.5),
    "cosine": lambda m, o: m.CosineAnnealingLR(o, 20, 0.002),
    "restarts": lambda m, o: m.CosineAnnealingWarmRestarts(o, 5, 1, 0.01),
    "longer restarts": lambda m, o: m.CosineAnnealingWarmRestarts(o, 3, 2),
    "one cycle": lambda m, o: m.OneCycleLR(o, [0.5, 0.2], 21, cycle_momentum=False),
    "one cycle of lines": lambda m, o: m.OneCycleLR(o, 0.5, epochs=3, steps_per_epoch=7, anneal_strategy="linear",
                                                    cycle_momentum=False, pct_start=0.4),
    "three phases": lambda m, o: m.OneCycleLR(o, 0.5, 21, three_phase=True, cycle_momentum=False),
    "sequence": chained,
}


@pytest.mark.parametrize("case", SCHEDULES)
def test_schedules(case: str) -> None:
    """Learning rates of two groups over 20 steps."""
    rates = []
    for module, new in ((optim, Tensor), (torch.optim, torch.tensor)):
        groups = [{"params": [new([1.0])]}, {"params": [new([2.0])], "lr": 0.3}]
        opt: Any = module.SGD(groups, lr=0.1)  # type: ignore[attr-defined]
        schedule = SCHEDULES[case](module.lr_scheduler, opt)  # type: ignore[attr-defined]
        found = [[float(g["lr"]) for g in opt.param_groups]]
        for _ in range(20):
            if module is torch.optim:
                opt.step()
            schedule.step()
            found.append([float(g["lr"]) for g in opt.param_groups])
        assert schedule.get_last_lr() == found[-1]
        rates.append(found)
    np.testing.assert_allclose(rates[0], rates[1], rtol=1e-5, atol=2e-8)


@pytest.mark.parametrize(("name", "given"), [("SGD", {"momentum": 0.9}), ("RMSprop", {}), ("AdamW", {}), ("NAdam", {})],
                         ids=str)
def test_momentum_goes_against_the_rate(name: str, given: dict[str, Any]) -> None:
    """OneCycleLR with PyTorch's defaults: momentum moves opposite to the rate; two groups, one a scalar; in a captured
    step."""
    starts, scale = [random(4, 3), np.float32(0.7)], [abs(random(4, 3, seed=2)), np.float32(0.5)]
    found = []
    for module, new in ((optim, Tensor), (torch.optim, torch.tensor)):
        params = [new(a) for a in starts]
        for p in params:
            p.requires_grad = True
        weights = [new(s) for s in scale]
        opt = getattr(module, name)([{"params": params[:1]}, {"params": params[1:]}], lr=0.1, **given)
        schedule = module.lr_scheduler.OneCycleLR(  # type: ignore[attr-defined]
            opt, 0.05, 12, base_momentum=0.6, max_momentum=[0.9, 0.8], three_phase=name == "SGD")

        def step(opt: Any = opt, schedule: Any = schedule, params: Any = params, weights: Any = weights) -> Any:
            opt.zero_grad()
            loss = sum((p.sin() * w).sum() for p, w in zip(params, weights))
            loss.backward()
            opt.step()
            schedule.step()
            return loss

        run = TinyJit(step) if module is optim else step
        values = [run().item() for _ in range(11)]
        if module is optim:
            assert len(run.captures) == 1  # type: ignore[attr-defined]
        found.append([*values, *(v for p in params for v in p.detach().numpy().reshape(-1).tolist())])
    np.testing.assert_allclose(found[0], found[1], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("options", [{}, {"mode": "max", "threshold_mode": "abs", "threshold": 0.05, "cooldown": 2},
                                     {"min_lr": 0.01, "threshold": 0.1, "factor": 0.2}], ids=str)
def test_plateau(options: dict[str, Any]) -> None:
    values = [3.0, 2.5, 2.6, 2.45, 2.45, 2.44, 2.44, 2.44, 2.2, *[2.5] * 7, 3.0, 3.2, 3.0, 2.9, 2.9]
    ours, theirs = optim.SGD([Tensor([1.0])], lr=0.1), torch.optim.SGD([torch.tensor([1.0])], lr=0.1)
    options = {"patience": 1, "factor": 0.5, **options}
    mine = optim.lr_scheduler.ReduceLROnPlateau(ours, **options)
    other = torch.optim.lr_scheduler.ReduceLROnPlateau(theirs, **options)
    for n, value in enumerate(values):
        mine.step(Tensor([value]) if n % 2 else value)
        other.step(value)
        assert ours.lr.item() == pytest.approx(theirs.param_groups[0]["lr"], rel=1e-5), n


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adagrad", "RMSprop"])
def test_parameters_without_axes(name: str) -> None:
    """A 0-d parameter stays 0-d, although the learning rate is 1-d."""
    ours, theirs = Tensor(np.float32(1.5)), torch.nn.Parameter(torch.tensor(1.5))
    mine, other = getattr(optim, name)([ours], lr=0.1), getattr(torch.optim, name)([theirs], lr=0.1)
    for n in range(3):
        ours.grad, theirs.grad = Tensor(np.float32(0.5 + n)), torch.tensor(0.5 + n)
        mine.step()
        other.step()
    assert ours.shape == () and ours.item() == pytest.approx(theirs.item(), rel=1e-5)
