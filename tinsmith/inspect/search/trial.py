"""Child process of a BEAM search: compiles, runs, checks and times one candidate after another.

``main`` reads requests (pickles of our own parent) from standard input and answers each with a line of JSON. A
candidate may crash or hang this process: the parent then starts another.
"""
from __future__ import annotations

import faulthandler
import importlib
import json
import os
import pickle
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from tinsmith.backend.device import Device
from tinsmith.backend.machine import seconds_of
from tinsmith.backend.memory import Buffer
from tinsmith.backend.program import Call
from tinsmith.codegen.compile_kernel import compile_kernel
from tinsmith.codegen.launch import KernelProgram
from tinsmith.codegen.opt import Opt
from tinsmith.core.dtypes import DType
from tinsmith.inspect import checked
from tinsmith.ir import Ops, UOp
from tinsmith.ir.uop import toposort

Array = np.ndarray[Any, Any]
WHOLE = 1 << 20  # elements of the largest value up to which a kernel is interpreted in full; larger kernels in boxes
BOXES = 6


@dataclass(frozen=True)
class TrialRequest:
    """The first message: a kernel to try opts on.

    Attributes:
        modules: modules to import, which register devices that this package does not know.
        budget: seconds for timing one candidate.
        limit: seconds after which the parent ends a candidate.
        processor: measure processor time instead of wall-clock time.
    """

    device: str
    sink: UOp
    modules: tuple[str, ...] = ()
    budget: float = 0.03
    limit: float = 10.0
    processor: bool = False


class Session:
    """One kernel with its inputs and expected results, on which opts are tried.

    Raises:
        ValueError: if even the default program is wrong.
    """

    def __init__(self, request: TrialRequest) -> None:
        for name in request.modules:
            importlib.import_module(name)
        self.request, self.sink = request, request.sink
        self.renderer = Device[request.device].renderer
        random = np.random.default_rng(0)
        params = {n.arg[0]: n for n in toposort(self.sink) if n.op is Ops.PARAM}
        self.outputs = [(v.dtype, int(v.size)) for v in self.sink.src]
        self.inputs = {n: values_of(p.dtype, int(np.prod(p.arg[1], dtype=np.int64)), random)
                       for n, p in params.items() if n >= len(self.outputs)}
        self.variables = {n: n.arg[1] for n in toposort(self.sink) if n.op is Ops.VARIABLE}
        self.buffers = {n: self.buffer(p.dtype, self.inputs[n]) for n, p in params.items() if n in self.inputs}
        reference = self.compiled(None)
        self.expected = self.run(reference)
        added, narrow = checked.terms(self.sink), checked.narrowest(self.sink)
        self.tolerance = [checked.tolerance_of(d, max(checked.largest(e), 1.0), added, narrow)
                          for (d, _), e in zip(self.outputs, self.expected)]
        self.check_reference(random)

    def buffer(self, dtype: DType, values: Array) -> Buffer:
        b = Buffer(self.request.device, values.size, dtype)
        return b.copyin(values.view(np.uint8).data) if values.size else b

    def compiled(self, opts: Sequence[Opt] | None) -> tuple[KernelProgram, Any]:
        kernel = compile_kernel(self.sink, self.renderer, opts)
        device = Device[self.request.device]
        return kernel, device.load([(kernel, device.compiler.compile(kernel.source))])[0]

    def run(self, made: tuple[KernelProgram, Any]) -> list[Array]:
        """Return the outputs of a program; memory that it does not write keeps a fill pattern."""
        kernel, program = made
        for n, (dtype, size) in enumerate(self.outputs):
            self.buffers[n] = self.buffer(dtype, np.full(size * dtype.itemsize, 0xA5, np.uint8).view(dtype.numpy))
        Device[self.request.device].run([Call(program, [self.buffers[n] for n in kernel.buffers], self.values(kernel))])
        Device[self.request.device].synchronize()
        return [self.buffers[n].numpy() for n in range(len(self.outputs))]

    def values(self, kernel: KernelProgram) -> list[int]:
        """Return the minimum value of each of the kernel's variables."""
        named = {v.arg[0]: least for v, least in self.variables.items()}
        return [named[name] for name in kernel.variables]

    def check_reference(self, random: np.random.Generator) -> None:
        """Check the default program, the reference for candidates, against the interpreter: in full, or boxes of it."""
        small = checked.Sample(self.sink, self.variables, random, WHOLE, BOXES)
        for part in small([self.inputs[n] for n in sorted(self.inputs)]):
            for (at, values), found, near in zip(part, self.expected, self.tolerance):
                if not same(found[at], values[at], near):
                    raise ValueError("the default program's result differs from the interpreter's")

    def trial(self, opts: Sequence[Opt]) -> dict[str, Any]:
        """Compile, run, compare and time one candidate."""
        made = self.compiled(opts)
        found = self.run(made)
        if not all(same(a, b, near) for a, b, near in zip(found, self.expected, self.tolerance)):
            return {"state": "wrong"}
        kernel, program = made
        seconds = seconds_of(self.request.device, program, [self.buffers[n] for n in kernel.buffers],
                             self.values(kernel), self.request.budget,
                             clock=time.process_time if self.request.processor else time.perf_counter)
        return {"state": "ok", "seconds": seconds, "name": kernel.name}


def values_of(dtype: DType, size: int, random: np.random.Generator) -> Array:
    """Return random small numbers: floats around 0, and integers that are valid as indices."""
    if dtype.is_float:
        return random.standard_normal(size, np.float32).astype(dtype.numpy)
    if dtype.is_bool:
        return random.integers(0, 2, size).astype(dtype.numpy)
    return random.integers(0, 16, size).astype(dtype.numpy)


def same(a: Array, b: Array, near: float) -> bool:
    """Return True if all values are equal up to ``near``."""
    return not checked.differing(a, b, near).any()


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests until the parent closes the stream."""
    session: Session | None = None
    while True:
        try:
            message = pickle.load(requests)
        except EOFError:
            return
        try:
            if isinstance(message, TrialRequest):
                session = None
                faulthandler.dump_traceback_later(message.limit * 4 + 60, exit=True, file=_nowhere())
                session = Session(message)
                answer: dict[str, Any] = {"state": "ready"}
            else:
                assert session is not None, "a trial was requested before its kernel"
                faulthandler.dump_traceback_later(session.request.limit * 2 + 5, exit=True, file=_nowhere())
                answer = session.trial(message)
        except Exception as error:
            answer = {"state": "error", "message": f"{type(error).__name__}: {error}"}
            if session is not None and Device[session.request.device].lost:
                os._exit(1)  # the parent continues with a new process, on a working device
        faulthandler.cancel_dump_traceback_later()
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


_nowhere_file: list[Any] = []


def _nowhere() -> Any:
    """Return the null device, for the traceback of a process that ends itself after its parent has gone."""
    if not _nowhere_file:
        _nowhere_file.append(open(os.devnull, "w"))  # noqa: SIM115  used when everything else hangs
    return _nowhere_file[0]


def main() -> None:
    """Serve requests from standard input; answer on a copy of standard output that kernels
    and compilers cannot reach."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.stdin.buffer, answers)

