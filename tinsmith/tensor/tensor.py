"""The Tensor: state and data movement from ``base``, and one class of methods per family."""
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.core.errors import ArgumentError, UnknownNameError, shown
from tinsmith.core.names import guide, unknown
from tinsmith.tensor.absent import ABSENT
from tinsmith.tensor.arithmetic import Arithmetic
from tinsmith.tensor.autocast import Autocast
from tinsmith.tensor.backward import Backward
from tinsmith.tensor.base import TensorBase, check_tensors
from tinsmith.tensor.casting import Casting
from tinsmith.tensor.comparisons import Comparisons
from tinsmith.tensor.computing import Computing
from tinsmith.tensor.creation import Creation
from tinsmith.tensor.elementwise import Elementwise
from tinsmith.tensor.extents import Extents
from tinsmith.tensor.filling import Filling
from tinsmith.tensor.functional import Functional
from tinsmith.tensor.hashing import Hashing
from tinsmith.tensor.indexing import Indexing
from tinsmith.tensor.interop import Interop
from tinsmith.tensor.layout import Layout
from tinsmith.tensor.linalg import LinearAlgebra
from tinsmith.tensor.matmul import MatMul
from tinsmith.tensor.matrices import Matrices
from tinsmith.tensor.modes import WithModes
from tinsmith.tensor.movement import Movement
from tinsmith.tensor.nnops import NNOps
from tinsmith.tensor.older import Older
from tinsmith.tensor.operators import Operators
from tinsmith.tensor.picking import Picking
from tinsmith.tensor.placement import Placement
from tinsmith.tensor.products import Products
from tinsmith.tensor.random import Random
from tinsmith.tensor.realize import explain_tensors, tuned_kernel
from tinsmith.tensor.rearranging import Rearranging
from tinsmith.tensor.reduce import Reduce
from tinsmith.tensor.resampling import Resampling
from tinsmith.tensor.scans import Scans
from tinsmith.tensor.sharding import Sharding
from tinsmith.tensor.sorting import Sorting
from tinsmith.tensor.sources import Sources
from tinsmith.tensor.special import Special
from tinsmith.tensor.spectra import Spectra
from tinsmith.tensor.statistics import Statistics
from tinsmith.tensor.synonyms import InPlace
from tinsmith.tensor.triangles import Triangles

if TYPE_CHECKING:
    from tinsmith.inspect.explanation import Explanation
    from tinsmith.inspect.planning import Plan
    from tinsmith.inspect.tuned import Tuned


def _missing(owner: type, name: str) -> Exception:
    """The error for a name that tensors have not; of PyTorch's names, with what does their work."""
    if name in ABSENT:
        return UnknownNameError(owner.__name__, f"no attribute {name!r}", ABSENT[name])
    error: Exception = unknown(owner.__name__, name, dir(owner))
    return error


class _Named(WithModes):
    def __getattr__(cls, name: str) -> Any:
        raise _missing(cls, name)


class Tensor(Operators, Creation, Random, Filling, Elementwise, Arithmetic, Comparisons, Special, Reduce, Statistics,
             Scans, Sorting, Extents, Casting, Movement, Layout, Rearranging, Indexing, Picking, MatMul, Autocast,
             LinearAlgebra, Triangles, Matrices, Products, Spectra, NNOps, Functional, Resampling, Sharding, Hashing,
             Sources, Interop, InPlace, Older, Backward, Computing, Placement, TensorBase,
             metaclass=_Named):
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

    if not TYPE_CHECKING:  # type checkers would take every name for one of ours
        def __getattr__(self, name: str) -> Any:
            raise _missing(type(self), name)


guide(*Tensor.__mro__[:-1])


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
            raise ArgumentError("explain", f"{shown(t)} is no tensor",
                                "explain(*(p.grad for p in … if p.grad is not None))")
    return explain_tensors(tensors, run)


def plan(*tensors: Tensor, memory_budget: float | str | None = None) -> Plan:
    """What computing ``tensors`` in one program will take: time, traffic, memory; see ``Tensor.plan``.

    >>> a = Tensor([1.0, 2.0]).realize()
    >>> plan(a + 1, a * 2).kernels, str(plan(a))
    (1, 'nothing to compute: the values are in memory')

    Args:
        memory_budget: what the program may take on each device, such as ``"2GB"``.

    Raises:
        ArgumentError: for what is no tensor, such as the gradient of a parameter that has none.
    """
    for t in tensors:
        if not isinstance(t, TensorBase):
            raise ArgumentError("plan", f"{shown(t)} is no tensor",
                                "plan(*(p.grad for p in … if p.grad is not None)), or step.plan() of a captured step")
    if not tensors:
        raise ArgumentError("plan", "got no tensor", "plan(loss)")
    return tensors[0].plan(*tensors[1:], memory_budget=memory_budget)


def with_opts(tensor: Tensor, opts: Sequence[Opt] | None, kernel: int = -1, device: str | None = None) -> Tuned:
    """One kernel of the program that computes ``tensor``, under opts of your own; see docs/opts.md.

    >>> from tinsmith import Opt, OptOps
    >>> x = Tensor([[1.0, 2.0, 3.0, 4.0]] * 4)
    >>> t = with_opts(x.sum(1), [Opt(OptOps.UNROLL, 1, 4)])
    >>> t.before, t.axes, t.run().tolist()
    ((4 loop, 4 reduce), (4 loop, 4 unroll), [10.0, 10.0, 10.0, 10.0])

    Args:
        opts: applied in order, instead of the optimizer's choice; None shows that choice.
        kernel: which kernel of the program, in the order in which they run; -1 is the last.
        device: write the source for this device instead of the tensor's, such as ``"CUDA"`` or ``"METAL"``.

    Raises:
        ArgumentError: if an opt is not legal, with the reason; if there is no such kernel.
        DTypeError: for what is no tensor.
    """
    check_tensors("with_opts", [tensor])
    listed = [] if opts is None else opts
    if not isinstance(listed, (list, tuple)) or not all(
            isinstance(o, Opt) and isinstance(o.op, OptOps) for o in listed):
        raise ArgumentError("with_opts", f"takes a list of opts, got {shown(opts)}", "[Opt(OptOps.UPCAST, 0, 4)]")
    return tuned_kernel(tensor, opts, kernel, device)
