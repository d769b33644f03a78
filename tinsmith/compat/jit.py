"""tinygrad's capture API: ``TinyJit`` with its additional arguments, and ``function``."""
from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from tinsmith.core.errors import ArgumentError
from tinsmith.jit import TinyJit as _TinyJit

R = TypeVar("R")


class TinyJit(_TinyJit[R]):
    """Tinsmith's ``TinyJit``; ``prune`` has no effect, since a replay runs only what its results depend on.

    >>> from tinsmith import Tensor
    >>> step = TinyJit(lambda x: x + 1, prune=True)
    >>> [step(Tensor([i])).tolist() for i in range(3)], step.captured is step
    ([[1], [2], [3]], True)

    A counter that the function raises, or a list that it appends to, sees two calls, as there: replays run no Python.
    """

    changes_state = True

    def __new__(cls, fxn: Callable[..., R] | None = None, **kwargs: Any) -> Any:
        return functools.partial(cls, **kwargs) if fxn is None else super().__new__(cls)

    def __init__(self, fxn: Callable[..., R], prune: bool = False, **kwargs: Any) -> None:
        super().__init__(fxn, **kwargs)
        self.prune = prune

    @property
    def captured(self) -> TinyJit[R] | None:
        """The capture that the next call of its kind replays, with its ``jit_cache``; None before there is one."""
        return self if self._last is not None else None


def function(fxn: Callable[..., R] | None = None, *, precompile: bool = False, precompile_backward: bool = False,
             allow_implicit: bool = False, grad_fxn: Callable[..., Any] | None = None) -> Any:
    """The function itself: its graph becomes part of its caller's, and equal parts of graphs are compiled once anyway.

    >>> @function
    ... def double(x): return x * 2
    >>> double(3)
    6

    Raises:
        ArgumentError: for a gradient of one's own.
    """
    if grad_fxn is not None:
        raise ArgumentError("function", "a gradient of one's own (grad_fxn) is a class here",
                            "a subclass of tinsmith.tensor.autograd.custom_gradient.Function with forward and backward")
    return functools.partial(function, precompile=precompile) if fxn is None else fxn
