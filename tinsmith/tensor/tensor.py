"""The Tensor: state and data movement from ``base``, and one class of methods per family."""
from __future__ import annotations

from tinsmith.tensor.base import TensorBase
from tinsmith.tensor.creation import Creation
from tinsmith.tensor.elementwise import Elementwise
from tinsmith.tensor.indexing import Indexing
from tinsmith.tensor.matmul import MatMul
from tinsmith.tensor.movement import Movement
from tinsmith.tensor.nnops import NNOps
from tinsmith.tensor.operators import Operators
from tinsmith.tensor.random import Random
from tinsmith.tensor.reduce import Reduce


class Tensor(Operators, Creation, Random, Elementwise, Reduce, Movement, Indexing, MatMul, NNOps, TensorBase):
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
