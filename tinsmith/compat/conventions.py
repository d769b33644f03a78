"""tinygrad's conventions while compat is installed: the import hook, and methods with another meaning.

The hook makes ``import tinygrad...`` return the modules of ``module_table.py``, in front of an installed tinygrad.
Methods that differ between PyTorch and tinygrad get tinygrad's meaning.
"""
from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Final

import numpy as np

from tinsmith.compat.helpers import make_tuple
from tinsmith.compat.module_table import DEVICE_VARIABLES, DEVICES, METHODS, MODULES, PLACES, REASONS, place
from tinsmith.compat.schedules import ATTRIBUTES, ast
from tinsmith.compat.variables import from_environment
from tinsmith.core.dtypes import dtypes, to_dtype
from tinsmith.core.errors import ArgumentError, ShapeError
from tinsmith.core.settings import settings, tell_unread
from tinsmith.core.suggestions import guided, nearest
from tinsmith.ir import UOp
from tinsmith.runtime.listing import ScheduledItem
from tinsmith.tensor.host_data import TinygradRules
from tinsmith.tensor.tensor import Tensor


def _t(self: Tensor) -> Tensor:
    """Swap the first two axes; Tinsmith's ``T`` reverses all axes."""
    return self.transpose()


def _allclose(self: Tensor, other: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Tensor:
    """Return a bool tensor; Tinsmith's method returns a Python bool."""
    return self.isclose(other, rtol, atol, equal_nan).all()


def _qr(self: Tensor, mode: str = "complete") -> tuple[Tensor, Tensor]:
    """Return the complete QR decomposition (square Q); Tinsmith's default is reduced."""
    result: tuple[Tensor, Tensor] = _OURS["qr"](self, mode)
    return result


def _where(self: Tensor, x: Any, y: Any) -> Tensor:
    """Select with ``self`` as the condition, of any dtype; Tinsmith also accepts ``x.where(condition, y)``."""
    result: Tensor = _OURS["where"](self.bool(), x, y)
    return result


def _extreme(name: str, better: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., tuple[Tensor, Tensor]]:
    def method(self: Tensor, axis: int = 0) -> tuple[Tensor, Tensor]:
        """Return running extremes and the index of the first of equal ones; Tinsmith's method gives the last."""
        values = _OURS[name](self, axis).values
        if not self.ndim or not self.shape[axis]:
            return values, values.cast("int32")
        before = values.shrink([(0, s - (a == axis % self.ndim)) for a, s in enumerate(self.shape)])
        rest = self.shrink([(int(a == axis % self.ndim), s) for a, s in enumerate(self.shape)])
        place = Tensor.arange(self.shape[axis], device=self.device)
        place = place.reshape([-1 if a == axis % self.ndim else 1 for a in range(self.ndim)]).expand(self.shape)
        first_nan = rest.ne(rest) & before.eq(before)
        found = (better(rest, before) | first_nan).pad([(int(a == axis % self.ndim), 0) for a in range(self.ndim)])
        return values, _OURS["cummax"](found.where(place, 0), axis).values
    return method


def _sparse(self: Tensor, Y: Tensor, ignore_index: int = -1, label_smoothing: float = 0.0,
            reduction: str = "mean") -> Tensor:
    """tinygrad's ``sparse_categorical_crossentropy``: a label of -1 adds no class term, but its row counts in the mean
    and in label smoothing. With another ``ignore_index`` it is Tinsmith's method.

    >>> from tinsmith.compat import install, uninstall
    >>> install()
    >>> round(Tensor([[0., 0.], [0., 0.]]).sparse_categorical_crossentropy(Tensor([0, -1])).item(), 4)
    0.3466
    >>> uninstall()
    """
    ours = _OURS["sparse_categorical_crossentropy"]
    if ignore_index != -1:
        result: Tensor = ours(self, Y, ignore_index, label_smoothing, reduction)
        return result
    loss: Tensor = ours(self, Y, -1, label_smoothing, "none")
    if label_smoothing:
        shifted, total = self._row_logits(self.ndim - 1)
        loss = (Y == -1).where((total.squeeze(-1) - shifted.mean(-1)) * label_smoothing, loss)
    return loss._reduced(reduction)


def _gelu(self: Tensor, approximate: str = "tanh") -> Tensor:
    """By the formula with tanh; ours by the error function."""
    result: Tensor = _OURS["gelu"](self, approximate)
    return result


def _one_hot(self: Tensor, num_classes: int = -1) -> Tensor:
    """tinygrad's ``one_hot``: zeros for a class out of range, where Tinsmith's method raises if the host knows it."""
    if num_classes == -1:
        every: Tensor = _OURS["one_hot"](self)
        return every
    inside = (self >= 0) & (self < num_classes)
    result: Tensor = _OURS["one_hot"](inside.where(self, num_classes), num_classes + 1)[..., :-1]
    return result


def _windows(self: Tensor, k_: Sequence[int], stride: int | Sequence[int] = 1,
             dilation: int | Sequence[int] = 1) -> Tensor:
    """Return sliding windows over the last axes, whose contents are new last axes."""
    steps, spread = (make_tuple(n, len(k_)) for n in (stride, dilation))
    if not len(k_) == len(steps) == len(spread) <= self.ndim:
        raise ShapeError("_pool", f"windows {k_}, stride {stride}, dilation {dilation} over {self.shape}",
                         "one number, or one for each of the last axes")
    x, first = self, self.ndim - len(k_)
    for axis, (size, step, apart) in enumerate(zip(k_, steps, spread)):
        x = x.unfold(first + axis, apart * (size - 1) + 1, step)[..., ::apart]
    return x


def _broadcasting(name: str) -> Callable[..., Tensor]:
    def method(self: Tensor, Y: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Broadcast predictions and targets; Tinsmith's method requires equal shapes."""
        target = Y if isinstance(Y, Tensor) else self.const_like(Y)
        shape = np.broadcast_shapes(self.shape, target.shape)
        result: Tensor = _OURS[name](self.expand(shape), target.expand(shape), *args, **kwargs)
        return result
    return method


def _numpy(self: Tensor) -> np.ndarray[Any, Any]:
    """Return bfloat16 and 8-bit floats as float32; Tinsmith's method returns ``ml_dtypes``."""
    wide = self.dtype in (dtypes.bfloat16, *dtypes.fp8s)
    result: np.ndarray[Any, Any] = _OURS["numpy"](self.float() if wide else self)
    return result


def _pool(name: str, *order: str) -> Callable[..., Any]:
    def method(self: Tensor, kernel_size: Any = 2, stride: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Read positional arguments in tinygrad's order; Tinsmith's method also accepts PyTorch's order."""
        return _OURS[name](self, kernel_size, stride, **dict(zip(order, args)), **kwargs)
    return method


def _without(name: str, argument: str, of: Callable[..., Any] | None = None) -> Any:
    """Return a maker that takes an argument about memory, which is none before anything is realized."""
    def method(owner: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop(argument, None)
        ours = _OURS[name]
        return (of or getattr(ours, "__func__", ours))(owner, *args, **kwargs)
    return method if name.endswith("_like") else classmethod(method)


def _cut_off(name: str) -> Callable[..., Tensor]:
    def draw(cls: type[Tensor], *shape: Any, dtype: Any = None, **kwargs: Any) -> Tensor:
        """Draw integers as truncated floats; Tinsmith's method refuses integer dtypes."""
        whole = dtype is not None and to_dtype(dtype).is_int
        found: Tensor = _OURS[name].__func__(cls, *shape, dtype=None if whole else dtype, **kwargs)
        return found.cast(dtype) if whole else found
    return draw


def _uniform(cls: type[Tensor], *shape: Any, low: float = 0.0, high: float = 1.0, dtype: Any = None,
             **kwargs: Any) -> Tensor:
    """Draw integers as truncated floats from 0 on, plus ``low``; Tinsmith's refuses integer dtypes."""
    ours = _OURS["uniform"].__func__
    if dtype is None or not to_dtype(dtype).is_int:
        result: Tensor = ours(cls, *shape, low=low, high=high, dtype=dtype, **kwargs)
        return result
    found: Tensor = ours(cls, *shape, low=0.0, high=high - low, **kwargs).cast(dtype)
    return found + low


def _alu(self: Tensor, op: Any, *src: Tensor) -> Tensor:
    return self._new(self.uop.alu(op, *(t.uop for t in src)))


def _const(b: Any, dtype: Any = None) -> Tensor:
    return Tensor.full((), b, dtype, requires_grad=False)


def _missing(name: str, instead: str) -> Callable[..., Any]:
    """Return a method that raises ArgumentError with the replacement ``instead``, for a name that only tinygrad has."""
    def method(*args: Any, **kwargs: Any) -> Any:
        raise ArgumentError(name, "exists only in tinygrad (docs/api.md lists its names)", instead)
    return method


def _named(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method as its errors call it."""
    method.__name__ = name
    return guided(method)

# Methods that only tinygrad has, in terms of ours.
_ADDED: Final[dict[str, Any]] = {
    "alu": _alu, "_pool": _windows, "_check_gradient": lambda self: None,  # integers may have requires_grad=True there
    "const": staticmethod(_const), "invalids": classmethod(lambda cls, *a, **k: cls.empty(*a, **k)),
    "image_dot": Tensor.dot, "image_conv2d": Tensor.conv2d, "schedule_linear": Tensor.schedule,
    "usum": lambda self, *others: functools.reduce(Tensor.add, others, self),
    "uprod": lambda self, *others: functools.reduce(Tensor.mul, others, self),
    "ufix": lambda self, x: x if isinstance(x, Tensor) else self.const_like(x)}

_METHODS: Final[dict[str, Callable[..., Any]]] = {
    "where": _where, "allclose": _allclose, "qr": _qr, "cummax": _extreme("cummax", Tensor.gt),
    "cummin": _extreme("cummin", Tensor.lt), "sparse_categorical_crossentropy": _sparse, "gelu": _gelu,
    "one_hot": _one_hot, "numpy": _numpy,
    **{name: _broadcasting(name) for name in ("binary_crossentropy", "binary_crossentropy_logits")},
    "max_pool2d": _pool("max_pool2d", "dilation", "padding", "ceil_mode", "return_indices"),
    "avg_pool2d": _pool("avg_pool2d", "dilation", "padding", "ceil_mode", "count_include_pad")}
_MEANT: Final[dict[str, Any]] = {
    "T": property(_t), "rand": _without("rand", "contiguous"),
    **{name: _without(name, "contiguous", _cut_off(name)) for name in ("randn", "normal")},
    "uniform": _without("uniform", "contiguous", _uniform),
    **{name: _without(name, "buffer") for name in (
        "full", "zeros", "ones", "empty", "arange", "eye", "linspace", "full_like", "zeros_like", "ones_like",
        "empty_like")},
    **{name: _named(name, method) for name, method in _METHODS.items()}}
_OURS: Final[dict[str, Any]] = {
    name: next(vars(c)[name] for c in Tensor.__mro__ if name in vars(c)) for name in _MEANT}
_ATTRIBUTES: Final[dict[type, dict[str, Any]]] = {UOp: ATTRIBUTES, ScheduledItem: {"ast": property(ast)}}
_REASONS: Final = {name: staticmethod(_missing(name, instead)) for name, instead in METHODS.items()}


def adopt() -> None:
    """Install tinygrad's versions of the methods and of the rules for making tensors."""
    TinygradRules.on = True
    for owner, added in {Tensor: {**_MEANT, **_ADDED, **_REASONS}, **_ATTRIBUTES}.items():
        for name, method in added.items():
            setattr(owner, name, method)


def drop() -> None:
    """Restore Tinsmith's methods and rules."""
    TinygradRules.on = False
    for owner, added in {Tensor: {**_MEANT, **_ADDED, **_REASONS}, **_ATTRIBUTES}.items():
        for name, method in added.items():
            if vars(owner).get(name) is method:
                delattr(owner, name)


class NotBuiltError(ImportError):
    """A name of tinygrad's that Tinsmith does not have, or does not have yet."""


def missing(module: str, name: str) -> NotBuiltError:
    """Return the error for an unknown name, with the closest known name or the replacement."""
    close = nearest(name, {*MODULES.get(module, ()), *_below(module)} - {name}, least=0.8)
    meant = f"did you mean {close}? Or " if close else ""
    reason = REASONS.get(name) or f"Tinsmith has no such name; {meant}for what {module} has: {place(module)}"
    return NotBuiltError(f"cannot import {name!r} from {module!r}: {reason}. docs/rosetta.md says what tinygrad's "
                         "names are here", name=module)


def _below(module: str) -> list[str]:
    """Return the modules right below one."""
    parts = (m.rpartition(".") for m in (*MODULES, *PLACES))
    return sorted({last for parent, _, last in parts if parent == module})


def _anywhere(name: str) -> str:
    """Return the table entry of a name in any module, if all agree ("" otherwise): tinygrad moved names."""
    places = {table[name] for table in MODULES.values() if name in table}
    return places.pop() if len(places) == 1 else ""


class CompatModule(ModuleType):
    """A module whose names are looked up in its table when they are first used."""

    def __getattr__(self, name: str) -> Any:
        inside = f"{self.__name__}.{name}"
        found = MODULES.get(self.__name__, {}).get(name)
        if found is None and (inside in MODULES or inside in PLACES):
            return importlib.import_module(inside)
        if found is None and name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        found = found or _anywhere(name)
        if not found:
            raise missing(self.__name__, name)
        module, _, attribute = found.partition(":")
        try:
            owner, _, key = attribute.partition(".")
            value = getattr(importlib.import_module(module), owner)
            value = value[key] if key else value
        except (AttributeError, ModuleNotFoundError):
            raise missing(self.__name__, name) from None
        setattr(self, name, value)
        return value

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function of the module's name: ``tinygrad.function`` is both a module and a function."""
        return getattr(self, self.__name__.rpartition(".")[2])(*args, **kwargs)

    def __dir__(self) -> list[str]:
        return sorted({*MODULES.get(self.__name__, ()), *_below(self.__name__)})


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """The import hook that finds ``tinygrad`` and its submodules in the tables."""

    def find_spec(self, fullname: str, path: Sequence[str] | None = None,
                  target: ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] != "tinygrad":
            return None
        if fullname not in MODULES and fullname not in PLACES:
            parent, _, last = fullname.rpartition(".")
            raise missing(parent, last)
        return importlib.machinery.ModuleSpec(fullname, self, origin="tinsmith.compat", is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return CompatModule(spec.name, f"{spec.name} as tinsmith.compat.module_table maps it.")

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__all__"] = [n for n in MODULES.get(module.__name__, ()) if n not in REASONS and n[0] != "_"]

_finder = Finder()


def install() -> None:
    """Make ``import tinygrad`` load Tinsmith from now on, and map the tutorials' device names to ours (``ALIAS``)."""
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    _forget()
    adopt()
    tell_unread()
    from_environment()
    named = {part.partition("=")[0] for part in settings.ALIAS.upper().split(",")}
    more = [f"{old}={new}" for old, new in DEVICES.items() if old not in named]
    settings.ALIAS = ",".join([*filter(None, [settings.ALIAS]), *more])
    os.environ["ALIAS"] = settings.ALIAS  # other threads and child processes read it there
    chosen = next((name for name in DEVICE_VARIABLES if os.environ.get(name) == "1"), None)
    if chosen is not None and not settings.DEV:
        settings.DEV = os.environ["DEV"] = chosen


def uninstall() -> None:
    """Undo ``install`` for ``import tinygrad``; the mapping of device names stays."""
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
        drop()
    _forget()


def _forget() -> None:
    for name in [n for n in sys.modules if n.partition(".")[0] == "tinygrad"]:
        del sys.modules[name]
