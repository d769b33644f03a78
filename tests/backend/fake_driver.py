"""A fake of NVIDIA's driver API: host memory, launches that are only noted, and results that a test sets."""
from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable
from enum import IntEnum
from types import SimpleNamespace
from typing import Any


class Status(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_ILLEGAL_ADDRESS = 700


OK, NO_MEMORY, FAULT = Status.CUDA_SUCCESS, Status.CUDA_ERROR_OUT_OF_MEMORY, Status.CUDA_ERROR_ILLEGAL_ADDRESS
NO_LAUNCH = Status.CUDA_ERROR_INVALID_VALUE


class _Anything:
    """Constants and structures of the driver whose values do not matter."""

    def __getattr__(self, name: str) -> Any:
        return 0

    def __call__(self) -> Any:
        return SimpleNamespace()


def _first(parameters: int) -> int:
    """Return the first argument of a launch, from the address of its block."""
    place = ctypes.c_void_p.from_address(parameters).value
    return ctypes.c_int64.from_address(place).value if place else 0


class FakeDriver:
    """A stand-in for the module ``cuda.bindings.driver``.

    Attributes:
        total: bytes of the GPU.
        answers: by function, what its next calls say; after them they work, but after a fault nothing does.
        calls: names of the functions called, in order.
        work: (stream, first argument) of each kernel that would run, launched alone or in a graph, in order.
    """

    def __init__(self, total: int = 1 << 20) -> None:
        self.total, self.blocks, self.host = total, dict[int, Any](), dict[int, Any]()
        self.answers: dict[str, deque[Status]] = {}
        self.calls: list[str] = []
        self.broken = False
        self.work: list[tuple[Any, int]] = []
        self.nodes: dict[Any, dict[int, int]] = {}  # graph → node → first argument

    CUresult = Status

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            return _Anything()
        return self._answering(name, getattr(FakeDriver, f"_{name}", None))

    def _answering(self, name: str, works: Callable[..., Any] | None) -> Callable[..., tuple[Any, ...]]:
        def call(*arguments: Any) -> tuple[Any, ...]:
            self.calls.append(name)
            waiting = self.answers.get(name)
            status = FAULT if self.broken else waiting.popleft() if waiting else OK
            self.broken = status is FAULT
            if status:
                return (status,) if name in ("cuLaunchKernel", "cuGraphLaunch", "cuStreamSynchronize") else (status, 0)
            found = works(self, *arguments) if works is not None else (OK, len(self.calls))
            return found if isinstance(found, tuple) else (found,)
        return call

    @property
    def used(self) -> int:
        return sum(map(ctypes.sizeof, self.blocks.values()))

    def _made(self, kept: dict[int, Any], nbytes: int) -> tuple[Status, int]:
        block = (ctypes.c_ubyte * nbytes)()
        kept[ctypes.addressof(block)] = block
        return OK, ctypes.addressof(block)

    def _cuMemAlloc(self, nbytes: int) -> tuple[Status, int]:
        return self._made(self.blocks, nbytes) if self.used + nbytes <= self.total else (NO_MEMORY, 0)

    def _cuMemFree(self, address: int) -> Status:
        del self.blocks[address]
        return OK

    def _cuMemHostAlloc(self, nbytes: int, flags: int) -> tuple[Status, int]:
        return self._made(self.host, nbytes)

    def _cuMemGetInfo(self) -> tuple[Status, int, int]:
        return OK, self.total - self.used, self.total

    def _cuMemcpyHtoDAsync(self, to: int, source: int, count: int, stream: int) -> Status:
        ctypes.memmove(to, source, count)
        return OK

    _cuMemcpyDtoHAsync = _cuMemcpyHtoDAsync

    def _cuLaunchKernel(self, *arguments: Any) -> Status:
        *_, stream, parameters, _ = arguments
        self.work.append((stream, _first(parameters)))
        return OK

    def _cuStreamSynchronize(self, *arguments: Any) -> Status:
        return OK

    _cuCtxSetCurrent = _cuEventRecord = _cuEventSynchronize = _cuStreamSynchronize

    def _cuGraphAddKernelNode(self, graph: Any, waited: Any, count: int, node: Any) -> tuple[Status, int]:
        nodes = self.nodes.setdefault(graph, {})
        nodes[len(nodes)] = _first(node.kernelParams)
        return OK, len(nodes) - 1

    def _cuGraphInstantiate(self, graph: Any, flags: int) -> tuple[Status, int]:
        self.nodes[len(self.calls)] = dict(self.nodes.get(graph, {}))
        return OK, len(self.calls)

    def _cuGraphExecKernelNodeSetParams(self, ready: Any, number: int, node: Any) -> Status:
        self.nodes[ready][number] = _first(node.kernelParams)
        return OK

    def _cuGraphLaunch(self, ready: Any, stream: Any) -> Status:
        self.work += [(stream, value) for value in self.nodes[ready].values()]
        return OK

    def _cuGetErrorString(self, status: Status) -> tuple[Status, bytes]:
        return OK, status.name.lower().encode()
