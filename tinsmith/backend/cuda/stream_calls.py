"""Functions that enqueue work in a GPU's stream, as commands of programs: the collectives of NCCL.

A HOST node on a GPU names such a function. A program runs it between kernels; in a CUDA graph, the work that it
enqueues is captured once and becomes a child graph. A function that starts work *beside* the kernels uses the second
stream of the GPU: later kernels do not wait for it, but the function that ends it does.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tinsmith.backend.program import Program

if TYPE_CHECKING:
    from tinsmith.backend.cuda.driver import CudaGPU
    from tinsmith.codegen.launch import Launch


@dataclass(frozen=True)
class StreamFunction:
    """A function that enqueues work.

    Attributes:
        enqueue: called with the GPU, the stream, the address of the result and those of the arguments, and the launch.
        announce: called on the host before each run, also before replays of a graph that contains the work.
        launched: called with the GPU and the stream when the last announced work has been enqueued.
        beside: the name of work that goes on beside later kernels; "" for work that they wait for.
        ends: the name of the work that the call waits for; calls without a name wait for all.
    """

    enqueue: Callable[[CudaGPU, int, int, Sequence[int], Launch], None]
    announce: Callable[[Launch], None] | None = None
    launched: Callable[[CudaGPU, Any], None] | None = None
    beside: str = ""
    ends: str = ""


FUNCTIONS: Final[dict[str, StreamFunction]] = {}  # by the name in the HOST node


class StreamCall(Program):
    """A call of a stream function, as a program."""

    def __init__(self, gpu: CudaGPU, kernel: Launch) -> None:
        super().__init__(kernel, b"")
        self.gpu, self.function = gpu, FUNCTIONS[kernel.host[0]]
        self.names = (kernel.name,)

    def __call__(self, buffers: Sequence[Any], variables: Sequence[int] = ()) -> None:
        self.launch([b.opaque.address + b.offset for b in buffers])

    def announce(self) -> None:
        """Report the coming run to the function."""
        if self.function.announce is not None:
            self.function.announce(self.kernel)

    def launched(self, stream: Any) -> None:
        """Report that the announced work is in the stream."""
        if self.function.launched is not None:
            self.function.launched(self.gpu, stream)

    def launch(self, values: Sequence[int]) -> None:
        """Announce the call and enqueue its work, in the GPU's stream or beside it."""
        self.announce()
        gpu = self.gpu
        gpu.use()
        stream, other = (gpu.beside, gpu.stream) if self.function.beside else (gpu.stream, gpu.beside)
        gpu.order(other, stream)  # work of one communicator must not overlap
        self.enqueue(int(stream), values)
        self.launched(stream)
        gpu.launched.append(self.names)

    def enqueue(self, stream: int, values: Sequence[int]) -> None:
        """Enqueue the work in a stream, without an announcement."""
        self.function.enqueue(self.gpu, stream, values[0], values[1:], self.kernel)

    def captured(self, values: Sequence[int]) -> Any:
        """Return a CUDA graph of the work that the function enqueues."""
        gpu, driver = self.gpu, self.gpu.driver
        stream = gpu.capturing
        gpu.call(driver.cuStreamBeginCapture, stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
        try:
            self.enqueue(int(stream), values)
        finally:
            graph = gpu.call(driver.cuStreamEndCapture, stream)
        return graph
