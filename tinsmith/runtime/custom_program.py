"""Running hand-written UOp programs on any device."""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tinsmith.backend.device import Compiled, Device
from tinsmith.backend.memory import Buffer
from tinsmith.backend.program import Call, LaunchError
from tinsmith.codegen.compile_kernel import assemble
from tinsmith.codegen.launch import Launch
from tinsmith.codegen.render.base import launch_size
from tinsmith.codegen.render.cstyle import ReadableRenderer
from tinsmith.core.counters import Ran, report
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.errors import ArgumentError, KernelError
from tinsmith.core.lazy_import import Late
from tinsmith.core.settings import settings
from tinsmith.core.terminal import show
from tinsmith.ir import Ops, UOp
from tinsmith.ir.builder import ProgramBuilder
from tinsmith.ir.text.printer import uop_table
from tinsmith.runtime.compiled_schedule import is_loaded, load, loaded

if TYPE_CHECKING:
    from tinsmith.runtime import listing
else:
    listing = Late("tinsmith.runtime.listing")

_READABLE = ReadableRenderer()

Array = np.ndarray[Any, Any]


def source_of(program: ProgramBuilder | Sequence[UOp], device: str | None = None, name: str = "program") -> str:
    """Return the source text that ``device`` compiles; readable C if no device is given.

    >>> g = ProgramBuilder()
    >>> out, x = (g.add("DEFINE_GLOBAL", dtypes.float32, arg=(n, f"data{n}", n == 0)) for n in (0, 1))
    >>> zero, four = g.add("CONST", dtypes.int32, arg=0), g.add("CONST", dtypes.int32, arg=4)
    >>> i = g.add("LOOP", dtypes.int32, vin=(zero, four))
    >>> value = g.add("ALU", vin=(g.add("LOAD", vin=(x, i)),) * 2, arg=Ops.MUL)
    >>> store, end = g.add("STORE", vin=(out, i, value)), g.add("ENDLOOP", vin=(i,))
    >>> print(source_of(g, name="square"))
    void square(float* data0, const float* data1) {
      for (int ridx0 = 0; ridx0 < 4; ridx0++) {
        float val0 = *(data1+ridx0);
        *(data0+ridx0) = val0*val0;
      }
    }
    <BLANKLINE>
    """
    if device is None:
        return _READABLE.render(name, _lines(program))
    return _assembled(name, _lines(program), Device[device])[1]


def run_program(program: ProgramBuilder | Sequence[UOp], *arrays: Array, device: str | None = None,
                name: str = "program", variables: Mapping[str, int] | None = None) -> None:
    """Compile a program and run it once, in place, on ``arrays``: one NumPy array per buffer argument.

    >>> g = ProgramBuilder()
    >>> out, n = (g.add("DEFINE_GLOBAL", dtypes.int32, arg=(k, s, True)) for k, s in enumerate(("data0", "n")))
    >>> zero = g.add("CONST", dtypes.int32, arg=0)
    >>> i = g.add("LOOP", dtypes.int32, vin=(zero, n))
    >>> store, end = g.add("STORE", vin=(out, i, i)), g.add("ENDLOOP", vin=(i,))
    >>> squares = np.zeros(4, np.int32)
    >>> run_program(g, squares, variables={"n": 3})
    >>> squares.tolist()
    [0, 1, 2, 0]

    Args:
        program: a builder, or a list of UOps.
        arrays: NumPy arrays in the order of the arguments' numbers.
        device: where it runs; the default device unless given.
        variables: values of the integer arguments, by name.

    Raises:
        ArgumentError: if the arrays or variables are not those that the program takes, or it asks for blocks of threads
            or computes in a dtype that the device does not have.
        CompileError: if the device's compiler refuses it.
        KernelError: if it fails as it runs, where the device tells.
    """
    lines = _lines(program)
    opened = Device[device]
    launch, source = _assembled(name, lines, opened)
    given = dict(variables or {})
    if sorted(given) != sorted(launch.variables):
        raise ArgumentError("run_program", f"{name} takes the variables {launch.variables}, got {sorted(given)}",
                            "variables={...}")
    pointers = {u.arg: u.dtype.scalar for u in lines if u.op is Ops.DEFINE_GLOBAL and u.dtype.pointer}
    _check(name, arrays, dict(sorted(pointers.items())))
    by_number = dict(zip(sorted(pointers), arrays))
    buffers = [Buffer(opened.device, by_number[n].size, pointers[n]) for n in launch.buffers]
    for b, n in zip(buffers, launch.buffers):
        b.copyin(np.ascontiguousarray(by_number[n]).reshape(-1).view(np.uint8).data)
    if not is_loaded(opened.device, launch):
        load(opened.device, [(launch, opened.compiler.compile(source))])
    _show(name, lines, source)
    opened.synchronize()  # so that an error from here on comes from this program
    try:
        seconds = opened.timed(Call(loaded(opened.device, launch), buffers, [given[v] for v in launch.variables]))
    except LaunchError as error:
        raise KernelError("run_program", f"{name} failed on {opened.device}: {error}",
                          'device="PYTHON", which says where a program reads or writes outside of its arrays') from None
    report(Ran(opened.device, name, len(buffers), seconds, 0, sum(b.nbytes for b in buffers)))
    for b, n in zip(buffers, launch.buffers):
        if n in launch.written:
            by_number[n][...] = b.numpy().reshape(by_number[n].shape)


def _lines(program: ProgramBuilder | Sequence[UOp]) -> list[UOp]:
    return program.program() if isinstance(program, ProgramBuilder) else list(program)


def _assembled(name: str, lines: list[UOp], device: Compiled) -> tuple[Launch, str]:
    """Return launch data and source of a program.

    Raises:
        ArgumentError: if the device lacks the block size or a dtype that the program uses.
    """
    asks = next((u for u in lines if u.op in (Ops.BARRIER, Ops.SHUFFLE)
                 or (u.op is Ops.SPECIAL and isinstance(u.arg, tuple))), None)
    threads, most = math.prod(launch_size(lines, "lidx")), device.renderer.target.block_threads
    if asks is not None and threads > most:
        raise ArgumentError("run_program", f"{name} uses {asks.op.name}, which needs blocks of {threads} threads; "
                            f"those of {device.device} have at most {most}",
                            "a LOOP, or another device, such as PYTHON or OPENCL")
    works_on = device.renderer.target.dtypes | {dtypes.index, dtypes.void}
    for u in lines:
        wrong = {s.dtype.scalar for s in (u, *u.src)} - works_on if u.op.alu or u.op is Ops.DEFINE_ACC else None
        if wrong:
            raise ArgumentError("run_program", f"{device.device} does not compute in {wrong.pop()!r}: {u.op.name} of "
                                f"{name}", "CAST to float32, and back for the STORE")
    return assemble(name, lines, device.runs_on.renderer)


def _check(name: str, arrays: Sequence[Array], wanted: dict[int, DType]) -> None:
    if len(arrays) != len(wanted):
        raise ArgumentError("run_program", f"{name} takes {len(wanted)} arrays, got {len(arrays)}",
                            "one array for each buffer argument, in the order of their numbers")
    for (number, dtype), array in zip(wanted.items(), arrays):
        if not isinstance(array, np.ndarray) or array.dtype != dtype.numpy:
            held = getattr(array, "dtype", type(array).__name__)
            raise ArgumentError("run_program", f"data{number} of {name} holds {dtype!r}, got {held}",
                                f"np.zeros(n, np.dtype('{np.dtype(dtype.numpy).name}'))")


def _show(name: str, lines: list[UOp], source: str) -> None:
    if settings.DEBUG >= 5:
        show(uop_table(lines))
    if settings.DEBUG >= 4:
        show(_READABLE.render(name, lines))
    if settings.DEBUG >= 6:
        show(source)
