"""The simulator: memory, and programs translated into Python functions over NumPy arrays.

A program is translated once, when it is loaded: a loop becomes a ``for``, an instruction on vectors one statement. What
each instruction does is written in ``_VECTOR`` and ``_SCALAR``; this is the machine's manual.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import ml_dtypes
import numpy as np

from anvil.assembler import instructions
from anvil.isa import FORMS, HEADER, MAGIC, TILE, Instruction
from tinsmith.core.errors import KernelError

Array = np.ndarray[Any, Any]
NUMPY: Final[dict[str, np.dtype[Any]]] = {
    "bool": np.dtype(np.bool_), "f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32), "f64": np.dtype(np.float64),
    **{f"{kind[0]}{bits}": np.dtype(f"{kind}{bits}") for kind in ("int", "uint") for bits in (8, 16, 32, 64)}}
SCRATCH_BYTES: Final = 4 << 20


class Machine:
    """An Anvil machine: its memory, the first bytes of which are the scratchpad.

    Args:
        memory_bytes: size of its memory.
    """

    def __init__(self, memory_bytes: int = 1 << 30) -> None:
        self.bytes: Array = np.zeros(memory_bytes, np.uint8)
        self.elements = {name: self.bytes.view(dtype) for name, dtype in NUMPY.items()}

    def where(self, kind: str, address: int, count: int) -> slice:
        """Return the elements from an address on.

        Raises:
            KernelError: if the address is outside the memory or no multiple of the element's size.
        """
        size = NUMPY[kind].itemsize
        first, rest = divmod(address, size)
        if rest or first < 0 or first + count > len(self.elements[kind]):
            raise KernelError("ANVIL", f"fault: {count} elements of {kind} at address {address}", "report it")
        return slice(first, first + count)

    def load(self, kind: str, address: int, count: int) -> Array:
        found: Array = self.elements[kind][self.where(kind, address, count)].copy()
        return found

    def store(self, kind: str, address: int, values: Array) -> None:
        self.elements[kind][self.where(kind, address, len(values))] = values

    def load_masked(self, kind: str, address: int, mask: Array) -> Array:
        """Load the elements whose mask is set; others are 0 and not accessed, so they cannot fault."""
        held = np.flatnonzero(mask)
        out = np.zeros(len(mask), NUMPY[kind])
        if held.size:
            first, last = int(held[0]), int(held[-1]) + 1
            place = self.where(kind, address + first * NUMPY[kind].itemsize, last - first)
            np.copyto(out[first:last], self.elements[kind][place], where=mask[first:last])
        return out

    def store_masked(self, kind: str, address: int, mask: Array, values: Array) -> None:
        held = np.flatnonzero(mask)
        if held.size:
            first, last = int(held[0]), int(held[-1]) + 1
            place = self.where(kind, address + first * NUMPY[kind].itemsize, last - first)
            np.copyto(self.elements[kind][place], values[first:last], where=mask[first:last])

    def _places(self, kind: str, address: int, index: Array, mask: Array) -> Array:
        places = address // NUMPY[kind].itemsize + index[mask]
        if places.size:
            self.where(kind, int(places.min()) * NUMPY[kind].itemsize, 1)
            self.where(kind, int(places.max()) * NUMPY[kind].itemsize, 1)
        return places

    def gather(self, kind: str, address: int, index: Array, mask: Array) -> Array:
        out = np.zeros(len(index), NUMPY[kind])
        out[mask] = self.elements[kind][self._places(kind, address, index, mask)]
        return out

    def scatter(self, kind: str, address: int, index: Array, mask: Array, values: Array) -> None:
        self.elements[kind][self._places(kind, address, index, mask)] = values[mask]

    def tile(self, address: int, pitch: int) -> Array:
        """Return a tile of memory as a view: rows are ``pitch`` bytes apart."""
        self.where("f32", address, TILE)
        self.where("f32", address + (TILE - 1) * pitch, TILE)
        return np.ndarray((TILE, TILE), np.float32, self.bytes.data, address, (pitch, 4))


# *** what instructions do ***


def floor_div(x: Array, y: Array) -> Array:
    """Return the quotient rounded down; 0 if the divisor is 0."""
    return np.where(y == 0, 0, x // np.where(y == 0, 1, y)).astype(x.dtype)


def floor_mod(x: Array, y: Array) -> Array:
    """Return the remainder with the sign of the divisor; 0 if that is 0."""
    return np.where(y == 0, 0, x % np.where(y == 0, 1, y)).astype(x.dtype)


def shift(x: Array, y: Array, left: bool) -> Array:
    """Return the shifted value; 0 (or all sign bits, to the right) if the distance exceeds the word."""
    bits = x.dtype.itemsize * 8
    inside = (y >= 0) & (y < bits)
    safe = np.where(inside, y, 0).astype(x.dtype)
    moved = x << safe if left else x >> safe
    signs = np.zeros_like(x) if left or x.dtype.kind == "u" else np.where(x < 0, -1, 0).astype(x.dtype)
    return np.where(inside, moved, signs)


def convert(x: Array, kind: str) -> Array:
    """Convert values: floats truncate and saturate to integers, NaN gives 0; integers wrap."""
    dtype = NUMPY[kind]
    if x.dtype.kind in "iub" or kind.startswith(("f", "b")):
        if kind == "bf16" and x.dtype == np.float64:
            x = x.astype(np.float32)
        return x.astype(dtype)
    wide, limits = np.trunc(x.astype(np.float64)), np.iinfo(dtype)
    inside = (wide > float(limits.min)) & (wide < float(limits.max))
    most, least, none = (np.array(n, dtype) for n in (limits.max, limits.min, 0))
    edge = np.where(wide >= float(limits.max), most, np.where(wide < 0, least, none))
    return np.where(inside, np.where(inside, wide, 0).astype(dtype), edge).astype(dtype)


def spread(value: int, kind: str, lanes: int) -> Array:
    return np.full(lanes, np.int64(value)).astype(NUMPY[kind])


def take(x: Array) -> int:
    return int(x[0] if x.dtype.kind in "iub" else convert(x[:1], "i64")[0])


_VECTOR: Final = {
    "mov": "{1}", "splat": "np.repeat({1}[:1], {lanes})", "repeat": "np.tile({1}, {lanes} // len({1}))",
    "spread": "spread({1}, {type!r}, {lanes})",
    "add": "{1} + {2}", "sub": "{1} - {2}", "mul": "{1} * {2}", "div": "{1} / {2}", "idiv": "floor_div({1}, {2})",
    "mod": "floor_mod({1}, {2})", "fmod": "np.fmod({1}, {2})", "max": "np.maximum({1}, {2})",
    "min": "np.minimum({1}, {2})", "and": "{1} & {2}", "or": "{1} | {2}", "xor": "{1} ^ {2}",
    "shl": "shift({1}, {2}, True)", "shr": "shift({1}, {2}, False)",
    "neg": "-{1}", "recip": "1 / {1}", "sqrt": "np.sqrt({1})", "trunc": "np.trunc({1})",
    "lt": "{1} < {2}", "eq": "{1} == {2}", "ne": "{1} != {2}", "where": "np.where({1}, {2}, {3})",
    "muladd": "{1} * {2} + {3}", "convert": "convert({1}, {type!r})", "bits": "{1}.view(NUMPY[{type!r}])",
    "load": "load({type!r}, {1} + {constant}, {lanes})", "gather": "gather({type!r}, {1}, {2}, {3})",
    "loadm": "load_masked({type!r}, {1} + {constant}, {2})",
    "tload": "tile({1}, {constant}).copy()", "tzero": "np.zeros((TILE, TILE), np.float32)",
}
_SCALAR: Final = {
    "sconst": "{constant}", "sarg": "args[{constant}]", "sscratch": "{constant}", "smov": "{1}", "sneg": "-{1}",
    "sadd": "{1} + {2}", "ssub": "{1} - {2}", "smul": "{1} * {2}", "sdiv": "{1} // {2} if {2} else 0",
    "smod": "{1} % {2} if {2} else 0", "smax": "max({1}, {2})", "smin": "min({1}, {2})", "sand": "{1} & {2}",
    "sor": "{1} | {2}", "sxor": "{1} ^ {2}", "slt": "{1} < {2}", "seq": "{1} == {2}", "sne": "{1} != {2}",
    "ssel": "{2} if {1} else {3}", "take": "take({1})",
}
_EFFECTS: Final = {
    "store": "store({type!r}, {0} + {constant}, {1})", "scatter": "scatter({type!r}, {0}, {1}, {2}, {3})",
    "storem": "store_masked({type!r}, {0} + {constant}, {1}, {2})",
    "tstore": "tile({0}, {constant})[:] = {1}", "tmul": "{0} += {1} @ {2}",
}
_NAMES: Final = {f.__name__: f for f in (floor_div, floor_mod, shift, convert, spread, take)} | {
    "np": np, "NUMPY": NUMPY, "TILE": TILE}


class _Translator:
    """The translator of a binary to the text of a Python function of its arguments."""

    def __init__(self, binary: bytes) -> None:
        magic, self.arguments, scratch, _ = HEADER.unpack_from(binary)
        if magic != MAGIC or scratch > SCRATCH_BYTES:
            raise KernelError("ANVIL", "this is no program for this machine", "compile it again")
        self.code = list(instructions(binary))
        self.mutable = {i.registers[0] for i in self.code if i.name == "put"}
        self.constants: dict[str, Array] = {}

    def text(self) -> str:
        lines, depth = ["def kernel(args):"], 1
        for found in self.code:
            names = [f"{kind}{number}" for kind, number in zip(FORMS[found.name].registers, found.registers)]
            depth -= found.name in ("endloop", "endif")
            lines.append("  " * depth + self.statement(found, names))
            depth += found.name in ("loop", "if")
        return "\n".join(lines)

    def statement(self, found: Instruction, names: Sequence[str]) -> str:
        fields = {"type": found.type, "lanes": found.lanes, "constant": found.constant}
        if found.name == "loop":
            return f"for {names[0]} in range({names[1]}, {names[2]}):"
        if found.name == "if":
            return f"if {names[0]}:"
        if found.name in ("endloop", "endif"):
            return "  pass"
        if found.name == "const":
            return f"{names[0]} = {self.constant(found)}{'.copy()' * (found.registers[0] in self.mutable)}"
        if found.name == "put":
            to, start = found.constant >> 16, found.constant & 0xFFFF
            return f"{names[0]}[{to}:{to + found.lanes}] = {names[1]}[{start}:{start + found.lanes}]"
        if found.name in _EFFECTS:
            return _EFFECTS[found.name].format(*names, **fields)
        value = (_VECTOR | _SCALAR)[found.name].format(*names, **fields)
        copied = found.name == "mov" and (set(found.registers) & self.mutable)
        return f"{names[0]} = {value}{'.copy()' if copied else ''}"

    def constant(self, found: Instruction) -> str:
        dtype = NUMPY[found.type]
        wide = np.array(found.constant, np.int64)
        value = wide.view(np.float64) if found.type[0] in "f" or found.type == "bf16" else wide
        name = f"c{len(self.constants)}"
        self.constants[name] = np.full(found.lanes, value.astype(dtype))
        return name


def translate(machine: Machine, binary: bytes) -> Callable[[Sequence[int]], None]:
    """Return a function that runs a program, given its arguments."""
    translator = _Translator(binary)
    text = translator.text()
    names = {**_NAMES, **translator.constants, **{
        f: getattr(machine, f) for f in (
            "load", "store", "load_masked", "store_masked", "gather", "scatter", "tile")}}
    exec(compile(text, "<anvil>", "exec"), names)
    run: Callable[[Sequence[int]], None] = names["kernel"]  # type: ignore[assignment]
    return run


def used_bytes(nbytes: int) -> int:
    """Return the size rounded up to full lines of 64 bytes."""
    return max(math.ceil(nbytes / 64), 1) * 64
