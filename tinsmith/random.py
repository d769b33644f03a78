"""Random numbers: the seed, the state of the stream, and draws.

There is one stream of random numbers per process. Number ``k`` of draw ``c`` is a hash (Threefry) of the seed, ``c``
and ``k``: the values do not depend on device, fusion, sharding or the order of computation. ``docs/numerics.md`` and
``Tensor.rand`` say more. A captured function (``TinyJit``) draws new numbers in each call, as without capture.

>>> from tinsmith import random
>>> random.manual_seed(1)
>>> a = random.rand(3).tolist()
>>> random.manual_seed(1)
>>> a == random.rand(3).tolist()
True
"""
from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Any

from tinsmith.backend.device import DeviceName
from tinsmith.core.dtypes import DTypeLike
from tinsmith.core.errors import ArgumentError, shown
from tinsmith.core.suggestions import guide
from tinsmith.tensor.create import random as stream
from tinsmith.tensor.tensor import Tensor

__all__ = ["bernoulli", "fork_rng", "get_rng_state", "initial_seed", "manual_seed", "multinomial", "normal", "rand",
           "randint", "randn", "randperm", "seed", "set_rng_state", "uniform"]


def manual_seed(seed: int = 0) -> None:
    """Restart the stream from ``seed``.

    >>> manual_seed(0); initial_seed()
    0
    """
    Tensor.manual_seed(seed)


def seed() -> int:
    """Restart the stream from a seed made of the time; return it.

    >>> seed() == initial_seed()
    True
    """
    fresh = time.time_ns() & ((1 << 62) - 1)
    Tensor.manual_seed(fresh)
    return fresh


def initial_seed() -> int:
    """Return the seed that the stream was restarted from last.

    >>> manual_seed(7); initial_seed()
    7
    """
    return stream.state()[0]


def get_rng_state() -> tuple[int, int]:
    """Return the state of the stream: the seed, and the number of the next draw.

    >>> manual_seed(7); _ = rand(2); get_rng_state()
    (7, 1)
    """
    return stream.state()


def set_rng_state(new_state: tuple[int, int]) -> None:
    """Continue the stream from a state that ``get_rng_state`` returned.

    >>> state = get_rng_state(); a = rand(2).tolist(); set_rng_state(state); a == rand(2).tolist()
    True

    Raises:
        ArgumentError: if it is no such state.
    """
    pair = tuple(new_state) if isinstance(new_state, (tuple, list)) else ()
    if len(pair) != 2 or not all(type(n) is int and n >= 0 for n in pair):
        raise ArgumentError("set_rng_state", f"{shown(new_state)} is no state", "what get_rng_state() returned")
    stream.move_to((pair[0], pair[1]))


@contextlib.contextmanager
def fork_rng() -> Iterator[None]:
    """Return a context manager that puts the state of the stream back at the end of its block.

    >>> state = get_rng_state()
    >>> with fork_rng():
    ...     manual_seed(3)
    >>> get_rng_state() == state
    True
    """
    before = stream.state()
    try:
        yield
    finally:
        stream.move_to(before)


def rand(*shape: Any, dtype: DTypeLike | None = None, device: DeviceName | None = None,
         requires_grad: bool | None = None) -> Tensor:
    """Return uniform random numbers in [0, 1).

    >>> rand(2, 3).shape
    (2, 3)
    """
    return Tensor.rand(*shape, dtype=dtype, device=device, requires_grad=requires_grad)


def randn(*shape: Any, dtype: DTypeLike | None = None, device: DeviceName | None = None,
          requires_grad: bool | None = None) -> Tensor:
    """Return normal random numbers with mean 0 and variance 1.

    >>> randn(2, 3).shape
    (2, 3)
    """
    return Tensor.randn(*shape, dtype=dtype, device=device, requires_grad=requires_grad)


def uniform(*shape: Any, low: float = 0.0, high: float = 1.0, dtype: DTypeLike | None = None, device: DeviceName |
            None = None,             requires_grad: bool | None = None) -> Tensor:
    """Return uniform random numbers in [``low``, ``high``).

    >>> uniform(100, low=2.0, high=3.0).min().item() >= 2
    True
    """
    return Tensor.uniform(*shape, low=low, high=high, dtype=dtype, device=device, requires_grad=requires_grad)


def normal(*shape: Any, mean: float = 0.0, std: float = 1.0, dtype: DTypeLike | None = None, device: DeviceName | None
           = None,            requires_grad: bool | None = None) -> Tensor:
    """Return normal random numbers.

    >>> normal(2, 3, mean=1.0, std=0.5).shape
    (2, 3)
    """
    return Tensor.normal(*shape, mean=mean, std=std, dtype=dtype, device=device, requires_grad=requires_grad)


def randint(*shape: Any, low: int = 0, high: int = 10, dtype: DTypeLike | None = None, device: DeviceName | None = None,
            requires_grad: bool | None = None) -> Tensor:
    """Return random integers from ``low`` to ``high - 1``.

    >>> bool((randint(100, low=2, high=4) < 4).all().item())
    True
    """
    return Tensor.randint(*shape, low=low, high=high, dtype=dtype, device=device, requires_grad=requires_grad)


def randperm(n: int, *, dtype: DTypeLike | None = None, device: DeviceName | None = None) -> Tensor:
    """Return a random order of the integers from 0 to ``n - 1``.

    >>> sorted(randperm(4).tolist())
    [0, 1, 2, 3]
    """
    return Tensor.randperm(n, dtype=dtype, device=device)


def bernoulli(input: Tensor) -> Tensor:
    """Return ones with the probabilities ``input``, else zeros.

    >>> bernoulli(Tensor([0.0, 1.0])).tolist()
    [0.0, 1.0]
    """
    return input.bernoulli()


def multinomial(input: Tensor, num_samples: int, replacement: bool = False) -> Tensor:
    """Return indices drawn with probabilities proportional to ``input``.

    >>> multinomial(Tensor([0.0, 1.0]), 1).tolist()
    [1]
    """
    return input.multinomial(num_samples, replacement)


guide(sys.modules[__name__])
