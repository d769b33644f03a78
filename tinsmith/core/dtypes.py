"""Data types: element types, their promotion lattice, and their names in C, NumPy and PyTorch.

Users meet only scalar types such as ``dtypes.float32``. Vector types, ``dtypes.float32.vec(16)``, and pointer types,
``dtypes.float32.ptr()``, occur only in linear programs.
"""
from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol

import ml_dtypes
import numpy as np

from tinsmith.core.errors import DTypeError
from tinsmith.core.suggestions import nearest, unknown

if TYPE_CHECKING:
    import numpy.typing as npt

_PythonFloat = float  # ``float`` and ``bool`` are dtypes inside the namespace class below
_PythonBool = bool
_PythonInt = int
Kind = Literal["bool", "int", "uint", "float", "void"]


@dataclass(frozen=True, eq=False)
class DType:
    """An element type. Instances are unique, so they compare by identity and hash fast.

    ``count`` > 1: a vector type with that many lanes. ``pointer``: the address of such elements.
    """

    name: str
    c_name: str
    kind: Kind
    itemsize: int
    priority: _PythonFloat
    count: int = 1
    pointer: bool = False

    def __repr__(self) -> str:
        inner = f"dtypes.{_SHORT_NAME.get(self.name, self.name)}"
        if self.count > 1:
            inner += f".vec({self.count})"
        return f"PtrDType({inner})" if self.pointer else inner

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.name, self.count, self.pointer)

    @functools.cached_property
    def scalar(self) -> DType:
        """The type of one lane: ``dtypes.float32.vec(4).scalar is dtypes.float32``."""
        return self if self.count == 1 and not self.pointer else _BY_NAME[self.name]

    def vec(self, count: int) -> DType:
        """Return the vector type of ``count`` lanes; ``vec(1)`` is the scalar type."""
        return self.scalar if count == 1 else _derived(self.name, count, False)

    def ptr(self) -> DType:
        """Return the pointer type to elements of this type."""
        return _derived(self.name, self.count, True)

    @functools.cached_property
    def is_float(self) -> bool:
        return self.kind == "float"

    @functools.cached_property
    def is_int(self) -> bool:
        """True for signed and unsigned integers (not bool)."""
        return self.kind in ("int", "uint")

    @functools.cached_property
    def is_unsigned(self) -> bool:
        return self.kind in ("uint", "bool")

    @functools.cached_property
    def is_bool(self) -> bool:
        return self.kind == "bool"

    @functools.cached_property
    def bits(self) -> int:
        return 8 * self.itemsize

    @property
    def bitsize(self) -> int:
        """``bits``, under tinygrad's name."""
        return self.bits

    @functools.cached_property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype with the same bits (``ml_dtypes`` supplies bfloat16 and fp8)."""
        return _NUMPY[self.name]

    @functools.cached_property
    def min(self) -> int | float | bool:
        """Least value; ``-inf`` for floats."""
        if self.is_float:
            return float("-inf")
        return False if self.is_bool else (0 if self.kind == "uint" else -(1 << (self.bits - 1)))

    @functools.cached_property
    def max(self) -> int | float | bool:
        """Greatest value; ``inf`` for floats."""
        if self.is_float:
            return float("inf")
        return True if self.is_bool else (1 << (self.bits - (self.kind == "int"))) - 1

    def as_const(self, value: Any) -> int | float | bool:
        """Return ``value`` converted to this type, as a Python scalar (integers wrap, floats round).

        >>> dtypes.uint8.as_const(257), dtypes.float16.as_const(0.1)
        (1, 0.0999755859375)
        """
        if self.is_bool:
            return bool(value)
        if self.is_float:
            return _round_float(self, float(value))
        wrapped = int(value) & ((1 << self.bits) - 1)
        return wrapped - (1 << self.bits) if self.kind == "int" and wrapped >> (self.bits - 1) else wrapped


def _round_float(dtype: DType, value: float) -> float:
    if dtype.itemsize == 8:
        return value
    if dtype.name == "tf32":
        return float(rounded_to_tf32(np.array(ctypes.c_float(value).value, np.float32)))
    if dtype.itemsize == 4:
        return ctypes.c_float(value).value
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.float64(value).astype(dtype.numpy).astype(np.float64))


def rounded_to_tf32(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Round float32 to 10 explicit significand bits, to nearest even (PTX ISA, ``cvt.rn.tf32.f32``).

    >>> rounded_to_tf32(np.float32([1 + 2**-12, 1 + 2**-11, 1 + 3 * 2**-11])).tolist()
    [1.0, 1.0, 1.001953125]
    """
    bits = x.view(np.uint32)
    bits = (bits + np.uint32(0xFFF) + (bits >> 13 & 1)) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(x), bits.view(np.float32), x)


_SCALARS: Final = (
    DType("void", "void", "void", 0, -1),
    DType("bool", "bool", "bool", 1, 0),
    DType("int8", "signed char", "int", 1, 1),
    DType("uint8", "unsigned char", "uint", 1, 2),
    DType("int16", "short", "int", 2, 3),
    DType("uint16", "unsigned short", "uint", 2, 4),
    DType("int32", "int", "int", 4, 5),
    DType("uint32", "unsigned int", "uint", 4, 6),
    DType("int64", "long", "int", 8, 7),
    DType("uint64", "unsigned long", "uint", 8, 8),
    DType("index", "int", "int", 8, 7),
    DType("fp8e4m3", "unsigned char", "float", 1, 8.2),
    DType("fp8e5m2", "unsigned char", "float", 1, 8.3),
    DType("fp8e4m3fnuz", "unsigned char", "float", 1, 8.4),
    DType("fp8e5m2fnuz", "unsigned char", "float", 1, 8.5),
    DType("float16", "half", "float", 2, 9),
    DType("bfloat16", "__bf16", "float", 2, 10),
    DType("tf32", "float", "float", 4, 10.5),
    DType("float32", "float", "float", 4, 11),
    DType("float64", "double", "float", 8, 12),
)
_BY_NAME: Final = {d.name: d for d in _SCALARS}
# ``index``: loop counters and addresses; the width is the device's choice; printed as ``int``, as in the tutorials.
# ``tf32``: operand type of some matrix units: float32 with 10 explicit significand bits. A CAST to it rounds.
_INTERNAL: Final = ("void", "index", "tf32")
_SHORT_NAME: Final = {
    "index": "int",
    "int8": "char", "uint8": "uchar", "int16": "short", "uint16": "ushort", "int32": "int", "uint32": "uint",
    "int64": "long", "uint64": "ulong", "float16": "half", "float32": "float", "float64": "double",
}
# Types that NumPy lacks; supplied by ml_dtypes.
_ML_DTYPES: Final = {"bfloat16": "bfloat16", "fp8e4m3": "float8_e4m3fn", "fp8e5m2": "float8_e5m2",
                     "fp8e4m3fnuz": "float8_e4m3fnuz", "fp8e5m2fnuz": "float8_e5m2fnuz"}
_NUMPY: Final[dict[str, np.dtype[Any]]] = {
    d.name: np.dtype(getattr(ml_dtypes, _ML_DTYPES[d.name]) if d.name in _ML_DTYPES else d.name)
    for d in _SCALARS
    if d.name not in _INTERNAL
} | {"index": np.dtype("int64"), "tf32": np.dtype("float32")}
_OF_NUMPY: Final = {kind.name: name for name, kind in _NUMPY.items() if name not in _INTERNAL}


class FloatInfo(NamedTuple):
    """A float format: field widths in bits, and the derived limits.

    >>> exponent, mantissa = dtypes.finfo(dtypes.float16)[:2]
    >>> exponent, mantissa, dtypes.finfo(dtypes.float16).max
    (5, 10, 65504.0)
    """

    exponent: int
    mantissa: int
    bits: int
    max: _PythonFloat
    eps: _PythonFloat
    tiny: _PythonFloat

    @property
    def min(self) -> _PythonFloat:
        """The least finite number."""
        return -self.max


@functools.cache
def _derived(name: str, count: int, pointer: bool) -> DType:
    d = _BY_NAME[name]
    return DType(d.name, d.c_name, d.kind, d.itemsize, d.priority, count, pointer)


def _restore(name: str, count: int, pointer: bool) -> DType:
    return _BY_NAME[name] if count == 1 and not pointer else _derived(name, count, pointer)


class _DTypesMeta(type):
    def __getattr__(cls, name: str) -> DType:
        raise unknown("dtypes", name, cls.names())

    def __setattr__(cls, name: str, value: Any) -> None:
        super().__setattr__(name, to_dtype(value) if name in ("default_float", "default_int") else value)

    def names(cls) -> list[str]:
        return [d.name for d in _SCALARS if d.name not in _INTERNAL]


class dtypes(metaclass=_DTypesMeta):
    """The namespace of element types.

    >>> dtypes.float32, dtypes.int8.max
    (dtypes.float, 127)
    """

    void = _BY_NAME["void"]
    index = _BY_NAME["index"]
    tf32 = _BY_NAME["tf32"]
    bool = _BY_NAME["bool"]
    int8 = char = _BY_NAME["int8"]
    uint8 = uchar = _BY_NAME["uint8"]
    int16 = short = _BY_NAME["int16"]
    uint16 = ushort = _BY_NAME["uint16"]
    int32 = int = _BY_NAME["int32"]
    uint32 = uint = _BY_NAME["uint32"]
    int64 = long = _BY_NAME["int64"]
    uint64 = ulong = _BY_NAME["uint64"]
    float16 = half = _BY_NAME["float16"]
    bfloat16 = _BY_NAME["bfloat16"]
    float32 = float = _BY_NAME["float32"]
    float64 = double = _BY_NAME["float64"]

    default_float = float32
    default_int = int32

    floats = (float16, bfloat16, float32, float64)
    fp8e4m3 = _BY_NAME["fp8e4m3"]
    fp8e5m2 = _BY_NAME["fp8e5m2"]
    fp8e4m3fnuz = _BY_NAME["fp8e4m3fnuz"]
    fp8e5m2fnuz = _BY_NAME["fp8e5m2fnuz"]
    fp8_ocp = (fp8e4m3, fp8e5m2)
    fp8_fnuz = (fp8e4m3fnuz, fp8e5m2fnuz)
    fp8s = (*fp8_ocp, *fp8_fnuz)

    sints = (int8, int16, int32, int64)
    uints = (uint8, uint16, uint32, uint64)
    int8s, int16s, int32s, int64s = (int8, uint8), (int16, uint16), (int32, uint32), (int64, uint64)
    ints = (int8, uint8, int16, uint16, int32, uint32, int64, uint64)
    all = (bool, *ints, *floats)

    @staticmethod
    def is_float(dtype: DTypeLike) -> _PythonBool:
        """Return True if ``dtype`` is a float: ``dtype.is_float``."""
        return to_dtype(dtype).is_float

    @staticmethod
    def is_int(dtype: DTypeLike) -> _PythonBool:
        """Return True if ``dtype`` is a signed or unsigned integer, not bool: ``dtype.is_int``."""
        return to_dtype(dtype).is_int

    @staticmethod
    def is_unsigned(dtype: DTypeLike) -> _PythonBool:
        """Return True if ``dtype`` is an unsigned integer."""
        return to_dtype(dtype).kind == "uint"

    @staticmethod
    def is_bool(dtype: DTypeLike) -> _PythonBool:
        """Return True if ``dtype`` is bool: ``dtype.is_bool``."""
        return to_dtype(dtype).is_bool

    @staticmethod
    def finfo(dtype: DTypeLike) -> FloatInfo:
        """Return the widths and limits of a float format, as NumPy's and PyTorch's ``finfo`` do.

        Raises:
            DTypeError: if ``dtype`` is not a float.
        """
        dtype = to_dtype(dtype)
        if not dtype.is_float:
            raise DTypeError("finfo", f"{dtype!r} is no float", "dtype.min and dtype.max")
        info: Any = ml_dtypes.finfo
        found = info(dtype.numpy)
        return FloatInfo(dtype.bits - 1 - found.nmant, found.nmant, dtype.bits, _PythonFloat(found.max),
                         _PythonFloat(found.eps), _PythonFloat(found.tiny))

    @staticmethod
    def from_numpy(dtype: npt.DTypeLike) -> DType:
        """Return the tinsmith dtype of a NumPy dtype.

        Raises:
            DTypeError: if the NumPy type has no counterpart (complex, strings, objects).
        """
        name = np.dtype(dtype).name
        if name not in _OF_NUMPY:
            raise DTypeError("from_numpy", f"NumPy dtype {name!r} has no counterpart", "convert it with .astype first")
        return _BY_NAME[_OF_NUMPY[name]]

    @staticmethod
    def of(value: Any) -> DType:
        """Return the dtype of a Python scalar: bool, the default float, or the default int (a wider one if the value
        needs it).

        Raises:
            DTypeError: if no dtype holds the integer.
        """
        if value is True or value is False or isinstance(value, np.bool_):
            return dtypes.bool
        if isinstance(value, (np.floating, _PythonFloat)):
            return dtypes.default_float
        kinds = (dtypes.default_int, dtypes.int64, dtypes.uint64)
        found = next((d for d in kinds if d.min <= value <= d.max), None)
        if found is None:
            raise DTypeError("Tensor", f"no dtype holds the integer {value}", "a float, or smaller numbers")
        return found

    @staticmethod
    def from_py(value: Any) -> DType:
        """Return the dtype of a tensor made from a Python scalar or from nested lists of them.

        >>> dtypes.from_py(2), dtypes.from_py([1, 2.5]), dtypes.from_py(True)
        (dtypes.int, dtypes.float, dtypes.bool)
        """
        if isinstance(value, (list, tuple)):
            return promote(*map(dtypes.from_py, value)) if value else dtypes.default_float
        return dtypes.of(value)


class _HasItemsize(Protocol):
    """The protocol of other libraries' dtypes, such as PyTorch's ``torch.bfloat16``."""

    @property
    def itemsize(self) -> _PythonInt: ...


DTypeLike = DType | str | type | _HasItemsize  # what ``to_dtype`` accepts


def to_dtype(value: DTypeLike) -> DType:
    """Return the DType for a DType, a name, a dtype or scalar type of NumPy, PyTorch or JAX, or Python's ``bool int
    float``.

    Python's ``float`` means the default float and ``int`` the default int, as for Python numbers in a tensor.

    >>> to_dtype("float16"), to_dtype(np.uint8), to_dtype(np.dtype("<f8")), to_dtype(float)
    (dtypes.half, dtypes.uchar, dtypes.double, dtypes.float)

    Raises:
        DTypeError: if there is no such dtype.
    """
    if isinstance(value, DType):
        return value
    if isinstance(value, type) and value in _OF_PYTHON:
        return _OF_PYTHON[value]()
    named = isinstance(value, str) or type(value).__module__ == "torch"
    name = str(value).removeprefix("dtypes.").removeprefix("torch.") if named else _numpy_name(value)
    found = getattr(dtypes, name, None) if name != "tf32" else None  # internal: no tensor has this dtype
    if not isinstance(found, DType):
        found = _BY_NAME.get(_OF_NUMPY.get(name) or _OF_NUMPY.get(_numpy_name(name), ""))
    if found is None:
        close = nearest(name, dtypes.names())
        raise DTypeError("dtypes", f"there is no dtype {value!r}",
                         f"did you mean dtypes.{close}?" if close else f"known: {', '.join(dtypes.names())}")
    return found


_OF_PYTHON: Final = {bool: lambda: dtypes.bool, int: lambda: dtypes.default_int, float: lambda: dtypes.default_float}


def _numpy_name(value: Any) -> str:
    """Return NumPy's name of a dtype that NumPy accepts; "" for anything else."""
    try:
        return "" if value is None else np.dtype(value).name
    except (TypeError, ValueError):
        return ""


# Promotion lattice (JAX's, without weak types): type → the types directly above it.
_LEAST_FLOATS: Final = ("fp8e4m3", "fp8e5m2", "fp8e4m3fnuz", "fp8e5m2fnuz", "float16", "bfloat16")
_ABOVE: Final[dict[str, tuple[str, ...]]] = {
    "bool": ("int8", "uint8"), "int8": ("int16",), "int16": ("int32",), "int32": ("int64",),
    "int64": _LEAST_FLOATS, "uint8": ("int16", "uint16"), "uint16": ("int32", "uint32"),
    "uint32": ("int64", "uint64"), "uint64": _LEAST_FLOATS,
    "fp8e4m3": ("float16", "bfloat16"), "fp8e5m2": ("float16", "bfloat16"), "fp8e4m3fnuz": ("float16", "bfloat16"),
    "fp8e5m2fnuz": ("float16", "bfloat16"), "float16": ("float32",),
    "bfloat16": ("float32",), "float32": ("float64",), "float64": (),
}


@functools.cache
def _all_above(name: str) -> frozenset[str]:
    return frozenset({name}).union(*(_all_above(n) for n in _ABOVE[name]))


def promote(*types: DType) -> DType:
    """Return the least upper bound of ``types`` in the promotion lattice (JAX's, without weak types).

    Integers without a common integer type, int64 and uint64, promote to the default float.

    >>> promote(dtypes.int8, dtypes.uint8), promote(dtypes.int64, dtypes.float16)
    (dtypes.short, dtypes.half)
    >>> promote(dtypes.int64, dtypes.uint64)
    dtypes.float
    """
    found = _promote(*types)
    return dtypes.default_float if found.is_float and not any(t.is_float for t in types) else found


@functools.cache
def _promote(*types: DType) -> DType:
    common = frozenset.intersection(*(_all_above(t.name) for t in types))
    return min((_BY_NAME[n] for n in common), key=lambda d: d.priority)


@functools.cache
def sum_dtype(dtype: DType) -> DType:
    """Return the dtype of a sum over ``dtype``: bool and integers narrower than 32 bits widen to 32, others stay."""
    if dtype.is_bool:
        return dtypes.int32
    if dtype.is_int and dtype.itemsize < 4:
        return dtypes.uint32 if dtype.kind == "uint" else dtypes.int32
    return dtype
