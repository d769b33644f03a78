"""The device of Anvil: its memory, renderer, assembler and programs."""
from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from anvil.assembler import Assembler
from anvil.isa import TILE
from anvil.machine import SCRATCH_BYTES, Machine, translate, used_bytes
from anvil.renderer import AnvilRenderer
from tinsmith.backend.device import Allocator, Compiled, Program
from tinsmith.codegen.launch import Launch
from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import OutOfMemoryError
from tinsmith.ir.matrix_unit import Fragment, MatrixUnit
from tinsmith.target.target import Target

if TYPE_CHECKING:
    from tinsmith.backend.memory import Buffer

_ROWS = Fragment(((TILE, 0, 1), (TILE, 1, 0)), whole=True)  # row by row, the elements of a row side by side
_F32 = dtypes.float32
UNIT = MatrixUnit("anvil_f32", "anvil", TILE, TILE, TILE, _F32, _F32, _F32, 1, _ROWS, _ROWS, _ROWS, "tmul",
                  accumulators=4, rate=2.0 * TILE**3 / 4)  # a product takes 4 cycles
TARGET = Target("anvil", vector_bytes=128, vector_registers=64, local_bytes=SCRATCH_BYTES, l1_bytes=SCRATCH_BYTES,
                l2_bytes=SCRATCH_BYTES, units=(UNIT,))


class AnvilAllocator(Allocator):
    """A first-fit allocator of the machine's memory; a block's handle is its address."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.free_blocks = [(SCRATCH_BYTES, len(machine.bytes) - SCRATCH_BYTES)]
        self.sizes: dict[int, int] = {}

    def alloc(self, nbytes: int) -> int:
        wanted = used_bytes(nbytes)
        for i, (address, size) in enumerate(self.free_blocks):
            if size >= wanted:
                rest = [(address + wanted, size - wanted)] if size > wanted else []
                self.free_blocks[i : i + 1] = rest
                self.sizes[address] = wanted
                return address
        left = sum(size for _, size in self.free_blocks)
        raise OutOfMemoryError("ANVIL", f"{nbytes} bytes requested, {left} left", "free tensors, or a smaller batch")

    def free(self, opaque: int) -> None:
        blocks = sorted([*self.free_blocks, (opaque, self.sizes.pop(opaque))])
        joined = blocks[:1]
        for address, size in blocks[1:]:
            before, length = joined[-1]
            if before + length == address:
                joined[-1] = (before, length + size)
            else:
                joined.append((address, size))
        self.free_blocks = joined

    def copyin(self, opaque: int, offset: int, source: memoryview) -> None:
        at = opaque + offset
        self.machine.bytes[at : at + source.nbytes] = np.frombuffer(source, np.uint8)

    def copyout(self, target: memoryview, opaque: int, offset: int) -> None:
        at = opaque + offset
        np.frombuffer(target, np.uint8)[:] = self.machine.bytes[at : at + target.nbytes]


class AnvilProgram(Program):
    """A program loaded into a machine."""

    def __init__(self, machine: Machine, kernel: Launch, binary: bytes) -> None:
        super().__init__(kernel, binary)
        self.run = translate(machine, binary)

    def __call__(self, buffers: Sequence[Buffer], variables: Sequence[int] = ()) -> None:
        with np.errstate(all="ignore"):
            self.run([*(b.opaque + b.offset for b in buffers), *variables])


class AnvilDevice(Compiled):
    """``Device["ANVIL"]``, ``Device["ANVIL:1"]``, …: each has a machine of its own."""

    def __init__(self, device: str) -> None:
        machine = Machine()
        super().__init__(device, AnvilAllocator(machine), Assembler(), functools.partial(AnvilProgram, machine),
                         AnvilRenderer(TARGET))
