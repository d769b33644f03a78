"""The base class of Tensor: its graph node, shared memory, assignment, and conversion to Python and NumPy values."""
from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import numpy as np

from tinsmith.backend.device import Device, DeviceName, members
from tinsmith.core.dtypes import DType, DTypeLike, dtypes, to_dtype
from tinsmith.core.errors import ArgumentError, DeviceError, DTypeError, ShapeError
from tinsmith.core.object_lifetime import IdentityRef, LiveSet, OfThread, WeakTable
from tinsmith.core.origin import Origin
from tinsmith.core.settings import current
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.sizes import value_of_size
from tinsmith.runtime.launch import copy_to_host
from tinsmith.runtime.thread_turns import state, writing
from tinsmith.tensor import display, storage
from tinsmith.tensor.autograd.history import forget_origins, has_origins, is_computed, note_earlier
from tinsmith.tensor.host_data import from_data, from_size
from tinsmith.tensor.interop import files
from tinsmith.tensor.layer_names import origin_of
from tinsmith.tensor.modes import ModeAttribute, WithModes
from tinsmith.tensor.realize import is_leaf, kept_version, numbers, stored_value, unseen_version, version
from tinsmith.tensor.sizes import traced
from tinsmith.tensor.storage import DETACH, NO_LOOKS, UNRECORDED, Look, Share

if TYPE_CHECKING:
    from tinsmith.tensor.abstract import AbstractTensor
else:
    AbstractTensor = object  # declarations for mypy alone

T = TypeVar("T", bound="TensorBase")


class TensorBase(AbstractTensor, metaclass=WithModes):
    """The state of a tensor: graph node, device, shared memory and gradient. ``tensor.Tensor`` mixes in operations."""

    __slots__ = ("__weakref__", "_device", "_requires_grad", "_shared", "grad", "uop")
    uop: UOp
    _shared: Share | None  # the storage shared with the views of this tensor and with the tensor that it is a view of
    grad: Self | None
    _requires_grad: bool | None  # value of the property ``requires_grad``, whose setter checks the dtype

    if TYPE_CHECKING:
        training: ClassVar[bool]
        recording: ClassVar[bool]  # True if results can be differentiated: see ``no_grad``
        autocast_dtype: ClassVar[DType | None]  # dtype that contractions round float32 operands to: see ``autocast``
    else:
        training, recording, autocast_dtype = ModeAttribute(), ModeAttribute(), ModeAttribute()
    live: ClassVar[LiveSet[Any]] = LiveSet()
    _losses: ClassVar[list[weakref.ref[Any]]] = []  # tensors whose ``backward`` ran since the last optimizer step
    _unasked: ClassVar[WeakTable[Any, None]] = WeakTable()  # leaves with a gradient but without ``requires_grad=True``
    watchers: ClassVar[OfThread[LiveSet[Any]]] = OfThread()  # sets to which each tensor written by this thread is added
    _sharers: ClassVar[OfThread[LiveSet[Any]]] = OfThread()  # as ``watchers``, with all tensors that share its memory
    _disturbed: ClassVar[OfThread[LiveSet[Any]]] = OfThread()  # as ``_sharers``, for tensors that other threads write
    _graders: ClassVar[OfThread[LiveSet[Any]]] = OfThread()  # sets to which each tensor that gets a gradient is added
    _replacers: ClassVar[OfThread[Any]] = OfThread()  # captures, notified before a tensor's memory is replaced
    forgettings: ClassVar[int] = 0  # number of calls of ``forget_gradients``

    def __init__(self, data: Any = None, device: DeviceName | None = None, dtype: DTypeLike | None = None,
                 requires_grad: bool | None = None) -> None:
        wanted = None if dtype is None else to_dtype(dtype)
        self.grad, self._requires_grad, self._shared = None, requires_grad, None
        self._device = device_name(device)
        if isinstance(data, UOp):
            self.uop = from_size(data, wanted) if data.dtype is dtypes.index else data
            self._device = data.device or self._device
        elif isinstance(data, TensorBase):
            self.uop, self._device = data.uop, data._device
        elif isinstance(data, os.PathLike):
            self.uop, self._device = files.whole(data, wanted), files.of_file(os.fspath(data))
            if device is not None:
                self.uop, self._device = files.moved(self, device_name(device)), device_name(device)
        elif device is not None and files.on_disk(self._device):
            self.uop = files.moved(type(self)(data, device="CPU", dtype=wanted), self._device)
        else:
            self.uop = from_data(data, self._device, wanted)
            if wanted is not None:
                self.uop = self.uop.cast(wanted)
            if requires_grad is not False:
                self.uop = leaf(self.uop)
        if wanted is not None:
            self.uop = self.uop.cast(wanted)
        if device is not None and self.uop.device is not None:
            self.uop = self.uop.copy_to(self._device)
        if requires_grad:
            self._check_gradient()
        _note_origin(self.uop, sys._getframe())
        TensorBase.live.add(self)

    @property
    def requires_grad(self) -> bool | None:
        """True if ``backward`` fills ``.grad``, False if it does not; None: it does for floats made from data.

        >>> Tensor([1.0]).requires_grad, Tensor([1.0], requires_grad=True).requires_grad
        (None, True)

        Raises:
            DTypeError: if a tensor of integers or bools is to have a gradient.
        """
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, wanted: bool | None) -> None:
        if wanted:
            self._check_gradient()
        self._requires_grad = wanted

    def _check_gradient(self) -> None:
        """Raise if this tensor's dtype is not floating point, as PyTorch does.

        Raises:
            DTypeError: for integers and bools.
        """
        if not self.uop.dtype.is_float:
            raise DTypeError("requires_grad", f"a tensor of {self.uop.dtype!r} has no gradient",
                             ".float(), or no requires_grad=True")

    @classmethod
    def _wrap(cls, uop: UOp, device: str, requires_grad: bool | None = None) -> Self:
        """Return a tensor of a new node, and record the user's source line on the node."""
        self = object.__new__(cls)
        if not current().recording and uop.op is not Ops.DETACH and uop.dtype.is_float:
            uop = UOp(Ops.DETACH, None, (uop,))
        self.uop, self.grad, self._requires_grad, self._shared = uop, None, requires_grad, None
        self._device = uop.device or device
        if uop.device is None and uop.origin and uop.base.op is Ops.CONST:  # a kept node, perhaps another line's
            uop.origin = ()
        if not uop.origin and uop.op is not Ops.CONST:
            _note_origin(uop, sys._getframe(1))
        _live[IdentityRef(self, _forget_tensor)] = None
        return self

    def _new(self, uop: UOp) -> Self:
        return type(self)._wrap(uop, self._device)

    def _copy(self) -> Self:
        """Return a copy-on-write copy: the node is shared until one of the two tensors is written."""
        return self._new(self.uop)

    def _view(self, look: Look, arg: Any, *more: tuple[Look, Any]) -> Self:
        """Return a view of this tensor's memory, with ``more`` views of the first: a write through either is visible in
        both."""
        with state:
            uop, shared = storage.shown(self, look, arg)
            for look, arg in more:
                uop, shared = look.node(uop, arg), Share(shared.storage, shared.looks.then(look, arg))
            t = type(self)._wrap(uop, self._device)
            if t.uop is not uop:
                shared = Share(shared.storage, shared.looks.then(DETACH, None))
            t._shared = shared
            shared.storage.add(t)
        return t

    # *** what it is ***

    @property
    def shape(self) -> tuple[Any, ...]:
        """The shape: a tuple with the size of each axis.

        >>> Tensor([[1, 2]]).shape
        (1, 2)
        """
        return self.uop.shape if not traced.traces.threads else traced.shown(self.uop.shape, sys._getframe(1))

    @property
    def dtype(self) -> DType:
        """The data type of the elements.

        >>> Tensor([1.5]).dtype
        dtypes.float
        """
        return self.uop.dtype

    @property
    def device(self) -> DeviceName:
        """The canonical name of the device that stores the values; a tuple of names for several devices.

        >>> Tensor([1], device="cpu:0").device, Tensor([1], device=("CPU:0", "CPU:1")).device
        ('CPU', ('CPU', 'CPU:1'))
        """
        return members(self._device) if "," in self._device else self._device

    @property
    def ndim(self) -> int:
        """Number of axes.

        >>> Tensor([[1, 2]]).ndim
        2
        """
        return len(self.uop.shape)

    def __len__(self) -> int:
        if not self.shape:
            raise DTypeError("len", "a 0-d tensor has no length", "reshape((1,))")
        return value_of_size(self.shape[0])

    def __bool__(self) -> bool:
        if value_of_size(self.uop.size) != 1:
            raise ArgumentError("bool", f"the truth value of a tensor of shape {self.shape} is ambiguous",
                                ".any() or .all()")
        return bool(self.item())

    def __float__(self) -> float:
        return float(self._number("float"))

    def __int__(self) -> int:
        return int(self._number("int"))

    def __index__(self) -> int:
        if not self.dtype.is_int:
            raise DTypeError("index", f"a tensor of {self.dtype!r} is no index", ".item(), or .cast(dtypes.int32)")
        return int(self._number("index"))

    def __format__(self, spec: str) -> str:
        """Format as ``print`` does without a specification; with one, format the only element."""
        return format(self._number("format"), spec) if spec else str(self)

    def _number(self, op: str) -> int | float | bool:
        """Return the only element, for a conversion to a Python number."""
        if value_of_size(self.uop.size) != 1:
            raise ShapeError(op, f"a tensor of shape {self.shape} is not one number", ".tolist()")
        return self.item()

    def __hash__(self) -> int:
        return id(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the tensor. Views that are pickled or deep-copied together with it keep sharing its memory."""
        args = type(self), self.uop, self._device, self.requires_grad, self.grad
        return (_unpickled, args) if storage.alone(self) else (_unpickled, args, self._shared)

    def __setstate__(self, shared: Share) -> None:
        self._shared = shared
        shared.storage.add(self)

    def __copy__(self) -> TensorBase:
        """Return a copy with the same values and the same ``.grad`` that shares no memory with this tensor."""
        return _unpickled(type(self), self.uop, self._device, self.requires_grad, self.grad)

    @property
    def is_param(self) -> bool:
        """True if an optimizer updates this tensor; False for running statistics and other buffers.

        >>> Tensor([1.0]).is_param, Tensor([1.0], requires_grad=False).is_param
        (True, False)
        """
        return self.requires_grad is not False

    def is_param_(self, is_param: bool = True) -> Self:
        """Set ``requires_grad``; an optimizer updates this tensor only if it is not False. Return self.

        >>> Tensor([1.0]).is_param_(False).requires_grad
        False
        """
        self.requires_grad = bool(is_param)
        return self

    # *** values out ***

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return a copy of the values as a NumPy array.

        >>> Tensor([1, 2]).numpy()
        array([1, 2], dtype=int32)

        Raises:
            KernelError: if the kernel that computes the values fails.
        """
        return self._array()

    def _array(self) -> np.ndarray[Any, Any]:
        """Return the values in the tensor's own dtype; under compat ``numpy`` widens some."""
        shape: Sequence[Any] = self.uop.shape
        if UOp in map(type, shape):
            shape = [value_of_size(s) for s in shape]
        if 0 in shape:
            return np.empty(shape, self.dtype.numpy)
        if files.on_disk(self._device):
            return files.values(self.uop).copy()
        return copy_to_host(*stored_value(self)).reshape(shape)

    def data(self) -> memoryview:
        """Return a memoryview of a copy of the values.

        >>> Tensor([1, 2]).data().tolist()
        [1, 2]
        """
        return np.ascontiguousarray(self.numpy()).data

    def item(self) -> int | float | bool:
        """Return the only element as a Python number.

        >>> Tensor([5]).item()
        5

        Raises:
            ShapeError: if the tensor does not have exactly one element.
        """
        if self.uop.shape and (count := value_of_size(self.uop.size)) != 1:
            raise ShapeError("item", f"shape {self.shape} holds {count} elements, not one", ".tolist()")
        value: int | float | bool = self._array().item()
        return value

    def tolist(self) -> Any:
        """Return the values as nested lists; a Python number for a 0-d tensor.

        >>> Tensor([[1, 2]]).tolist()
        [[1, 2]]
        """
        return self.numpy().tolist()

    def __array_function__(self, function: Callable[..., Any], types: Any, args: Any, kwargs: Any) -> Any:
        """Apply a NumPy function to the values; the result is that of NumPy.

        >>> np.mean(Tensor([1.0, 2.0])), np.concatenate([Tensor([1]), Tensor([2])])
        (np.float32(1.5), array([1, 2], dtype=int32))
        """
        return function(*_with_arrays(args), **_with_arrays(kwargs))

    def __repr__(self) -> str:
        """Return the values if they are cheap to compute, else shape, dtype and source line (see docs/semantics.md).

        >>> Tensor([1, 2]) * 3, Tensor.arange(2000).realize()
        (Tensor([3, 6], dtype=dtypes.int, device='CPU'), Tensor([   0,    1,    2, ..., 1997, 1998, 1999], \
shape=(2000,), dtype=dtypes.int, device='CPU'))
        """
        return display.text(self)

    def _repr_html_(self) -> str:
        return display.html(self)

    # *** memory ***

    def contiguous(self) -> Self:
        """Return a copy of the values in new row-major memory, even if they were already contiguous.

        >>> Tensor([[1, 2], [3, 4]]).T.contiguous().tolist()
        [[1, 3], [2, 4]]
        """
        return self._new(self.uop.contiguous())

    def _take_place(self, other: Self) -> Self:
        """Take another tensor's value and device; tensors that shared this one's memory keep the old value."""
        for capture in TensorBase._replacers:
            capture.replacing(self)
        self.uop, self._device, self._shared = other.uop, other._device, None
        self._note_write()
        return self

    def detach(self) -> Self:
        """Return a view of the same memory through which no gradient flows.

        >>> Tensor([1.0]).detach().requires_grad
        False
        """
        t = self._view(DETACH, None)
        t.requires_grad = False
        return t

    def replace(self, other: Self) -> Self:
        """Replace this tensor's value by that of ``other``, of the same shape, without a copy; return self.

        The dtype and device become those of ``other``, so a parameter's dtype can change in place. Tensors that shared
        this tensor's memory keep the old value.

        >>> Tensor([1, 2]).replace(Tensor([3.5, 4])).tolist()
        [3.5, 4.0]
        """
        check_tensors("replace", [other])
        if self.shape != other.shape:
            raise ShapeError("replace", f"{self.shape} cannot become {other.shape}", "equal shapes")
        return self._take_place(other)

    def assign(self, value: Any) -> Self:
        """Write ``value`` to this tensor's memory and return self; every tensor that shares the memory sees the write.
        Results that were computed from the old values keep them.

        >>> x = Tensor([1, 2, 3]); y = x + 0; _ = x[1:].assign(Tensor([8, 9])); x.tolist(), y.tolist()
        ([1, 8, 9], [1, 2, 3])

        Raises:
            ShapeError: if the value does not broadcast to this shape, or this tensor repeats elements of its memory.
            DTypeError: if the dtypes differ.
        """
        on_disk = files.on_disk(self._device)
        x = value if isinstance(value, TensorBase) else type(self)(value, device="CPU" if on_disk else self._device,
                                                                   dtype=self.dtype)
        if x.shape != self.shape:
            x = x._broadcast_to(self.shape, "assign")
        if x.dtype is not self.dtype:
            raise DTypeError("assign", f"{self.dtype!r} tensor, {x.dtype!r} value", f".cast({self.dtype!r})")
        if x.device != self.device and not on_disk:
            raise DeviceError("assign", f"tensor on {self.device}, value on {x.device}", f".to({self.device!r})")
        self._write(x.uop)
        return self

    def _write(self, value: UOp) -> None:
        """Write ``value`` to this tensor's memory, visible to all tensors that share it.

        A write in ``no_grad()``, through ``detach()``, or to a parameter is not recorded by autograd, as in PyTorch:
        a leaf stays the same leaf of earlier results, and a computed value keeps its gradient.
        """
        if value is self.uop or 0 in self.shape:
            return
        if files.on_disk(self._device):
            files.write(self.uop, type(self)._wrap(value, value.device or "CPU")._array())
            return self._note_write()
        with writing(self):
            self._record_write(value)

    def _record_write(self, value: UOp) -> None:
        recorded, sharing = self._records_writes(), storage.sharing(self)
        if recorded:
            forget_origins(sharing)
            storage.write(self, value, version)
        elif is_computed(storage.whole(self)) or self._is_copy():
            storage.write(self, value, kept_version)
        else:
            before = [(t, t.uop) for t in sharing if not is_computed(t.uop)]
            storage.write(self, value, unseen_version)
            for t, old in before:
                note_earlier(t, old)
        _note_origin(self.uop, sys._getframe(1))
        self._note_write(sharing)

    def _records_writes(self) -> bool:
        """Return True if gradients flow through values that are written to this tensor."""
        if not storage.whole(self).dtype.is_float:
            return True
        looks = NO_LOOKS if self._shared is None else self._shared.looks
        parameter = self.requires_grad is True and not is_computed(self.uop) and not self._is_copy()
        return current().recording and not parameter and looks.kinds.isdisjoint(UNRECORDED)

    def _is_copy(self) -> bool:
        """Return True if this tensor's data are a copy of another tensor's, to which its gradient flows."""
        return has_origins(self, storage.whole(self), storage.sharing(self), TensorBase.live)

    def _note_write(self, sharing: Sequence[TensorBase] = ()) -> None:
        for written in TensorBase.watchers:
            for t in storage.sharing(self):
                written.add(t)
        for touched in (*TensorBase._sharers, *TensorBase._disturbed.elsewhere()):
            for t in (self, *sharing):
                touched.add(t)


_live, _forget_tensor = TensorBase.live.refs, TensorBase.live.forget


def device_name(device: DeviceName | None) -> str:
    """Return the canonical name of a device or group; a device that not every machine has is opened to check it.

    Raises:
        DeviceError: if there is no such device.
    """
    name = Device.canonicalize(device)
    for member in members(name):
        base, *options = member.split(":")
        if base not in Device.EVERYWHERE or not all(o.isdigit() for o in options):
            Device[member]
    return name


def _with_arrays(value: Any) -> Any:
    """Return an argument with the tensors inside it (in lists, tuples, dicts) converted to NumPy arrays."""
    if isinstance(value, TensorBase):
        return value.numpy()
    if isinstance(value, dict):
        return {k: _with_arrays(v) for k, v in value.items()}
    return type(value)(map(_with_arrays, value)) if type(value) in (list, tuple) else value


def _unpickled(kind: type[T], uop: UOp, device: str, requires_grad: bool | None, grad: T | None) -> T:
    t = kind._wrap(uop, device, requires_grad)
    t.grad = grad
    return t


def leaf(uop: UOp) -> UOp:
    """Return a float value that was not computed from tensors as a unique node.

    Nodes are interned: two tensors of equal constants would be one node with one gradient. A number in the node's
    argument makes them distinct; schedules ignore it.
    """
    if not uop.dtype.is_float or (is_leaf(uop) and uop.base.op is not Ops.ASSIGN):
        return uop
    return UOp(Ops.DETACH, None, (uop,), next(numbers))


def _note_origin(uop: UOp, called: FrameType) -> None:
    """Record on new nodes the Tensor method that the user called and the source line. Data has a line and no method.

    Args:
        called: the frame of a function of this package that the user's program called, directly or not.
    """
    origin = origin_of(called, TensorBase)
    if origin is not None:
        for s in uop.src:
            if not s.origin:
                base = s
                while base.op.kind == "movement":
                    base = base.src[0]
                if base.op is not Ops.CONST and s.op is not Ops.BUFFER:
                    return mark(uop, (origin,))
        uop.origin = (origin,)


def mark(uop: UOp, origin: tuple[Origin, ...]) -> None:
    """Record origins on a node and on its sources that have none, up to the first nodes that have some."""
    stack = [uop]
    while stack:  # the nodes that this call made: the sources without an origin
        n = stack.pop()
        if n.origin or n.op is Ops.CONST or n.op is Ops.BUFFER:
            continue
        if n.op.kind == "movement" and n is not uop:
            base = n.src[0]
            while base.op.kind == "movement":
                base = base.src[0]
            if base.op is Ops.CONST:  # interned, shared by programs
                continue
        n.origin = origin
        stack.extend(n.src)


def check_tensors(op: str, values: Sequence[Any]) -> None:
    """Check that all arguments are tensors.

    Raises:
        DTypeError: naming the first argument that is not a tensor.
    """
    for n, t in enumerate(values):
        if not isinstance(t, TensorBase):
            raise DTypeError(op, f"argument {n} is {type(t).__name__}, not a tensor", "Tensor(...)")
