"""Promotion of changing constants: a constant that takes several values becomes an argument of the program.

Programs that differ only in the values of constants have one *form*. A constant is compiled into its program, where it
can be folded, until the same form arrives with a third value for it: from then on it is a buffer of one element, as if
it had been a tensor, and every further value reuses that program. Results are bit-identical: an operation on constants
only is folded at compile time, not computed on the device, so its constants are never promoted.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tinsmith.backend.device import Device
from tinsmith.backend.memory import Buffer
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.object_lifetime import Recent
from tinsmith.ir import Ops, UOp
from tinsmith.ir.uop import toposort
from tinsmith.schedule.multi.sharding import is_group

_AS_IT_IS = (Ops.CONTIGUOUS, Ops.COPY, Ops.DETACH)  # ops that return the values of their source
SEVERAL = 3  # number of different values after which a constant is promoted


@dataclass
class ConstantHistory:
    """The observations of one form: the values seen of each constant (None: promoted), and
    the constants that are arguments."""

    values: list[set[Any] | None]
    arguments: set[int] = field(default_factory=set)


forms: Recent[Any, ConstantHistory] = Recent()


def arguments(structure: Sequence[Any], roots: Sequence[UOp], device: str, settled: Any) -> Mapping[UOp, UOp]:
    """Return the constants of a graph that are arguments of its program, each with a buffer that holds its value.

    Args:
        structure: the structure of the graph of ``roots``, as returned by ``canonical.structure``.
        device: the device of the program.
        settled: the rest of the program's cache key.
    """
    constants, key = _form(structure)
    form = forms.get((key, settled))
    if form is None:
        form = forms[key, settled] = ConstantHistory([set() for _ in constants])
    several = set()
    for n, (c, values) in enumerate(zip(constants, form.values)):
        if values is not None:
            values.add(_text(c))
            if len(values) >= SEVERAL:
                form.values[n] = None
                several.add(n)
    if several:
        fit = fitting(roots, device)
        form.arguments |= {n for n in several if constants[n] in fit}
    return {constants[n]: _argument(constants[n], device) for n in sorted(form.arguments)}


def _form(structure: Sequence[Any]) -> tuple[list[UOp], tuple[Any, ...]]:
    """Return the constants of a graph that may become arguments, and its structure with these constants replaced by
    numbers."""
    numbers: dict[UOp, int] = {}

    def slot(x: Any) -> Any:
        if type(x) is UOp and x.op is Ops.CONST and is_value(x.dtype):
            return "scalar", x.dtype, numbers.setdefault(x, len(numbers))
        return x

    form = tuple([tuple([slot(x) for x in row]) if type(row) is tuple else slot(row) for row in structure])
    return list(numbers), form


def is_value(dtype: DType) -> bool:
    """Return True if tensors can have elements of this dtype, each with its own bytes in memory."""
    return dtype is not dtypes.index and not dtype.is_bool and dtype.numpy.itemsize == dtype.itemsize


def _text(constant: UOp) -> Any:
    """Return a constant's value as text, so that 0.0 and -0.0 differ."""
    return constant.arg.hex() if type(constant.arg) is float else constant.arg


def fitting(roots: Sequence[UOp], device: str) -> set[UOp]:
    """Return the constants that may be promoted: those that are not read by an operation on constants alone. The empty
    set for a program on several devices."""
    order = toposort(roots)
    if not on_one_device(order, device):
        return set()
    fixed: set[UOp] = set()  # nodes that depend on constants only
    folded: set[UOp] = set()
    for n in order:
        if n.op is Ops.CONST:
            fixed.add(n)
        elif n.src and fixed.issuperset(n.src):
            fixed.add(n)
            if n.op.kind != "movement" and n.op not in _AS_IT_IS:
                folded.update(s.base for s in n.src)
    return {n for n in order if n.op is Ops.CONST} - folded


def on_one_device(nodes: Iterable[UOp], device: str) -> bool:
    """Return True if all kernels of a program run on ``device``, a single one."""
    others = {n.device or device for n in nodes} - {device}
    return not is_group(device) and not any(is_group(d) or Device[d].has_programs for d in others)


def _argument(constant: UOp, device: str) -> UOp:
    return UOp(Ops.BUFFER, constant.dtype, (), argument_buffer(constant, device)).reshape(())


def argument_buffer(constant: UOp, device: str) -> Buffer:
    """Return a buffer of one element with the value of a constant."""
    buffer = Buffer(device, 1, constant.dtype)
    buffer.copyin(memoryview(np.array([constant.arg], constant.dtype.numpy).tobytes()))
    return buffer
