"""Helpers that run single kernels on a device with buffers and programs."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.codegen.kernels import Case
from tinsmith.backend.device import Device
from tinsmith.backend.memory import Buffer
from tinsmith.codegen.compile_kernel import compile_kernel
from tinsmith.codegen.opt import Opt
from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops, UOp


def param(number: int, *shape: int) -> UOp:
    return UOp(Ops.PARAM, dtypes.float32, (), (number, shape))


def run_value(device: str, value: UOp, opts: Sequence[Opt] | None, *inputs: np.ndarray) -> tuple[np.ndarray, str]:
    """Return the result of the kernel of ``value`` for ``inputs`` on a device, and its source text."""
    opened = Device[device]
    kernel = compile_kernel(UOp(Ops.SINK, None, (value,)), opened.renderer, opts)
    out = Buffer(device, value.size, dtypes.float32)
    given = [Buffer(device, x.size, dtypes.float32).copyin(memoryview(x)) for x in inputs]
    (program,) = opened.load([(kernel, opened.compiler.compile(kernel.source))])
    program([out, *given], [])
    return out.numpy().reshape(value.shape), kernel.source


def run_case(device: str, case: Case, opts: list[Opt] | None) -> list[np.ndarray]:
    """Return the outputs of a case's kernel on a device, in memory that held other values before."""
    opened = Device[device]
    kernel = compile_kernel(case.sink, opened.renderer, opts)
    buffers = {n: Buffer(device, value.size, value.dtype) for n, value in enumerate(case.sink.src)}
    outputs = list(buffers.values())
    named = {node.arg[0]: int(x) for node, x in case.inputs.items() if node.op is Ops.VARIABLE}
    for node, x in case.inputs.items():
        if node.op is Ops.PARAM:
            data = np.ascontiguousarray(x).reshape(-1).view(np.uint8)
            buffers[node.arg[0]] = Buffer(device, x.size, node.dtype).copyin(memoryview(data))
    for b in outputs:
        b.copyin(memoryview(np.full(b.nbytes, 77, np.uint8)))
    (program,) = opened.load([(kernel, opened.compiler.compile(kernel.source))])
    program([buffers[n] for n in kernel.buffers], [named[name] for name in kernel.variables])
    return [b.numpy() for b in outputs]
