"""A fake of NVIDIA's driver API: host memory, launches that do nothing, and results that a test sets."""
from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable
from enum import IntEnum
from types import SimpleNamespace
from typing import Any


class Status(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_ILLEGAL_ADDRESS = 700


OK, NO_MEMORY, FAULT = Status.CUDA_SUCCESS, Status.CUDA_ERROR_OUT_OF_MEMORY, Status.CUDA_ERROR_ILLEGAL_ADDRESS


class _Anything:
    """Constants and structures of the driver whose values do not matter."""

    def __getattr__(self, name: str) -> Any:
        return 0

    def __call__(self) -> Any:
        return SimpleNamespace()


class FakeDriver:
    """A stand-in for the module ``cuda.bindings.driver``.

    Attributes:
        total: bytes of the GPU.
        answers: by function, what its next calls say; after them they work, but after a fault nothing does.
        calls: names of the functions called, in order.
    """

    def __init__(self, total: int = 1 << 20) -> None:
        self.total, self.blocks, self.host = total, dict[int, Any](), dict[int, Any]()
        self.answers: dict[str, deque[Status]] = {}
        self.calls: list[str] = []
        self.broken = False

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
                return (status,) if works is FakeDriver._cuLaunchKernel else (status, 0)
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
        return OK

    _cuGraphLaunch = _cuStreamSynchronize = _cuCtxSetCurrent = _cuEventRecord = _cuEventSynchronize = _cuLaunchKernel

    def _cuGraphExecKernelNodeSetParams(self, *arguments: Any) -> Status:
        return OK

    def _cuGetErrorString(self, status: Status) -> tuple[Status, bytes]:
        return OK, status.name.lower().encode()
