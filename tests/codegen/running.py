"""Run one kernel by both interpreters and by the PYTHON, LLVM and C renderers, on buffers that end at a protected
page."""
from __future__ import annotations

import ctypes
import math
import mmap
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

from tinsmith.backend.cpu.llvm import load, load_shared
from tinsmith.backend.device import Device
from tinsmith.backend.python.device import NAMES, launch
from tinsmith.backend.python.memory import CheckedMemory
from tinsmith.backend.python.render import PythonRenderer
from tinsmith.codegen.compile_kernel import begin, compile_kernel
from tinsmith.codegen.emit.linearize import linearize
from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.launch import KernelProgram
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.codegen.render.llvm import STACK_BYTES
from tinsmith.core.errors import KernelError
from tinsmith.ir import Op, Ops, UOp
from tinsmith.ir.interpret.kernel import evaluate_kernel
from tinsmith.ir.interpret.tensor import evaluate
from tinsmith.ir.uop import toposort
from tinsmith.ir.verify import verify_kernel, verify_program
from tinsmith.target.target import Target

HAS_C = any(shutil.which(name) for name in ("gcc", "clang", "cc"))
NATIVE = ["CPU", *(["CPU:C"] if HAS_C else [])]
Array = np.ndarray[Any, Any]
_PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)


def guarded(values: Array) -> Array:
    """Return a copy whose last byte precedes a protected page (its first follows one, if it fills its pages)."""
    pages = max(1, -(-values.nbytes // _PAGE))
    block = mmap.mmap(-1, (pages + 2) * _PAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(block))
    for page in (address, address + (pages + 1) * _PAGE):
        assert _libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(_PAGE), 0) == 0
    start = (pages + 1) * _PAGE - values.nbytes
    out = np.frombuffer(block, np.uint8, values.nbytes, start).view(values.dtype).reshape(values.shape)
    out[...] = values
    return out


def params(sink: UOp) -> list[UOp]:
    """Return the parameters of the kernel."""
    return sorted((n for n in toposort(sink) if n.op is Ops.PARAM), key=lambda n: n.arg[0])


def expected(sink: UOp, inputs: dict[UOp, Array]) -> list[Array]:
    """Return the flat outputs computed by the interpreter of tensor graphs."""
    return [np.array(v).reshape(-1) for v in evaluate(sink.src, inputs)]


def empty_outputs(sink: UOp) -> list[Array]:
    return [np.full(math.prod(v.shape), 77, v.dtype.numpy) for v in sink.src]


def buffers(sink: UOp, inputs: dict[UOp, Array]) -> list[Array]:
    """Return one array per PARAM number: outputs first, filled with garbage."""
    given = {p.arg[0]: v.reshape(-1) for p, v in inputs.items() if p.op is Ops.PARAM}
    return [*empty_outputs(sink), *(given[n] for n in sorted(given))]


def optimized(sink: UOp, opts: Sequence[Opt], device: str = "PYTHON") -> Kernel:
    return linearize_on(device, sink, opts)


def linearize_on(device: str, sink: UOp, opts: Sequence[Opt] = (), target: Target | None = None) -> Kernel:
    """Return the kernel after ``opts``, for the target of ``device`` or for another one."""
    kernel = begin(sink, target or Device[device].renderer.target)
    for opt in opts:
        kernel.apply(opt)
    return kernel


def ran(program: Sequence[UOp], arrays: Sequence[Array], seed: int = 1) -> list[Array]:
    """Run a linear program on copies of ``arrays`` with the PYTHON interpreter and return the copies."""
    module: dict[str, Any] = dict(NAMES)
    exec(PythonRenderer(Target("python")).render("kernel", program), module)
    out = [a.copy() for a in arrays]
    numbers = [u.arg for u in program if u.op is Ops.DEFINE_GLOBAL]
    launch("kernel", module, [CheckedMemory("kernel", f"data{n}", out[n]) for n in numbers], 1, seed)
    return out


def run_linear(kernel: Kernel, sink: UOp, inputs: dict[UOp, Array]) -> tuple[list[Array], list[UOp]]:
    """Run a kernel's linear program by the PYTHON interpreter; return its outputs and the program."""
    program = linearize(kernel)
    return ran(program, buffers(sink, inputs))[: len(sink.src)], program


def without(program: Sequence[UOp], leave_out: Callable[[UOp], bool]) -> Iterator[tuple[UOp, list[UOp]]]:
    """Yield each removable line and the program without it; a value that the line passes on is replaced by its
    source."""
    for n, line in enumerate(program):
        if leave_out(line):
            rest = [*program[:n], *program[n + 1 :]]
            handed = line.op is Ops.DRAIN and line.src
            yield line, [u.substitute({line: line.src[0]}) for u in rest] if handed else rest


def each_is_needed(program: Sequence[UOp], arrays: Sequence[Array], needed: Callable[[UOp], bool]) -> list[Op]:
    """Check that removing any one line of the given kinds changes the result or raises an error; return the kinds
    found."""
    right, found = ran(program, arrays)[0].astype(np.float32), list[Op]()
    for line, mutant in without(program, needed):
        try:
            got = ran(mutant, arrays)[0].astype(np.float32)
            assert not np.allclose(got, right, rtol=1e-2, atol=1e-3), line
        except KernelError as error:
            assert any(why in str(error) for why in ("race: ", "deadlock: ", "start a fill", "released twice")), error
        found.append(line.op)
    return found


def computes_the_same(device: str, sink: UOp, inputs: dict[UOp, Array], opts: Sequence[Opt],
                      close: Callable[[Array, Array], None]) -> KernelProgram:
    """Check a list of opts: graph and program are valid, both interpreters agree with the tensor graph, and the
    recorded opts equal the list as ``explain`` prints them. Return the program."""
    verify_kernel(linearize_on(device, sink, opts).sink)
    want = expected(sink, inputs)[0]
    close(run_graph(sink, inputs, opts, device)[0], want)
    close(run_on(device, sink, inputs, opts)[0], want)
    program = compile_kernel(sink, Device[device].renderer, opts)
    verify_program(program.uops)
    assert eval(repr(program.opts), {"Opt": Opt, "OptOps": OptOps}) == list(opts)
    return program


def run_graph(sink: UOp, inputs: dict[UOp, Array], opts: Sequence[Opt], device: str = "PYTHON") -> list[Array]:
    """Run the kernel graph by its interpreter."""
    arrays = buffers(sink, inputs)
    variables = {v: int(x) for v, x in inputs.items() if v.op is Ops.VARIABLE}
    evaluate_kernel(optimized(sink, opts, device).sink, arrays, variables)
    return arrays[: len(sink.src)]


def run_on(device: str, sink: UOp, inputs: dict[UOp, Array], opts: Sequence[Opt] | None = (),
           threads: int = 1) -> list[Array]:
    """Compile and run the kernel; ``threads`` runs all shares of a THREAD range in sequence."""
    kernel = compile_kernel(sink, Device[device].renderer, opts)
    arrays = buffers(sink, inputs)
    named = {v.arg[0]: int(x) for v, x in inputs.items() if v.op is Ops.VARIABLE}
    run_program(device, kernel, arrays, [named[name] for name in kernel.variables], threads)
    return arrays[: len(sink.src)]


def run_program(device: str, kernel: KernelProgram, arrays: list[Array], variables: Sequence[int] = (),
                threads: int = 1) -> None:
    """Run a compiled kernel on ``arrays``, indexed by argument number and written in place."""
    threads = 1 if kernel.serial else threads
    if device.startswith("PYTHON"):
        module: dict[str, Any] = dict(NAMES)
        exec(kernel.source, module)
        memory = [CheckedMemory(kernel.symbol, f"data{n}", arrays[n]) for n in kernel.buffers]
        launch(kernel.symbol, module, [*memory, *variables], threads)
        return
    safe = {n: guarded(arrays[n]) for n in kernel.buffers}
    table = [a.ctypes.data if a.size else 0 for a in safe.values()] + list(variables)
    near = guarded(np.full(kernel.local_bytes * threads, 0xA5, np.uint8)) if kernel.local_bytes > STACK_BYTES else None
    if near is not None:
        table.append(near.ctypes.data)
    arguments = (ctypes.c_int64 * max(len(table), 1))(*table)
    loaded = _loaded(device, kernel)
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(loaded.addresses[0])
    for tid in range(threads):
        function(ctypes.addressof(arguments), tid, threads)
    for n, a in safe.items():
        arrays[n][...] = a


@cache
def _loaded(device: str, kernel: KernelProgram) -> Any:
    binary = Device[device].compiler.compile(kernel.source)
    return load_shared(binary, kernel.symbol) if device.endswith(":C") else load([binary], [kernel.symbol])
