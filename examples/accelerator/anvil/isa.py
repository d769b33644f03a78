"""The instruction set of Anvil: the text form and the 20-byte binary form of instructions.

The machine has scalar registers ``s0…`` (64-bit integers: indices, addresses, conditions), vector registers ``v0…`` (up
to 256 elements of one type) and tiles ``t0…t15`` of its matrix unit (32 rows of 32 floats). Memory is one array of
bytes; addresses are byte numbers. Loops and conditions are instructions of their own, so there are no jumps.

An instruction is written ``name.type×lanes operands``. Operands are registers, then one constant:

    loop          s3, s0, s1           s3 runs from s0 below s1, up to the matching ``endloop``
    load.f32x64   v0, s2, 16           64 floats from address s2 + 16
    muladd.f32x64 v4, v0, v1, v4       v4 = v0 * v1 + v4
"""
from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

TYPES: Final = ("bool", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "f16", "bf16", "f32", "f64")
REGISTERS: Final = {"s": 4096, "v": 4096, "t": 16}
TILE: Final = 32  # rows and columns of a tile


@dataclass(frozen=True)
class Form:
    """The format of an instruction: the kinds of its registers (target first), and True if a constant follows."""

    registers: str
    constant: bool = False
    typed: bool = True
    doc: str = ""


_ALU2 = ("add", "sub", "mul", "div", "idiv", "mod", "fmod", "max", "min", "and", "or", "xor", "shl",
         "shr")
_ALU1 = ("neg", "recip", "sqrt", "trunc")

FORMS: Final[dict[str, Form]] = {
    # control
    "loop": Form("sss", typed=False, doc="the first register runs from the second below the third"),
    "endloop": Form("", typed=False),
    "if": Form("s", typed=False, doc="up to endif, only where the register is not 0"),
    "endif": Form("", typed=False),
    # scalars
    "sconst": Form("s", True, False, "a constant"),
    "sarg": Form("s", True, False, "argument of the kernel: an address or a number"),
    "sscratch": Form("s", True, False, "an address in the scratchpad"),
    **{f"s{n}": Form("sss", typed=False) for n in (
        "add", "sub", "mul", "div", "mod", "max", "min", "and", "or", "xor", "lt", "eq", "ne")},
    "sneg": Form("ss", typed=False),
    "ssel": Form("ssss", typed=False, doc="the third where the second is not 0, else the fourth"),
    "smov": Form("ss", typed=False),
    # between the two
    "spread": Form("vs", doc="a scalar in every lane"),
    "take": Form("sv", doc="lane 0 of a vector as a scalar, saturating"),
    # vectors
    "const": Form("v", True, doc="a constant in every lane, given by its bits as a 64-bit number of the type's kind"),
    "mov": Form("vv"),
    "splat": Form("vv", doc="lane 0 in every lane"),
    "repeat": Form("vv", doc="the lanes of a vector, one after the other and again"),
    "put": Form("vv", True, doc="the second's lanes from `constant & 0xffff` on, to lane `constant >> 16`"),
    **{n: Form("vvv") for n in _ALU2},
    **{n: Form("vv") for n in _ALU1},
    "lt": Form("vvv", doc="a bool per lane"), "eq": Form("vvv"), "ne": Form("vvv"),
    "where": Form("vvvv", doc="lanes of the third where the second holds, else of the fourth"),
    "muladd": Form("vvvv", doc="second * third + fourth"),
    "convert": Form("vv", True, doc="from the type that the constant numbers; floats saturate into integers"),
    "bits": Form("vv", True, doc="the same bits, from the type that the constant numbers"),
    # memory: addresses are a scalar register plus a constant
    "load": Form("vs", True), "store": Form("sv", True),
    "loadm": Form("vsv", True, doc="0 where the mask does not hold"), "storem": Form("svv", True),
    "gather": Form("vsvv", doc="element number second[lane] from an address on, where the mask holds; else 0"),
    "scatter": Form("svvv", doc="address, element numbers, mask, values"),
    # the matrix unit: tiles of 32 rows; the pitch between rows in memory is the constant, in bytes
    "tzero": Form("t", typed=False),
    "tload": Form("ts", True, typed=False), "tstore": Form("st", True, typed=False),
    "tmul": Form("ttt", typed=False, doc="first += second · third"),
}

OPCODES: Final = {name: number for number, name in enumerate(FORMS)}
_NAMES: Final = list(FORMS)
_WORD: Final = struct.Struct("<BBH4Hq")
HEADER: Final = struct.Struct("<4sIII")  # magic, arguments, bytes of scratchpad, instructions
MAGIC: Final = b"ANV1"


@dataclass(frozen=True)
class Instruction:
    """One instruction; ``registers`` are numbers, whose kinds are given by its form."""

    name: str
    type: str = ""
    lanes: int = 0
    registers: tuple[int, ...] = ()
    constant: int = 0

    def encode(self) -> bytes:
        """Return the 20 bytes of the instruction."""
        kind = TYPES.index(self.type) if self.type else 0xFF
        return _WORD.pack(OPCODES[self.name], kind, self.lanes, *self.registers, *(4 - len(self.registers)) * (0,),
                          self.constant)

    @staticmethod
    def decode(word: bytes) -> Instruction:
        """Return the instruction encoded in 20 bytes."""
        opcode, kind, lanes, a, b, c, d, constant = _WORD.unpack(word)
        name = _NAMES[opcode]
        return Instruction(name, TYPES[kind] if kind != 0xFF else "", lanes,
                           (a, b, c, d)[: len(FORMS[name].registers)], constant)

    def __str__(self) -> str:
        form = FORMS[self.name]
        head = f"{self.name}.{self.type}x{self.lanes}" if form.typed else self.name
        operands = [f"{kind}{number}" for kind, number in zip(form.registers, self.registers)]
        return f"{head:<15} {', '.join(operands + ([str(self.constant)] if form.constant else []))}".rstrip()


WORD_BYTES: Final = _WORD.size
