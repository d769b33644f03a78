"""The assembler and disassembler of Anvil, in place of a vendor's compiler."""
from __future__ import annotations

import re
from collections.abc import Iterator

from anvil.isa import FORMS, HEADER, MAGIC, REGISTERS, TYPES, WORD_BYTES, Instruction
from tinsmith.backend.device import Compiler
from tinsmith.core.counters import GlobalCounters
from tinsmith.core.disk_cache import cache_get, cache_key, cache_put
from tinsmith.core.errors import CompileError

_OPENS = {"loop": "endloop", "if": "endif"}
_HEAD = re.compile(r"(\w+)(?:\.(\w+?)x(\d+))?$")


class Assembler(Compiler):
    """Anvil assembly → binary, cached on disk."""

    def key(self) -> str:
        """Return the part of the cache key that does not depend on the source: the instruction set."""
        return cache_key("anvil", *(f"{name} {form}" for name, form in FORMS.items()))

    def compile(self, source: str) -> bytes:
        key = cache_key(self.key(), source)
        found = cache_get("anvil", key)
        if found is None:
            GlobalCounters.compile_count += 1
            found = assemble(source)
            cache_put("anvil", key, found)
        return found

    def disassemble(self, source: str) -> str:
        return disassemble(assemble(source))


def assemble(source: str) -> bytes:
    """Return the binary of a kernel.

    >>> binary = assemble("sarg s0, 0\\nconst.f32x4 v0, 0\\nstore.f32x4 s0, v0, 0")
    >>> len(binary), binary[:4]
    (76, b'ANV1')

    Raises:
        CompileError: naming the line that is wrong.
    """
    arguments = scratch = 0
    words: list[bytes] = []
    open_blocks: list[str] = []
    for number, line in enumerate(source.splitlines(), 1):
        text = line.partition(";")[0].strip()
        if text.startswith(".args"):
            arguments = int(text.split()[1])
        elif text.startswith(".scratch"):
            scratch = int(text.split()[1])
        elif text:
            try:
                found = parse(text)
            except ValueError as error:
                raise CompileError("assemble", f"line {number}, {text!r}: {error}", "see anvil/isa.py") from None
            if found.name in _OPENS:
                open_blocks.append(_OPENS[found.name])
            elif found.name in _OPENS.values() and (not open_blocks or open_blocks.pop() != found.name):
                raise CompileError("assemble", f"line {number}: {found.name} closes nothing", "see anvil/isa.py")
            words.append(found.encode())
    if open_blocks:
        raise CompileError("assemble", f"{open_blocks[-1]} is missing at the end", "see anvil/isa.py")
    return HEADER.pack(MAGIC, arguments, scratch, len(words)) + b"".join(words)


def parse(text: str) -> Instruction:
    """Return the instruction of one line.

    >>> str(parse("add.f32x8 v2, v0, v1"))
    'add.f32x8       v2, v0, v1'
    """
    head, _, rest = text.partition(" ")
    found = _HEAD.match(head)
    if found is None or found[1] not in FORMS:
        raise ValueError("there is no such instruction")
    form = FORMS[found[1]]
    if form.typed != bool(found[2]) or (form.typed and found[2] not in TYPES):
        raise ValueError(f"its type should be one of {', '.join(TYPES)}" if form.typed else "it has no type")
    operands = [o.strip() for o in rest.split(",")] if rest.strip() else []
    if len(operands) != len(form.registers) + form.constant:
        raise ValueError(f"it takes {len(form.registers)} registers{' and a constant' * form.constant}")
    registers = []
    for kind, operand in zip(form.registers, operands):
        if not re.fullmatch(rf"{kind}\d+", operand) or int(operand[1:]) >= REGISTERS[kind]:
            raise ValueError(f"{operand!r} should be a register {kind}0 to {kind}{REGISTERS[kind] - 1}")
        registers.append(int(operand[1:]))
    constant = int(operands[-1]) if form.constant else 0
    return Instruction(found[1], found[2] or "", int(found[3] or 0), tuple(registers), constant)


def instructions(binary: bytes) -> Iterator[Instruction]:
    """Yield the instructions of a binary."""
    for at in range(HEADER.size, len(binary), WORD_BYTES):
        yield Instruction.decode(binary[at : at + WORD_BYTES])


def disassemble(binary: bytes) -> str:
    """Return a listing: the offset, the bytes and the text of every instruction."""
    lines = []
    for number, found in enumerate(instructions(binary)):
        lines.append(f"{number * WORD_BYTES:6x}: {found.encode().hex()}  {found}")
    return "\n".join(lines)
