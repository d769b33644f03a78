"""A stand-in for a device that is not on this machine: its source is generated and shown, another device runs the
kernels."""
from __future__ import annotations

from collections.abc import Sequence

from tinsmith.backend.device import Compiled, Compiler
from tinsmith.backend.program import Call, Graph, Launched, Program
from tinsmith.codegen.launch import Launch
from tinsmith.codegen.render.base import Renderer


class _Compiler(Compiler):
    """The runner's compiler, for the kernels that it runs; it gives no assembly of the shown source."""

    def __init__(self, compiler: Compiler) -> None:
        self.compiler = compiler

    def threads(self) -> int:
        return self.compiler.threads()

    def compile(self, source: str) -> bytes:
        return self.compiler.compile(source)


class StandIn(Compiled):
    """``Device["METAL"]`` on a machine without Metal, for showing its source.

    Programs are scheduled, and kernels rendered, for the device's own target; each kernel is also compiled for
    ``runner``, whose memory holds all buffers, so the values that a script reads are right.

    Args:
        device: canonical name of the absent device.
        renderer: renders the shown source.
        runner: the device that runs the kernels.
        missing: the error that opening the device itself raised.
    """

    def __init__(self, device: str, renderer: Renderer, runner: Compiled, missing: Exception) -> None:
        super().__init__(device, runner.allocator, _Compiler(runner.compiler), runner.runtime, renderer)
        self.runner, self.missing = runner, missing

    @property
    def runs_on(self) -> Compiled:
        return self.runner

    @property
    def worker(self) -> str:
        return self.runner.worker

    def load(self, kernels: Sequence[tuple[Launch, bytes]]) -> list[Program]:
        return self.runner.load(kernels)

    def copier(self, source: Compiled, nbytes: int) -> Program | None:
        return self.runner.copier(source.runs_on, nbytes)

    def run(self, calls: Sequence[Call]) -> None:
        self.runner.run(calls)

    def graph(self, launches: Sequence[Launched]) -> Graph:
        return self.runner.graph(launches)

    def timed(self, call: Call) -> float:
        return self.runner.timed(call)

    def synchronize(self) -> None:
        self.runner.synchronize()
