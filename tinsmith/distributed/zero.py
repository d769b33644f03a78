"""ZeRO 1 and 2: each process keeps the optimizer's state, and the reduced gradients, of a part of the parameters."""
from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tinsmith.core.errors import GradientError
from tinsmith.distributed.collectives import gathered, scattered
from tinsmith.distributed.data_parallel import flat, unflat
from tinsmith.distributed.groups import group_of
from tinsmith.nn.optim import Optimizer
from tinsmith.tensor.realize import realize_tensors
from tinsmith.tensor.tensor import Tensor


class ZeroOptimizer:
    """An optimizer whose state is divided among processes; ``step`` reduces the gradients itself.

    The parameters of one dtype are one line of elements, of which each process steps its part, so the update of an
    element must depend on no other element: SGD, Adam and AdamW will do, LAMB and Muon not.

    >>> from tinsmith import nn
    >>> w = Tensor([1.0, 2.0])
    >>> optimizer = ZeroOptimizer([w], lambda parts: nn.optim.SGD(parts, lr=0.25))
    >>> _ = (w * w).sum().backward(); optimizer.step(); w.tolist()
    [0.5, 1.0]

    Args:
        params: whole parameters, the same in all processes.
        make: makes the optimizer of a list of tensors.
        axis: an axis of the mesh; all processes unless given.

    Attributes:
        inner: the optimizer of this process's parts.
    """

    def __init__(self, params: Iterable[Tensor], make: Callable[[list[Tensor]], Optimizer], axis: str | None = None
                 ) -> None:
        self.group = group_of("dist.ZeroOptimizer", axis)
        given = [p for p in {id(p): p for p in params}.values() if p.requires_grad is not False and p.dtype.is_float]
        self.lines = [[p for p in given if p.dtype is d] for d in dict.fromkeys(p.dtype for p in given)]
        for p in given:
            p.requires_grad = True
        self.own = [self._rows(flat(line))[self.group.rank].clone().realize() for line in self.lines]
        self.inner = make(self.own)
        self.params = given

    def _rows(self, values: Tensor) -> Tensor:
        """Return a line of elements as a row per process."""
        each = -(-values.numel() // self.group.size)
        return values.pad((0, each * self.group.size - values.numel())).reshape(self.group.size, each)

    @property
    def lr(self) -> Tensor:
        """The learning rate, as of ``Optimizer``."""
        return self.inner.lr

    @lr.setter
    def lr(self, rate: Any) -> None:
        self.inner.lr = rate

    def zero_grad(self) -> None:
        """Clear the gradients of the parameters."""
        for p in self.params:
            p.grad = None
        Tensor.forget_gradients()

    def step(self) -> None:
        """Reduce the gradients to their mean, step this process's parts, and gather the parameters.

        Raises:
            GradientError: if a parameter has no gradient.
        """
        missing = [p for p in self.params if p.grad is None]
        if missing:
            raise GradientError("ZeroOptimizer.step",
                                f"{len(missing)} of {len(self.params)} parameters have no gradient",
                                "loss.backward() before step()")
        with Tensor.no_grad():
            rows = [self._rows(flat([p.grad for p in line if p.grad is not None])) for line in self.lines]
            realize_tensors([*Tensor.take_losses(), *rows])
            for own, values in zip(self.own, rows):
                own.grad = (scattered(values, "mean", self.group) if self.group.size > 1 else values[0]).realize()
            for p in self.params:
                p.grad = None
            self.inner.step()
            for line, own in zip(self.lines, self.own):
                every = (gathered(own, self.group) if self.group.size > 1 else own).reshape(-1).realize()
                for p, value in zip(line, unflat(every, line)):
                    p.assign(value)
            realize_tensors(self.params)
