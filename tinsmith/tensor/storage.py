"""Shared memory of tensors: a tensor and its views alias one storage, and a write through any of them changes it.

A view is a list of view operations (``Look``) applied to the storage's value. A write scatters the new values into the
storage's value by the transposes of these operations; every tensor of the storage then recomputes its view. As in
PyTorch, strides decide if a ``reshape`` is a view or a copy; this is observable only after a write, so it is decided
at the first write.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.errors import ShapeError
from tinsmith.core.object_lifetime import IdentityRef, LiveSet
from tinsmith.ir import Ops, UOp
from tinsmith.shape.view import View, row_major
from tinsmith.tensor.indexing.slices import Slices, sliced

if TYPE_CHECKING:
    from tinsmith.tensor.abstract import AbstractTensor, T

class Look(NamedTuple):
    """A kind of view operation (RESHAPE, SLICE, …): a constant of this module, pickled by its name.

    Attributes:
        name: of that constant.
        node: applies the operation, with its argument, to a node.
        view: applies it to the strides of memory; its result is None if strides cannot express it.
    """

    name: str
    node: Callable[[UOp, Any], UOp]
    view: Callable[[View, Any], View | None]

    def __reduce__(self) -> str:
        return self.name


def _strided(v: View, slices: Slices) -> View:
    steps = [(-s.step if s.flip else s.step) * stride for s, stride in zip(slices, v.strides)]
    return View.create(tuple(s.count for s in slices), steps)


def _diagonal(x: UOp, size: int) -> UOp:
    """Return the diagonal of the last two axes, both of ``size``."""
    lead = x.shape[:-2]
    flat = x.reshape((*lead, size * size)).pad((*((0, 0) for _ in lead), (0, size)))
    rows = flat.reshape((*lead, size, size + 1))
    return rows.shrink((*((0, s) for s in lead), (0, size), (0, 1))).reshape((*lead, size))


def _bits(x: UOp, arg: Bits) -> UOp:
    found: UOp = arg.tensor._wrap(x, arg.device)._as_bits(arg.to).uop
    return found


def _strided_bits(v: View, arg: Bits) -> View | None:
    own, new = arg.own.itemsize, arg.to.itemsize
    if own == new:
        return v
    if v.strides[-1] != 1 or any(stride * own % new for stride in v.strides[:-1]):
        return None
    return View.create((*v.shape[:-1], v.shape[-1] * own // new), (*(s * own // new for s in v.strides[:-1]), 1))


class Bits(NamedTuple):
    """The argument of the look ``BITS``: the old and new dtype, and the class and device of the viewing tensor."""

    own: DType
    to: DType
    tensor: type[Any]
    device: str


RESHAPE = Look("RESHAPE", lambda x, shape: x.reshape(shape), lambda v, shape: v.reshape(shape))
PERMUTE = Look("PERMUTE", lambda x, order: x.permute(order), lambda v, order: v.permute(order))
EXPAND = Look("EXPAND", lambda x, shape: x.expand(shape), lambda v, shape: v.expand(shape))
SLICE = Look("SLICE", sliced, _strided)
DIAGONAL = Look("DIAGONAL", _diagonal, lambda v, size: View.create((*v.shape[:-2], size),
                                                                   (*v.strides[:-2], v.strides[-2] + v.strides[-1])))
DETACH = Look("DETACH", lambda x, _: UOp(Ops.DETACH, None, (x,)), lambda v, _: v)
BITS = Look("BITS", _bits, _strided_bits)
STRIDED = Look("STRIDED", lambda x, _: x, lambda _, view: view)  # the strides of a view that was computed alone
UNRECORDED = (DETACH, BITS)  # a write through these has no gradient

class Looks:
    """A sequence of view operations (look, argument), as a linked list: to append one takes constant time.

    >>> looks = Looks.of([(PERMUTE, (1, 0))]).then(RESHAPE, (6,))
    >>> len(looks), [look.name for look, _ in looks], looks == Looks.of(looks)
    (2, ['PERMUTE', 'RESHAPE'], True)

    Attributes:
        before: the sequence without the last look; None: this one is empty.
        last: the last look and its argument; None: there is none.
        kinds: the different looks.
        constant: True if no size of a reshape or expand depends on a variable.
    """

    __slots__ = ("_count", "_strides", "before", "constant", "kinds", "last")

    def __init__(self, before: Looks | None = None, last: tuple[Look, Any] | None = None) -> None:
        self.before, self.last = before, last
        self._strides: tuple[tuple[int, ...], View | None] | None = None  # (shape, strides of what it shows of that)
        self._count, self.kinds, self.constant = 0, frozenset[Look](), True
        if before is not None and last is not None:
            look, arg = last
            self._count = before._count + 1
            self.kinds = before.kinds if look in before.kinds else before.kinds | {look}
            self.constant = before.constant and not ((look is RESHAPE or look is EXPAND) and UOp in map(type, arg))

    @staticmethod
    def of(looks: Iterable[tuple[Look, Any]]) -> Looks:
        """Return the sequence of some looks and their arguments."""
        found = NO_LOOKS
        for look, arg in looks:
            found = found.then(look, arg)
        return found

    def then(self, look: Look, arg: Any) -> Looks:
        """Return the sequence with one look more."""
        return Looks(self, (look, arg))

    def __len__(self) -> int:
        return self._count

    def __reversed__(self) -> Iterator[tuple[Look, Any]]:
        looks = self
        while looks.before is not None and looks.last is not None:
            yield looks.last
            looks = looks.before

    def __iter__(self) -> Iterator[tuple[Look, Any]]:
        return iter([*reversed(self)][::-1])

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Looks) and len(self) == len(other) and all(
            a == b for a, b in zip(reversed(self), reversed(other))))

    def __hash__(self) -> int:
        return hash((self._count, self.kinds))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a flat list, so that many looks need no recursion."""
        return Looks.of, (list(self),)

    def follow(self, node: UOp, known: dict[int, UOp] | None = None) -> UOp:
        """Return ``node`` with all view operations applied.

        Args:
            known: results by the id of a sequence, for prefixes that sequences share; new ones are added.
        """
        table = {} if known is None else known
        looks, rest = self, []
        while looks.last is not None and looks.before is not None and id(looks) not in table:
            rest.append(looks)
            looks = looks.before
        node = table.get(id(looks), node)
        for looks in reversed(rest):
            assert looks.last is not None
            look, arg = looks.last
            node = table[id(looks)] = look.node(node, arg)
        return node

    def strides(self, shape: tuple[int, ...]) -> View | None:
        """Return the view (strides) that the operations give of dense memory of ``shape``; None if not expressible."""
        looks, rest = self, []
        while looks.before is not None and (looks._strides is None or looks._strides[0] != shape):
            rest.append(looks)
            looks = looks.before
        view = View.create(shape, row_major(shape)) if looks._strides is None else looks._strides[1]
        for looks in reversed(rest):
            assert looks.last is not None
            look, arg = looks.last
            view = None if view is None else look.view(view, arg)
            looks._strides = shape, view
        return view


NO_LOOKS = Looks()


class Share(NamedTuple):
    """The reference of a tensor to its storage, with the view operations that lead to the tensor's value."""

    storage: Storage
    looks: Looks

    def seen(self, known: dict[int, UOp] | None = None) -> UOp:
        """Return the present value of the view: the looks applied to the storage's value.

        Args:
            known: results for other views of the same storage, to which this one is added (``Looks.follow``).
        """
        return self.looks.follow(self.storage.value, known)


class Storage:
    """The value that a tensor and its views share.

    Attributes:
        value: the node of the complete memory, of which each tensor is a view.
    """

    __slots__ = ("_came", "value")

    def __init__(self, value: UOp) -> None:
        self.value = value
        self._came: LiveSet[AbstractTensor] = LiveSet()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the value only: each member adds itself when it is loaded."""
        return Storage, (self.value,)

    def add(self, t: AbstractTensor) -> None:
        """Add a tensor that is a view of the value."""
        came = self._came
        came.refs[IdentityRef(t, came.forget)] = None

    def members(self) -> Iterator[AbstractTensor]:
        """Return the live tensors that share this value: those added and not detached since."""
        return (t for t in self._came if t._shared is not None and t._shared.storage is self)

    def let_copies_go(self) -> None:
        """Detach the members whose views no strides can express: they become copies with their present value."""
        for t in self.members():
            if t._shared is not None and not _is_view(t._shared.looks, self.value.shape):
                t._shared = None

    def become(self, value: UOp) -> None:
        """Replace the storage's value and update the view of every member."""
        self.value = value
        known: dict[int, UOp] = {}
        for t in [*self.members()]:
            if t._shared is not None:
                t.uop = t._shared.seen(known)


def _known(looks: Looks, shape: tuple[Any, ...]) -> bool:
    """Return True if all sizes are positive constants, so that strides can be computed."""
    return looks.constant and 0 not in shape and not any(isinstance(s, UOp) for s in shape)


def _is_view(looks: Looks, shape: tuple[Any, ...]) -> bool:
    """Return True if the looks are a strided view of dense memory; assumed for symbolic sizes."""
    found = looks.kinds
    return RESHAPE not in found or len(found) == 1 or not _known(looks, shape) or looks.strides(shape) is not None


def _is_even(looks: Looks, shape: tuple[Any, ...]) -> bool:
    """Return True if the elements that ``looks`` select have one common stride, so that every ``reshape`` is a view.

    Assumed to be true if the strides are unknown.
    """
    if not looks or not _known(looks, shape):
        return True
    view = looks.strides(shape)
    return view is None or view.reshape((math.prod(view.shape),)) is not None


def _repeats(looks: Looks, shape: tuple[Any, ...]) -> bool:
    """Return True if the looks repeat elements (an expanded axis of stride 0)."""
    if EXPAND not in looks.kinds:
        return False
    view = looks.strides(shape) if _known(looks, shape) else None
    return view is None or any(n != 1 and stride == 0 for n, stride in zip(view.shape, view.strides))


def shown(t: AbstractTensor, look: Look, arg: Any) -> tuple[UOp, Share]:
    """Return the node of a view of a tensor, and the view's ``Share`` of the storage that both use from now on."""
    shared = t._shared
    if shared is not None and not _is_view(shared.looks, shared.storage.value.shape):
        shared = t._shared = None  # a view of a copy shares the copy's memory
    if shared is None:
        shared = t._shared = Share(Storage(t.uop), NO_LOOKS)
        shared.storage.add(t)
    return look.node(t.uop, arg), Share(shared.storage, shared.looks.then(look, arg))


def whole(t: AbstractTensor) -> UOp:
    """Return the value of the storage that a tensor is a view of."""
    return t.uop if t._shared is None else t._shared.storage.value


def sharing(t: T) -> list[T]:
    """Return all live tensors that share memory with ``t``, including ``t`` itself."""
    return [t] if t._shared is None else list(t._shared.storage.members())


def unseen(t: AbstractTensor) -> bool:
    """Return True if no other tensor shares the memory of ``t``."""
    return t._shared is None or all(m is t for m in t._shared.storage.members())


def alone(t: AbstractTensor) -> bool:
    """Return True if ``t`` has no storage any more: it is dropped if no other tensor shares the memory of ``t``.

    A tensor with elements at more than one stride keeps its storage: without it, a ``reshape`` that copies would count
    as a view.
    """
    shared = t._shared
    if shared is not None and unseen(t) and _is_even(shared.looks, shared.storage.value.shape):
        t._shared = None
    return t._shared is None


def write(t: AbstractTensor, value: UOp, version: Callable[[UOp, UOp], UOp]) -> None:
    """Write ``value`` to the memory of a tensor, visible to all tensors that share it.

    Args:
        version: a function from the node of the old version and the new value to the node of the new version.

    Raises:
        ShapeError: if an element occurs several times in the tensor (an expanded view).
    """
    shared = t._shared
    if shared is not None:
        shared.storage.let_copies_go()
        if t._shared is not None and _repeats(t._shared.looks, shared.storage.value.shape):
            raise ShapeError("write", f"the tensor of shape {t.shape} shows elements of its memory at several places",
                             "clone() it first, or write before expanding")
    if alone(t):
        t.uop = version(t.uop, value)
        return
    assert t._shared is not None
    storage = t._shared.storage
    storage.become(version(storage.value, _placed(t._shared, value)))


def _placed(shared: Share, value: UOp) -> UOp:
    """Return the storage's value with ``value`` written at the elements that the looks select."""
    levels = [shared.storage.value]
    for look, arg in shared.looks:
        levels.append(look.node(levels[-1], arg))
    inside, partly = UOp.const(dtypes.int32, 1).expand_to(value.shape), False
    for (look, arg), node, base in zip(reversed(shared.looks), levels[:0:-1], levels[-2::-1]):
        if look is BITS:  # of an element, some bits may be written
            value = inside.ne(0).where(value, node) if partly else value
            value = look.node(value, arg._replace(own=arg.to, to=arg.own))
            inside, partly = UOp.const(dtypes.int32, 1).expand_to(value.shape), False
            continue
        while node is not base:
            if node.op is not Ops.DETACH:
                partly |= node.op is Ops.SHRINK
                assert node.op.gradient is not None
                (v,), (i,) = node.op.gradient(node, value), node.op.gradient(node, inside)
                assert v is not None and i is not None
                value, inside = v, i
            node = node.src[0]
    return inside.ne(0).where(value, levels[0]) if partly else value


def _go_on_alone(t: AbstractTensor, looks: Looks, shape: tuple[Any, ...]) -> None:
    """Give ``t``, whose value was computed into separate memory, its own storage.

    The strides that it had as a view still decide if a ``reshape`` copies, because realization must not change
    semantics.
    """
    t._shared = None
    if not _is_even(looks, shape):
        t._shared = Share(Storage(t.uop), NO_LOOKS.then(STRIDED, looks.strides(shape)))
        t._shared.storage.add(t)


def replaced(tensors: Iterable[AbstractTensor], seen_again: Callable[[UOp], UOp | None]) -> None:
    """After ``tensors`` were computed, make the tensors that share their memory refer to the computed values.

    Args:
        seen_again: a node in terms of computed ones; None if it was not computed.
    """
    done: set[int] = set()
    for t in tensors:
        shared = t._shared
        if shared is None or id(shared.storage) in done:
            continue
        storage = shared.storage
        done.add(id(storage))
        new = seen_again(storage.value)
        if new is None:  # a part was computed, not the whole: it goes on alone if nobody else looks at that
            if unseen(t):
                _go_on_alone(t, shared.looks, storage.value.shape)
        elif new is not storage.value:
            storage.become(new)
