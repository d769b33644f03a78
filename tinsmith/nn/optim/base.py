"""The base of all optimizers: parameters, learning rate, step; and parameter groups."""
from __future__ import annotations

import inspect
import math
import weakref
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from tinsmith.backend.device import Device
from tinsmith.backend.memory import Buffer
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.errors import ArgumentError, DTypeError, GradientError
from tinsmith.core.origin import OPTIMIZER
from tinsmith.ir import Ops, UOp
from tinsmith.ir.uop import toposort
from tinsmith.nn.state import called, note_name
from tinsmith.tensor.arguments import flag, shown
from tinsmith.tensor.base import TensorBase
from tinsmith.tensor.execution import Execution
from tinsmith.tensor.helpers import attribute, held_tensors
from tinsmith.tensor.modes import check_modes
from tinsmith.tensor.realize import plan_tensors, realize_tensors
from tinsmith.tensor.tensor import Tensor

if TYPE_CHECKING:
    from tinsmith.inspect.explanation import Plan

Params: TypeAlias = Sequence[Tensor] | Sequence[Mapping[str, Any]]
_with_memory: Final[weakref.WeakSet[Optimizer]] = weakref.WeakSet()  # no attribute, which a capture would go by
_FIXED: Final = ("params", "master_weights")  # of a group: the optimizer's state is of their shapes


class Optimizer:
    """The base of optimizers; a subclass implements ``_step``.

    Args:
        params: tensors to optimize. Those with ``requires_grad=False`` (running statistics) are only realized. Or
            groups with options, ``[{"params": […], "lr": 0.1}, …]``: one optimizer per group is made, and their
            ``OptimizerGroup`` is returned.
        lr: learning rate, a tensor of one number; ``opt.lr = 0.01`` writes it.
        master_weights: keep a float32 copy of each 16-bit parameter, which would round small steps to 0.
        maximize: gradient ascent.

    >>> class SignDescent(Optimizer):
    ...     def _step(self, params, grads):
    ...         return [self.lr * g.sign() for g in grads], []
    >>> w = Tensor([1., -2.])
    >>> opt = SignDescent([w], lr=0.5)
    >>> _ = (w * w).sum().backward()
    >>> opt.step()
    >>> w.tolist()
    [0.5, -1.5]

    Raises:
        ArgumentError: if there are no parameters.
    """

    initial_lr: float  # learning rate before any scheduler; set by the first scheduler

    def __new__(cls, params: Any = (), *args: Any, **options: Any) -> Any:
        if isinstance(params, (list, tuple)) and any(isinstance(p, Mapping) for p in params):
            return OptimizerGroup(*_of_groups(cls, params, args, options))
        return super().__new__(cls)

    def __init__(self, params: Params, lr: float, master_weights: bool = True, *, maximize: bool = False) -> None:
        rate = self._rate(lr)
        unique = {id(p): p for p in self._checked(params)}
        for p in unique.values():
            if p.requires_grad is None and p.dtype.is_float:
                p.requires_grad = True
        self.params = [p for p in unique.values() if p.requires_grad]
        self.buffers = [p for p in unique.values() if not p.requires_grad]
        if not self.params:
            raise ArgumentError(type(self).__name__, "no tensor to optimize", "float tensors with gradients")
        self.device = self.params[0].device
        _separate([*self.params, *self.buffers])
        for p in [*self.params, *self.buffers]:
            _fill(p)
        vars(self)["lr"] = Tensor(np.array([rate], np.float32), device=self.device, requires_grad=False)
        self.maximize = flag(type(self).__name__, "maximize", maximize)
        wanted = flag(type(self).__name__, "master_weights", master_weights)
        self.master_weights = [_master(p) if wanted and _is_narrow(p.dtype) else None for p in self.params]

    def __repr__(self) -> str:
        shown = []
        for number, group in enumerate(self.param_groups):
            options = {name: value for name, value in group.items() if name not in _FIXED}
            lines = [f"    {name}: {_shortest(value)}" for name, value in sorted(options.items())]
            shown.append(f"Parameter Group {number}\n" + "\n".join(lines) + "\n")
        name = type(self.parts()[0]).__name__
        return f"{name} (\n" + "\n".join(shown) + ")"

    @property
    def lr(self) -> Tensor:
        """The learning rate: a one-element tensor, which captured steps read, too."""
        found: Tensor = attribute(self, "lr")
        return found

    @lr.setter
    def lr(self, rate: Any) -> None:
        for optimizer in self.parts():
            value = rate.detach().reshape(1) if isinstance(rate, TensorBase) else [self._rate(rate)]
            optimizer.lr.assign(Tensor(value, device=optimizer.device, dtype=dtypes.float32, requires_grad=False))

    @property
    def kernel_label(self) -> str:
        """The label of the kernels of a step, in place of the path of a layer.

        >>> from tinsmith.nn.optim import SGD
        >>> SGD([Tensor([1.])]).kernel_label
        'optimizer step SGD'
        """
        return f"{OPTIMIZER}{type(self.parts()[0]).__name__}"

    def parts(self) -> list[Optimizer]:
        """Return the optimizers that have a learning rate: this one, or the optimizers of its groups."""
        return [self]

    @property
    def param_groups(self) -> list[ParamGroup]:
        """The options of each group, as mutable mappings by name.

        >>> from tinsmith.nn.optim import SGD
        >>> opt = SGD([{"params": [Tensor([1.])]}, {"params": [Tensor([2.])], "lr": 0.5}], lr=0.25)
        >>> for group in opt.param_groups:
        ...     group["lr"] *= 0.5
        >>> [group["lr"].item() for group in opt.param_groups]
        [0.125, 0.25]
        """
        return [ParamGroup(part) for part in self.parts()]

    def _rate(self, lr: Any) -> float:
        if not isinstance(lr, (int, float, np.generic, TensorBase)):
            raise DTypeError(type(self).__name__, f"a learning rate is a number, not {shown(lr)} ({type(lr).__name__})",
                             "lr=0.001")
        rate = float(lr)
        if not rate >= 0:
            raise ArgumentError(type(self).__name__, f"lr={rate}", "a learning rate of at least 0")
        return rate

    def _checked(self, params: Any) -> list[Tensor]:
        """Return the parameters as a list; reject a single tensor, which would iterate over its rows."""
        if isinstance(params, TensorBase) or not isinstance(params, Iterable):
            raise DTypeError(type(self).__name__, f"takes a list of tensors, got one {type(params).__name__}",
                             "[tensor], or nn.state.get_parameters(model)")
        found = list(params)
        stray = next((p for p in found if not isinstance(p, TensorBase)), None)
        if stray is not None:
            raise DTypeError(type(self).__name__, f"takes tensors, got {shown(stray)} ({type(stray).__name__})",
                             "nn.state.get_parameters(model)")
        return found

    def _step(self, params: list[Tensor], grads: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Return (update to subtract from each parameter, assigned state tensors). For a parameter with a float32 copy,
        ``params`` has the copy, and its gradient is float32."""
        raise NotImplementedError(f"{type(self).__name__} must implement _step(params, grads)")

    def state_like(self, shape: tuple[int, ...] | None = None, dtype: DType | None = None) -> list[Tensor]:
        """Return a zero tensor for every parameter, in parts where the parameter is and of its shape; float32 where
        the parameter is a 16-bit float. The first step computes them."""
        out = []
        for p in self.params:
            kind = dtype or (dtypes.float32 if _is_narrow(p.dtype) else p.dtype)
            zeros = np.zeros(p.shape if shape is None else shape, kind.numpy)
            made = Tensor(zeros, requires_grad=False)
            out.append(made.shard_like(p) if zeros.shape == p.shape else made.to(p.device))
            note_name(out[-1], called(p))
        return out

    def _scalar(self, value: float, shape: tuple[int, ...] = (1,)) -> Tensor:
        """Return a tensor of one number, as state."""
        return Tensor(np.full(shape, value, np.float32), device=self.device, requires_grad=False)

    def _take_memory(self) -> None:
        """Compute parameters and state, before the first step: making an optimizer runs no program."""
        if self in _with_memory:
            return
        _with_memory.add(self)
        statistics = {id(b) for b in self.buffers}  # what the loss has written to them is part of the step's program
        realize_tensors([t for t in held_tensors(self) if id(t) not in statistics])
        seen: set[Any] = set()
        for t in [*self.params, *(m for m in self.master_weights if m is not None)]:
            if t.uop in seen:  # equal constants are one node: here they become tensors of their own
                t.replace(Tensor(t._array()).shard_like(t)).realize()
            seen.add(t.uop)

    def momentum_in_memory(self) -> Tensor:
        """Convert ``momentum`` or ``b1`` to a one-element tensor, which captured steps read, and return it.

        >>> from tinsmith.nn.optim import SGD
        >>> opt = SGD([Tensor([1.])], momentum=0.5)
        >>> opt.momentum_in_memory().item(), opt.momentum.item()
        (0.5, 0.5)

        Raises:
            ArgumentError: if the optimizer has neither.
        """
        name = next((n for n in ("b1", "momentum") if hasattr(self, n)), None)
        if name is None:
            raise ArgumentError(type(self).__name__, "has no momentum to be changed", "cycle_momentum=False")
        found = getattr(self, name)
        if not isinstance(found, TensorBase):
            found = self._scalar(found, ())
            setattr(self, name, found)
            if not getattr(self, "b", True):  # without momentum there was nothing to sum up in
                self.b = self.state_like()
        out: Tensor = found
        return out

    def zero_grad(self) -> None:
        """Clear the gradients of the parameters, and of leaves with an unset ``requires_grad``."""
        for p in self.params:
            p.grad = None
        Execution.forget_gradients()

    def schedule_step(self, skip: Tensor | None = None) -> list[Tensor]:
        """Assign the values of the next step lazily; return the tensors that must be realized for it, in one program.

        Args:
            skip: one bool; where it holds, parameters and state stay as they are.
        """
        self._take_memory()
        before = [] if skip is None else [(t, t._copy()) for t in held_tensors(self)]
        grads = [p.grad for p in self.params]
        missing = [p for p, g in zip(self.params, grads) if g is None]
        if missing:
            which = ", ".join(f"{called(p) or 'one'} of shape {p.shape}" for p in missing[:4])
            raise GradientError(f"{type(self).__name__}.step",
                                f"{len(missing)} of {len(grads)} parameters have no gradient ({which})",
                                "loss.backward() before step(), inside the function if TinyJit captures it; and leave "
                                "unused parameters out")
        masters = self.master_weights
        with Tensor.no_grad():
            current = [p if m is None else _current(p, m) for p, m in zip(self.params, masters)]
            given = [g.detach() if m is None else g.detach().cast(m.dtype)
                     for g, m in zip(grads, masters) if g is not None]
            given = [-g for g in given] if self.maximize else given
            updates, extra = self._step(current, given)
            for p, master, now, update in zip(self.params, masters, current, updates):
                value = (now.detach() - update.reshape(now.shape)).cast(now.dtype)  # of a scalar: lr has an axis
                if master is not None:
                    master.assign(value)
                p.assign(value.cast(p.dtype))
            for t, old in before:
                if t.uop is not old.uop and skip is not None:
                    t.assign(skip.to(t.device).where(old, t._copy()))
        extra = [*extra, *(m for m in masters if m is not None)]
        return [*extra, *self.params, *self.buffers, self.lr]

    def plan(self, skip: Tensor | None = None, memory_budget: float | str | None = None) -> Plan:
        """Return the plan of ``step``: time, traffic and memory of the program for parameters, state and losses.

        Nothing is run or changed, once parameters and state have memory; docs/plan.md explains an example.

        >>> from tinsmith.nn.optim import SGD
        >>> w = Tensor([[1., 2.], [3., 4.]])
        >>> opt = SGD([w], lr=0.5)
        >>> _ = (w @ w).sum().backward()
        >>> found = opt.plan()
        >>> found.kernels > 0, found.memory["CPU"].inputs, w.tolist()
        (True, 20, [[1.0, 2.0], [3.0, 4.0]])

        Args:
            memory_budget: limit of the program's memory per device, such as ``"2GB"``; ``step`` uses the setting
                ``MEMORY_BUDGET``.
        """
        self._take_memory()
        held = [(t, t.uop, t._shared, None if t._shared is None else t._shared.storage.value)
                for t in held_tensors(self)]
        try:
            losses = [t for r in TensorBase._losses if (t := r()) is not None]
            return plan_tensors([*losses, *self.schedule_step(skip)], memory_budget)
        finally:
            for t, uop, shared, value in held:
                t.uop, t._shared = uop, shared
                if shared is not None and value is not None:
                    shared.storage.become(value)

    def step(self, skip: Tensor | None = None) -> None:
        """Do one step: compute parameters, state, running statistics and the losses of the gradients in one program.

        Args:
            skip: one bool; where it holds, parameters and state stay as they are.
        """
        check_modes(f"{type(self).__name__}.step", Tensor.training, self.params)
        realize_tensors([*Execution.take_losses(), *self.schedule_step(skip)])


# What ``Optimizer(…)`` takes is what its ``__init__`` takes; ``help`` and editors ask ``__new__`` first.
Optimizer.__new__.__dict__["__wrapped__"] = Optimizer.__init__


def _is_narrow(dtype: DType) -> bool:
    return dtype.is_float and dtype.itemsize <= 2


def _separate(params: Sequence[Tensor]) -> None:
    """Give each parameter a separate node, because equal constants, and copies of a layer, are one node until they are
    realized."""
    seen: set[Any] = set()
    for p in params:
        if p.uop in seen:
            p.replace(p.detach().clone())
        seen.add(p.uop)


def _fill(t: Tensor) -> None:
    """Store a constant tensor in a separate buffer, filled by the host: no program runs.

    The first step then runs the same program as later steps. Equal constants are one node of the graph; with buffers
    they are separate tensors.
    """
    base = t.uop.base
    moved = {n.op for n in toposort(t.uop) if n is not base}
    if base.op is not Ops.CONST or not moved <= {Ops.RESHAPE, Ops.EXPAND} or t._shared is not None:
        return
    device = t.device
    if isinstance(device, tuple) or Device[device].persistent or not all(isinstance(n, int) and n for n in t.shape):
        return
    buffer = Buffer(Device.canonicalize(device), math.prod(t.shape), t.dtype)
    buffer.copyin(np.full(buffer.size, base.arg, t.dtype.numpy).view(np.uint8).data)
    t.replace(t._new(UOp(Ops.BUFFER, t.dtype, (), buffer).reshape(t.shape)))


def _master(p: Tensor) -> Tensor:
    """Return the float32 copy of a parameter, in parts where the parameter is."""
    found = p.detach().cast(dtypes.float32)
    found.requires_grad = False
    note_name(found, called(p))
    return found


def _current(p: Tensor, master: Tensor) -> Tensor:
    """Return the parameter in float32: the master copy where it still rounds to the parameter, else the parameter."""
    return p.detach().eq(master.cast(p.dtype)).where(master, p.detach().cast(master.dtype))


def _of_groups(kind: type[Optimizer], groups: Sequence[Any], args: Sequence[Any],
               options: Mapping[str, Any]) -> list[Optimizer]:
    """Return one optimizer per group; the group's options override the common ones."""
    names = list(inspect.signature(kind.__init__).parameters)[2:]
    common = {**dict(zip(names, args)), **options}
    taken: set[int] = set()
    out = []
    for n, group in enumerate(groups):
        if not isinstance(group, Mapping) or "params" not in group:
            raise ArgumentError(kind.__name__, f"group {n} is {shown(group)}", '{"params": [tensor, …], "lr": 0.01}')
        out.append(kind(group["params"], **{**common, **{k: v for k, v in group.items() if k != "params"}}))
        mine = {id(p) for p in out[-1].params}
        if taken & mine:
            raise ArgumentError(kind.__name__, f"group {n} has {len(taken & mine)} tensors of groups before it",
                                "each tensor in one group")
        taken |= mine
    return out


def _shortest(value: Any) -> Any:
    """Return an option as text for ``repr``: a float32 tensor of one number with the fewest digits that identify it."""
    return str(value.numpy().reshape(-1)[0]) if isinstance(value, TensorBase) and value.shape == (1,) else value


class ParamGroup(MutableMapping[str, Any]):
    """The options of an optimizer by name, as in PyTorch; writing an option writes it to the optimizer."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer

    def __iter__(self) -> Iterator[str]:
        names = inspect.signature(type(self.optimizer).__init__).parameters
        return (name for name in names if name != "self" and hasattr(self.optimizer, name))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __getitem__(self, name: str) -> Any:
        if name not in list(self):
            raise KeyError(name)
        return getattr(self.optimizer, name)

    def __setitem__(self, name: str, value: Any) -> None:
        names = [n for n in self if n not in _FIXED]
        if name not in names:
            raise ArgumentError(type(self.optimizer).__name__, f"its groups have no {name!r} to be set",
                                f"one of {', '.join(names)}")
        setattr(self.optimizer, name, value)

    def __delitem__(self, name: str) -> None:
        raise ArgumentError(type(self.optimizer).__name__, f"{name!r} cannot be taken away", "another value")

    def __repr__(self) -> str:
        values = ((k, f"{v.item():g}" if isinstance(v, TensorBase) else v) for k, v in self.items() if k not in _FIXED)
        options = ", ".join(f"{k}={v}" for k, v in values)
        return f"{type(self.optimizer).__name__}({len(self.optimizer.params)} tensors, {options})"


class OptimizerGroup(Optimizer):
    """Several optimizers that step together, in one program. Parameter groups are implemented by it.

    >>> from tinsmith.nn.optim import SGD
    >>> a, b = Tensor([1.]), Tensor([2.])
    >>> opt = OptimizerGroup(SGD([a], lr=0.5), SGD([b], lr=0.25))
    >>> _ = (a * b).sum().backward()
    >>> opt.step()
    >>> a.tolist(), b.tolist()
    ([0.0], [1.75])
    """

    def __init__(self, *optimizers: Optimizer) -> None:
        self.optimizers = optimizers
        self.params = [p for o in optimizers for p in o.params]
        self.buffers = [b for o in optimizers for b in o.buffers]
        self.device, vars(self)["lr"] = optimizers[0].device, optimizers[0].lr

    def parts(self) -> list[Optimizer]:
        """Return the parts of all its optimizers."""
        return [part for o in self.optimizers for part in o.parts()]

    def __getitem__(self, number: int) -> Optimizer:
        return self.optimizers[number]

    def _take_memory(self) -> None:
        for o in self.optimizers:
            o._take_memory()

    def schedule_step(self, skip: Tensor | None = None) -> list[Tensor]:
        """Assign the next step of all optimizers lazily; return the tensors to realize."""
        return [t for o in self.optimizers for t in o.schedule_step(skip)]
