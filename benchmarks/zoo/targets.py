"""GPUs that the zoo compiles for without having one: ``python -m benchmarks zoo --compile-only sm_90a``.

Models are traced with tensors of the CPU that have no values. Each program of their graphs is scheduled and generated
for the GPU, and compiled by NVRTC. A kernel that asks for more than the GPU has is an error.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses import FakeTensorMode

from benchmarks.corpus.targets import Nowhere, Unrun
from benchmarks.zoo.registry import Example
from tinsmith.backend.cuda.driver import NVRTCCompiler
from tinsmith.backend.device import Device, Program
from tinsmith.codegen.launch import Launch
from tinsmith.codegen.render.cuda import CUDARenderer, cuda_target
from tinsmith.runtime.compiled_schedule import Bound
from tinsmith.torch.decompositions import decompositions
from tinsmith.torch.devices import Runner, TorchDevice
from tinsmith.torch.executable import Executable, Options
from tinsmith.torch.report import REPORT, GraphRecord
from tinsmith.torch.saved import graph_values, report_strides, saved_for_backward

# (multiprocessors, bytes of local memory per block): an A100, an H100
GPUS: Final = {"sm_80": (108, 163 << 10), "sm_90a": (132, 227 << 10)}
THREADS: Final = 1024  # of a block, at most


class _Compiled(Program):
    """A compiled kernel, checked against the limits of a launch."""

    def __init__(self, room: int, kernel: Launch, binary: bytes) -> None:
        super().__init__(kernel, binary)
        threads = functools.reduce(lambda a, b: a * b, kernel.block, 1)
        if kernel.local_bytes > room or threads > THREADS:
            raise ValueError(f"{kernel.name} needs {kernel.local_bytes} bytes of local memory and {threads} threads")


class CompileOnly(TorchDevice):
    """A device whose programs are compiled and never run."""

    def __init__(self, arch: str) -> None:
        super().__init__(f"ZOO_{arch.upper()}", torch.device("cpu"))

    def for_any(self, device: Any) -> TorchDevice:
        """Return this device for all of PyTorch's."""
        return self

    def runner(self, bound: Bound, parts: Sequence[Any], sizes: Sequence[int]) -> Runner | None:
        return None

    def temporaries(self, bound: Bound) -> Any:
        return None


def _opened(name: str) -> Unrun:
    arch = name.removeprefix("ZOO_").lower()
    cores, room = GPUS[arch]
    return Unrun(name, Nowhere(), NVRTCCompiler(arch), functools.partial(_Compiled, room),
                 CUDARenderer(cuda_target(arch, cores)))


for _arch in GPUS:
    Device.register(f"ZOO_{_arch.upper()}", _opened)


def without_values(example: Example) -> tuple[Example, Any]:
    """Return an example whose tensors are fake, and the mode that they belong to."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    made: dict[int, Any] = {}

    def fake(t: Any) -> Any:
        if isinstance(t, torch.Tensor) and id(t) not in made:
            value = mode.from_tensor(t.detach())
            made[id(t)] = torch.nn.Parameter(value, t.requires_grad) if isinstance(t, torch.nn.Parameter) else value
        return made.get(id(t), t)

    module = copy.deepcopy(example.module)
    for m in module.modules():
        for table in (m._parameters, m._buffers):
            for name, t in table.items():
                table[name] = fake(t)
    inputs, targets = (torch.utils._pytree.tree_map(fake, v) for v in (example.inputs, example.targets))
    return Example(module, inputs, targets, example.loss), mode


def backend(arch: str, strict: bool = False) -> Callable[..., Any]:
    """Return the backend of ``torch.compile`` that compiles graphs for a GPU and runs them by PyTorch."""
    device = CompileOnly(arch)

    def compiler(kind: str) -> Callable[[Any, Sequence[Any]], Any]:
        def compile_graph(module: Any, inputs: Sequence[Any]) -> Any:
            record = GraphRecord(kind)
            REPORT.graphs.append(record)
            values, free = graph_values(module, inputs), saved_for_backward(module) if kind == "forward" else set()
            with torch.utils._python_dispatch._disable_current_modes():
                made = Executable(module, values, record, Options(strict=strict), device.for_any, free=free)
            report_strides(module, made.strides)
            return make_boxed_func(module.forward)

        return compile_graph

    found: Callable[..., Any] = aot_autograd(
        fw_compiler=compiler("forward"), bw_compiler=compiler("backward"), inference_compiler=compiler("inference"),
        decompositions=decompositions(), partition_fn=min_cut_rematerialization_partition)
    return found
