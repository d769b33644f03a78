"""Templates: values as graphs over numbered buffer sources, from which a replay builds results and new state."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tinsmith.backend.memory import Buffer
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.sizes import bindings, with_symbols
from tinsmith.ir.uop import toposort
from tinsmith.jit.aliases import Alias
from tinsmith.jit.collect import Source
from tinsmith.jit.guards.tensors import TensorPath
from tinsmith.schedule.canonical import buffer_name
from tinsmith.tensor.base import TensorBase
from tinsmith.tensor.storage import Looks
from tinsmith.tensor.tensor import Tensor


@dataclass(slots=True)
class Template:
    """A value in terms of sources: a graph whose buffers are numbered."""

    uop: UOp
    sources: list[Source]
    plain: bool  # the graph is one buffer
    drawn: bool  # it has bound variables: sizes, or random numbers

    def fill(self, buffers: Sequence[Buffer], value: Callable[[str, int], int]) -> UOp:
        if self.plain:
            return UOp(Ops.BUFFER, self.uop.dtype, (), buffers[0])
        table = {placeholder(n, b): UOp(Ops.BUFFER, b.dtype, (), b) for n, b in enumerate(buffers)}
        if not self.drawn:
            return self.uop.substitute(table)
        for n in bindings(toposort(self.uop)):
            table[n] = UOp(Ops.BIND, None, (n.src[0], UOp.index(value(n.src[0].arg[0], n.src[1].arg))))
        return _rebound(self.uop, table)


def _rebound(uop: UOp, table: dict[UOp, UOp]) -> UOp:
    """The graph with nodes replaced, also in the arguments of movement ops."""
    new = dict(table)
    for n in toposort(uop, lambda n: n not in table):
        src = tuple(new.get(s, s) for s in n.src)
        arg = with_symbols(n.arg, table) if n.op.kind == "movement" else n.arg
        new[n] = n.replace(src=src, arg=arg)
    return new.get(uop, uop)


def placeholder(number: int, b: Buffer) -> UOp:
    return UOp(Ops.BUFFER, b.dtype, (), buffer_name(number, b))


class Returned:
    """A tensor among the results: an earlier tensor, or a new one. (Not a dataclass, which would be a nesting.)"""

    def __init__(self, place: TensorPath | None, template: Template | None, device: str, requires_grad: bool | None,
                 alias: Alias | None = None) -> None:
        self.place, self.template, self.device, self.requires_grad = place, template, device, requires_grad
        self.alias = alias  # of memory that only results share, the template is that of the whole


@dataclass(slots=True)
class Written:
    """A tensor from before the call whose value, or whose gradient, the call set.

    Attributes:
        place: of the tensor; of the gradient, if another one is set there.
        template: of what the tensor shows; None: the gradient was dropped.
        sets: the gradient is another tensor now.
        late: the gradient is computed if it is looked at.
        whole: of all the memory that the tensor shares with views, and how it looks at that.
        replaces: the tensor has another memory, and its former views keep the old one.
    """

    place: TensorPath
    template: Template | None
    late: bool = False
    sets: bool = False
    whole: tuple[Template, Looks] | None = None
    replaces: bool = False

    def fits(self, t: Tensor) -> bool:
        """Return True if ``t`` covers its memory as at the capture: all of it, or by the same view operations."""
        shared = t._shared
        return self.whole is None if shared is None else self.whole is not None and self.whole[1] == shared.looks


class _LateTensor(Tensor):
    """A gradient that has not been read yet: its graph is created when its node is first accessed."""

    __slots__ = ()

    @property
    def uop(self) -> UOp:
        node: Any = _UOP.__get__(self)
        if not isinstance(node, UOp):
            node = node()
            _UOP.__set__(self, node)
            object.__setattr__(self, "__class__", Tensor)
            TensorBase.live.add(self)
        return node  # type: ignore[no-any-return]

    @uop.setter
    def uop(self, node: UOp) -> None:
        _UOP.__set__(self, node)


_UOP: Any = TensorBase.__dict__["uop"]


def late_tensor(make: Callable[[], UOp], device: str) -> Tensor:
    """Return a tensor whose node ``make`` builds on first access."""
    t: Tensor = object.__new__(_LateTensor)
    _UOP.__set__(t, make)
    t._device, t.grad, t._requires_grad, t._shared = device, None, None, None
    return t
