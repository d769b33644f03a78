"""The Tensor: state and data movement from ``base``, and one class of methods per family."""
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.core.errors import ArgumentError, UnknownNameError, shown
from tinsmith.core.suggestions import guide, unknown
from tinsmith.tensor.autocast import Autocast
from tinsmith.tensor.autograd.backward import Backward
from tinsmith.tensor.base import TensorBase, check_tensors
from tinsmith.tensor.create.creation import Creation, Filling
from tinsmith.tensor.create.random import Random
from tinsmith.tensor.fft import Spectra
from tinsmith.tensor.indexing.indexing import Indexing
from tinsmith.tensor.indexing.positions import Picking
from tinsmith.tensor.interop.files import Hashing
from tinsmith.tensor.interop.protocols import Interop, Sources
from tinsmith.tensor.linalg.orthogonal import LinearAlgebra, Matrices
from tinsmith.tensor.linalg.triangular import Triangles
from tinsmith.tensor.math.casting import Casting
from tinsmith.tensor.math.comparisons import Comparisons
from tinsmith.tensor.math.elementwise import ArithmeticMethods, ElementwiseMethods, OperatorMethods
from tinsmith.tensor.math.products import MatMul, Products
from tinsmith.tensor.math.special import Special
from tinsmith.tensor.modes import WithModes
from tinsmith.tensor.names import ABSENT, InPlace, Older
from tinsmith.tensor.nnops.functional import Functional, NNOps
from tinsmith.tensor.nnops.resampling import Resampling
from tinsmith.tensor.placement import Placement, Sharding
from tinsmith.tensor.realize import explain_tensors, tuned_kernel
from tinsmith.tensor.realize_methods import Computing
from tinsmith.tensor.reduce.reduce import Reduce, Scans
from tinsmith.tensor.reduce.statistics import Sorting, Statistics
from tinsmith.tensor.shape.layout import LayoutMethods, Rearranging
from tinsmith.tensor.shape.movement import Movement
from tinsmith.tensor.sizes import Extents

if TYPE_CHECKING:
    from tinsmith.inspect.explanation import Explanation, Plan
    from tinsmith.inspect.search.database import Tuned


def _missing(owner: type, name: str) -> Exception:
    """Return the error for an unknown attribute; for a PyTorch name it suggests the replacement."""
    if name in ABSENT:
        return UnknownNameError(owner.__name__, f"no attribute {name!r}", ABSENT[name])
    error: Exception = unknown(owner.__name__, name, dir(owner))
    return error


class _Named(WithModes):
    def __getattr__(cls, name: str) -> Any:
        raise _missing(cls, name)


class Tensor(OperatorMethods, Creation, Random, Filling, ElementwiseMethods, ArithmeticMethods, Comparisons, Special,
             Reduce, Statistics,
             Scans, Sorting, Extents, Casting, Movement, LayoutMethods, Rearranging, Indexing, Picking, MatMul,
             Autocast,
             LinearAlgebra, Triangles, Matrices, Products, Spectra, NNOps, Functional, Resampling, Sharding, Hashing,
             Sources, Interop, InPlace, Older, Backward, Computing, Placement, TensorBase,
             metaclass=_Named):
    """A lazy array: methods record a graph, and values are computed when they are needed.

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
    """Report kernels, opts, times and memory of computing ``tensors`` in one program; see ``Tensor.explain``.

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
    """Predict time, traffic and memory of computing ``tensors`` in one program; see ``Tensor.plan``.

    >>> a = Tensor([1.0, 2.0]).realize()
    >>> plan(a + 1, a * 2).kernels, str(plan(a))
    (1, 'nothing to compute: all values are in memory')

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
    >>> t.schedule[-1].opts == tuple(t.opts), t.source_c.splitlines()[0]
    (True, 'void r_4_4(float* data0, const float* data1) {')

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
