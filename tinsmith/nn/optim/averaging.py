"""Exponential moving average of parameters."""
from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import ArgumentError
from tinsmith.nn.state import called, get_parameters, note_name
from tinsmith.tensor.arguments import number
from tinsmith.tensor.realize import realize_tensors
from tinsmith.tensor.tensor import Tensor


class EMA:
    """The exponential moving average of a model's parameters: ``a = decay * a + (1 - decay) * p`` at each ``update()``.

    It starts at the current parameters. Buffers such as running statistics (``requires_grad=False``) are not averaged.

    >>> from tinsmith import nn
    >>> layer = nn.Linear(1, 1, bias=False)
    >>> _ = layer.weight.assign(Tensor([[1.]]))
    >>> ema = EMA(layer, decay=0.75)
    >>> _ = layer.weight.assign(Tensor([[5.]]))
    >>> ema.update()
    >>> with ema.applied():
    ...     layer.weight.item()
    2.0
    >>> layer.weight.item()
    5.0

    Args:
        model: object that holds the parameters, or a list of them.
    """

    def __init__(self, model: Any, decay: float = 0.999) -> None:
        self.decay = number("EMA", "decay", decay, 0, 1)
        self.params = [p for p in get_parameters(model) if p.requires_grad is not False and p.dtype.is_float]
        if not self.params:
            raise ArgumentError("EMA", "no tensor to average", "a model, or a list of its parameters")
        self.averages = []
        for p in self.params:
            wide = p.detach().clone().cast(dtypes.float32 if p.dtype.itemsize < 4 else p.dtype)
            wide.requires_grad = False
            note_name(wide, called(p))
            self.averages.append(wide)
        realize_tensors([*self.params, *self.averages])

    def update(self) -> None:
        """Update the averages with the current parameters, in one program."""
        with Tensor.no_grad():
            for p, average in zip(self.params, self.averages):
                average.assign(average + (p.detach().cast(average.dtype) - average) * (1 - self.decay))
        realize_tensors(self.averages)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Replace the parameters by their averages inside the ``with`` block."""
        before = [p._copy() for p in self.params]
        for p, average in zip(self.params, self.averages):
            p.replace(average.detach().cast(p.dtype))
        realize_tensors(self.params)
        try:
            yield
        finally:
            for p, old in zip(self.params, before):
                p.replace(old)
