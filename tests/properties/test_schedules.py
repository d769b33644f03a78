"""Schedules of random programs: every item occurs once, after its producers, and gives the values of the graph.

Programs are expressions with reductions over the same rows, their gradients and gradients of gradients: these share
the most. Nothing is compiled: an item's value is what the interpreter makes of its graph.
"""
from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from tests.properties.runner import FEW
from tinsmith.core.settings import Context
from tinsmith.ir import Ops, UOp
from tinsmith.ir.interpret.tensor import evaluate
from tinsmith.ir.uop import toposort
from tinsmith.runtime.lowering import planned
from tinsmith.schedule.canonical import canonical
from tinsmith.schedule.memory.memory_plan import plan_memory
from tinsmith.schedule.schedule_item import Schedule
from tinsmith.tensor.realize import _below_views, _concrete
from tinsmith.tensor.tensor import Tensor

Array = np.ndarray[Any, Any]
SHAPES = ((3, 4), (3, 4), (3, 4), (4, 4), (32, 48), (128, 64), (256, 96))
LARGEST = 1 << 20  # products of a contraction
ELEMENTWISE = ("mish", "tanh", "sigmoid", "relu", "neg", "square", "gelu")
ROWS = ("layernorm", "softmax", "centred", "total", "largest", "running")


class Program:
    """The program of a seed, built line by line; ``lines`` is its text."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.values = np.random.default_rng(seed)
        self.shape = self.random.choice(SHAPES)
        self.lines: list[str] = []
        self.names: dict[str, Tensor] = {}
        self.leaves: list[str] = []
        self.devices = self.random.choice((("CPU",),) * 6 + (("CPU", "PYTHON"),))
        for _ in range(self.random.choice((1, 1, 2, 3))):
            self.leaves.append(self.given())
        for _ in range(self.random.randint(2, 9)):
            self.step()
        self.finish()
        self.roots = self.choose_roots()

    def __str__(self) -> str:
        return "\n".join([*self.lines, f"# computed together: {', '.join(self.roots)}"])

    def let(self, text: str, value: Tensor) -> str:
        name = f"t{len(self.names)}"
        self.names[name] = value
        self.lines.append(f"{name} = {text}  # {value.shape}")
        return name

    def given(self) -> str:
        values = self.values.standard_normal(self.shape)
        return self.let(f"Tensor(default_rng().standard_normal({self.shape}))", Tensor(values).realize())

    def pick(self, shape: tuple[int, ...] | None = None) -> str:
        found = [n for n, t in self.names.items() if t.shape == (shape or self.shape)]
        return self.random.choice(found[-4:] if self.random.random() < 0.5 else found)

    def step(self) -> None:
        contractions = ("matmul", "attention") if self.shape[0] ** 2 * self.shape[1] <= LARGEST else ()
        getattr(self, self.random.choice(("elementwise", "elementwise", "binary", "ratio", "ratio", "rows", "rows",
                                          "rows", "kept", "moved", "sent", *contractions)))()

    def elementwise(self) -> None:
        a, method = self.pick(), self.random.choice(ELEMENTWISE)
        self.let(f"{a}.{method}()", getattr(self.names[a], method)())

    def binary(self) -> None:
        a, b, op = self.pick(), self.pick(), self.random.choice(("add", "mul", "sub"))
        if self.names[a].device == self.names[b].device:
            self.let(f"{a}.{op}({b})", getattr(self.names[a], op)(self.names[b]))

    def ratio(self) -> None:
        a, b = self.pick(), self.pick()
        if self.names[a].device == self.names[b].device:
            self.let(f"{a} / ({b} * {b} + 1)", self.names[a] / (self.names[b] * self.names[b] + 1))

    def rows(self) -> None:
        a, kind, axis = self.pick(), self.random.choice(ROWS), self.random.randint(0, 1)
        x = self.names[a]
        text, value = {
            "layernorm": (f"{a}.layernorm()", lambda: x.layernorm()),
            "softmax": (f"{a}.softmax({axis})", lambda: x.softmax(axis)),
            "centred": (f"{a} - {a}.mean({axis}, keepdim=True)", lambda: x - x.mean(axis, keepdim=True)),
            "total": (f"{a} * {a}.sum({axis}, keepdim=True)", lambda: x * x.sum(axis, keepdim=True)),
            "largest": (f"{a} - {a}.max({axis}, keepdim=True)", lambda: x - x.max(axis, keepdim=True)),
            "running": (f"{a}.cumsum({axis})", lambda: x.cumsum(axis)),
        }[kind]
        self.let(text, value())

    def kept(self) -> None:
        a = self.pick()
        self.let(f"{a}.contiguous()", self.names[a].contiguous())

    def moved(self) -> None:
        a, axis = self.pick(), self.random.randint(0, 1)
        self.let(f"{a}.flip({axis})", self.names[a].flip(axis))

    def matmul(self) -> None:
        a, b, c = self.pick(), self.pick(), self.pick()
        x, y, z = self.names[a], self.names[b], self.names[c]
        if x.device == y.device == z.device:
            self.let(f"({a} @ {b}.T / {self.shape[1]}) @ {c}", (x @ y.T / self.shape[1]) @ z)

    def attention(self) -> None:
        a, b, c = self.pick(), self.pick(), self.pick()
        x, y, z = self.names[a], self.names[b], self.names[c]
        if x.device == y.device == z.device:
            self.let(f"({a} @ {b}.T / {self.shape[1]}).softmax(1) @ {c}", (x @ y.T / self.shape[1]).softmax(1) @ z)

    def sent(self) -> None:
        if len(self.devices) > 1:
            a, device = self.pick(), self.random.choice(self.devices)
            self.let(f"{a}.to({device!r})", self.names[a].to(device))

    def finish(self) -> None:
        """Append a loss, often its gradient and further derivatives, and choose the values computed in one program."""
        for order in range(self.random.choice((0, 1, 2, 2, 2, 2, 3))):
            a, b, c = list(self.names)[-1], self.pick(), self.given()
            x, y, z = self.names[a], self.names[b], self.names[c]
            if x.device != z.device:
                return
            value, text = (x * z).sum(), f"({a} * {c}).sum()"
            if not order and x.device == y.device:
                d = self.given()
                value, text = value + (y * self.names[d]).sum(), f"{text} + ({b} * {d}).sum()"
            loss = self.let(text, value)
            below = set(toposort(value.uop))
            inputs = [n for n in self.leaves if self.names[n].uop in below][: self.random.randint(1, 3)]
            found = value.gradient(*(self.names[n] for n in inputs)) if inputs else []
            for k, g in reversed(list(enumerate(found))):
                self.let(f"{loss}.gradient({', '.join(inputs)})[{k}]", g)

    def choose_roots(self) -> list[str]:
        computed = [n for n in self.names if n not in self.leaves] or list(self.names)
        more = self.random.choices(computed, k=self.random.choice((0, 0, 0, 1, 3)))
        return list(dict.fromkeys([computed[-1], *more]))


def interpreted(schedule: Schedule, inputs: dict[int, Array]) -> list[Array]:
    """Return the results of a schedule whose items the interpreter runs in sequence."""
    slots = {schedule.inputs[n]: values for n, values in inputs.items()}
    for item in schedule.items:
        if item.sink is None:
            slots[item.written[0]] = slots[item.read[0]]
            continue
        params = {n: slots[item.slots[n.arg[0]]] for n in toposort(item.sink) if n.op is Ops.PARAM}
        slots.update(zip(item.written, evaluate(item.sink.src, params)))
    return [slots[s] for s in schedule.outputs]


def check_order(schedule: Schedule) -> None:
    """Check that every slot is written once, before all of its readers, and that every temporary has memory."""
    inputs = {s.number for s in schedule.slots if s.input}
    writer = {s: n for n, item in enumerate(schedule.items) for s in item.written}
    assert sum(len(item.written) for item in schedule.items) == len(writer) and inputs.isdisjoint(writer)
    for n, item in enumerate(schedule.items):
        assert all(s in inputs or writer[s] < n for s in item.read), f"item {n} reads what is not written yet"
    assert all(s.number in writer or s.input for s in schedule.slots if s.output), "a result is lost"
    used = {s for item in schedule.items for s in item.slots}
    assert set(plan_memory(schedule).offsets) == {s.number for s in schedule.slots if s.number in used
                                                  and not (s.input or s.output)}


def roots_of(program: Program) -> tuple[list[UOp], str]:
    tensors = [program.names[n] for n in program.roots]
    return list(dict.fromkeys(_concrete(_below_views(t.uop)) for t in tensors)), str(tensors[0].device)


def check(seed: int) -> None:
    program = Program(seed)
    roots, device = roots_of(program)
    graph, buffers, _ = canonical(roots)
    try:
        schedule, _ = planned(graph, device)
        check_order(schedule)
        inputs = {n: b.arg.numpy() for n, b in enumerate(buffers)}
        wanted = evaluate(graph, {n: inputs[n.arg.number] for n in toposort(graph) if n.op is Ops.BUFFER})
        for root, found, want in zip(graph, interpreted(schedule, inputs), wanted):
            scale = np.abs(want[np.isfinite(want)]).max(initial=1e-3)
            near = np.isclose(found.reshape(want.shape), want, rtol=1e-6, atol=1e-7 * scale, equal_nan=True)
            assert near.all(), f"a result of shape {root.shape} is {found}, not {want}"
        with Context(NOOPT=1):
            check_order(planned(graph, device)[0])
    except BaseException as error:
        error.add_note(str(program))
        raise


@pytest.mark.parametrize("seed", range(FEW))
def test_schedules(seed: int) -> None:
    check(seed)
