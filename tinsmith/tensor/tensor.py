"""The Tensor: state and data movement from ``base``, and one class of methods per family."""
from __future__ import annotations

from tinsmith.core.errors import ArgumentError
from tinsmith.schedule.explanation import Explanation
from tinsmith.tensor.base import TensorBase
from tinsmith.tensor.creation import Creation
from tinsmith.tensor.elementwise import Elementwise
from tinsmith.tensor.indexing import Indexing
from tinsmith.tensor.matmul import MatMul
from tinsmith.tensor.movement import Movement
from tinsmith.tensor.nnops import NNOps
from tinsmith.tensor.operators import Operators
from tinsmith.tensor.random import Random
from tinsmith.tensor.realize import explain_tensors
from tinsmith.tensor.reduce import Reduce
from tinsmith.tensor.resampling import Resampling
from tinsmith.tensor.scans import Scans
from tinsmith.tensor.sharding import Sharding
from tinsmith.tensor.sorting import Sorting


class Tensor(Operators, Creation, Random, Elementwise, Reduce, Scans, Sorting, Movement, Indexing, MatMul, NNOps,
             Resampling, Sharding, TensorBase):
    """A lazy array: methods record a graph, and values are computed when they are asked for.

    >>> (Tensor([1, 2]) + 3).tolist()
    [4, 5]

    Args:
        data: a number, nested lists, a NumPy array, bytes, or another tensor.
        device: where its values live; the default device if None.
        dtype: type of its elements; taken from the data if None.
        requires_grad: False to leave it out of ``backward()``; True to have ``.grad`` filled even for a computed value.
    """

    __slots__ = ()
    __hash__ = TensorBase.__hash__


def explain(*tensors: Tensor, run: bool = True) -> Explanation:
    """What computing ``tensors`` in one program takes: kernels, opts, times, memory; see ``Tensor.explain``.

    >>> w = Tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    >>> loss = (Tensor([[1.0, 1.0]]) @ w).square().sum()
    >>> _ = loss.backward()
    >>> len(explain(loss, w.grad).kernels) >= 2, "backward" in str(explain(w.grad, run=False))
    (True, True)

    Args:
        run: measure the time of each kernel; False compiles only.

    Raises:
        ArgumentError: for what is no tensor, such as the gradient of a parameter that has none.
    """
    for t in tensors:
        if not isinstance(t, TensorBase):
            raise ArgumentError("explain", f"{t!r} is no tensor", "explain(*(p.grad for p in … if p.grad is not None))")
    return explain_tensors(tensors, run)
