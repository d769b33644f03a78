"""Devices of PyTorch: what a program takes from PyTorch on each (memory, the stream, random seeds).

Programs are the same on all devices. A ``TorchDevice`` names our device of the same hardware, allocates results and
temporaries, and runs a program's launches in the stream that is current in PyTorch.
"""
from __future__ import annotations

import contextlib
import functools
import itertools
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import torch

from tinsmith.backend.cpu.device import CPUGraph
from tinsmith.backend.cuda.device import CUDAGraph
from tinsmith.backend.cuda.driver import forget_context
from tinsmith.backend.device import Device
from tinsmith.backend.memory import Buffer
from tinsmith.core.errors import DeviceError
from tinsmith.runtime.compiled_schedule import Bound


def _documented(shape: Any, strides: Any, dtype: Any) -> Any:
    """Return memory of these strides."""
    return torch.empty_strided(shape, strides, dtype=dtype)


# The allocations of compiled code take half the time of the documented function.
_guards: Any = sys.modules.get("torch._C._dynamo.guards")
empty_strided: Callable[[Any, Any, Any], Any] = getattr(_guards, "_empty_strided_cpu", _documented)

KEPT: Final = 1 << 20  # bytes of temporaries that a program on the CPU keeps between calls
Runner = Callable[[Sequence[int], Sequence[int]], None]  # of (addresses of the bases, values of the variables)
Temporaries = Callable[[], tuple[Any, list[int]]]  # an owner to hold until the launch, and addresses


class TorchDevice:
    """The CPU, and the base of other devices.

    Attributes:
        name: our device.
        device: PyTorch's device.
        alignment: bytes; addresses of inputs must be multiples of it, others are copied.
    """

    alignment = 1

    def __init__(self, name: str, device: Any) -> None:
        self.name, self.device = name, device

    def empty(self, shape: Any, strides: Any, dtype: Any) -> Any:
        """Return memory from PyTorch's allocator; the device is current."""
        return empty_strided(shape, strides, dtype)

    def allocate(self, specifications: Iterable[tuple[Any, Any, Any]]) -> list[Any]:
        """Return memory for each (shape, strides, dtype); the device is current."""
        return list(itertools.starmap(empty_strided, specifications))

    def is_current(self) -> bool:
        """Return True if PyTorch allocates on this device by default, so that ``current`` is not needed."""
        return True

    def current(self) -> contextlib.AbstractContextManager[Any]:
        """Make the device PyTorch's current one in a block."""
        return contextlib.nullcontext()

    def seed(self) -> int:
        """Draw 62 bits from PyTorch's generator of the device."""
        return int(torch.randint(1 << 62, ()).item())

    def runner(self, bound: Bound, parts: Sequence[Any], sizes: Sequence[int]) -> Runner | None:
        """Return the function that runs a program on addresses; None if it is not one native list of launches.

        Args:
            parts: the items of ``bound`` to run.
            sizes: bytes of each base.
        """
        graph = _only_graph(bound, parts)
        return graph.run if isinstance(graph, CPUGraph) else None

    def temporaries(self, bound: Bound) -> Temporaries:
        """Return the function that provides the program's blocks of temporaries."""
        return _KeptBlocks(bound)

    def wait(self) -> None:
        """Wait until the device has finished PyTorch's work and ours."""


class CudaDevice(TorchDevice):
    """A GPU of NVIDIA's, through its current stream and PyTorch's caching allocator."""

    alignment = 16  # of vector loads and tensor maps

    def __init__(self, name: str, device: Any) -> None:
        super().__init__(name, device)
        Device.here(name)
        self.index: int = device.index
        self._device: Callable[[], int] = torch._C._cuda_getDevice
        self._stream: Callable[[int], int] = torch._C._cuda_getCurrentRawStream
        self._captures: Callable[[], bool] = torch._C._cuda_isCurrentStreamCapturing
        self._empty = getattr(_guards, "_empty_strided_cuda", None)

    def empty(self, shape: Any, strides: Any, dtype: Any) -> Any:
        if self._empty is not None:
            return self._empty(shape, strides, dtype)
        return torch.empty_strided(shape, strides, dtype=dtype, device=self.device)

    def allocate(self, specifications: Iterable[tuple[Any, Any, Any]]) -> list[Any]:
        return list(itertools.starmap(self._empty or self.empty, specifications))

    def is_current(self) -> bool:
        return self._device() == self.index

    @contextlib.contextmanager
    def current(self) -> Any:
        with torch.cuda.device(self.index):
            forget_context()
            try:
                yield
            finally:
                forget_context()

    def seed(self) -> int:
        """Draw 62 bits from the state of the GPU's generator, which the host knows without waiting for the GPU.

        Raises:
            DeviceError: while a CUDA graph of PyTorch's is captured, whose replays would all have this seed.
        """
        if self._captures():
            raise DeviceError(self.name, "a captured stream would draw the same random numbers at each replay",
                              "the option exact_random=True: PyTorch draws them")
        generator = torch.cuda.default_generators[self.index]
        offset = generator.get_offset()
        generator.set_offset(offset + 4)
        return _mixed(generator.initial_seed() ^ _mixed(offset)) >> 2

    def runner(self, bound: Bound, parts: Sequence[Any], sizes: Sequence[int]) -> Runner | None:
        graph = _only_graph(bound, parts)
        if not isinstance(graph, CUDAGraph) or not graph.addressable:
            return None
        stream, captures, index, run = self._stream, self._captures, self.index, graph.run

        def launch(addresses: Sequence[int], values: Sequence[int]) -> None:
            run(addresses, values, sizes, stream(index), captures())

        return launch

    def temporaries(self, bound: Bound) -> Temporaries:
        sizes = [size for _, size in bound.blocks]

        def made() -> tuple[Any, list[int]]:
            blocks = [self.empty((size,), (1,), torch.uint8) for size in sizes]
            return blocks, [b.data_ptr() for b in blocks]

        return made

    def wait(self) -> None:
        torch.cuda.synchronize(self.index)
        Device[self.name].synchronize()


class _KeptBlocks:
    """Blocks of temporaries that are kept between calls, if they are small."""

    def __init__(self, bound: Bound) -> None:
        self.bound = bound
        self.small = sum(size for _, size in bound.blocks) <= KEPT
        self.idle: list[list[Buffer]] = []

    def __call__(self) -> tuple[Any, list[int]]:
        try:
            blocks = self.idle.pop()
        except IndexError:  # the first call, or another thread is using them
            blocks = self.bound.new_blocks()
        return _Lease(self, blocks), [b.opaque.address + b.offset for b in blocks]


class _Lease:
    """The use of blocks by one call: they are idle again when it dies."""

    __slots__ = ("blocks", "kept")

    def __init__(self, kept: _KeptBlocks, blocks: list[Buffer]) -> None:
        self.kept, self.blocks = kept, blocks

    def __del__(self) -> None:
        if self.kept.small:
            self.kept.idle.append(self.blocks)


def _only_graph(bound: Bound, parts: Sequence[Any]) -> Any:
    """Return the graph of a program that is one list of launches on one device."""
    return parts[0].graph if len(parts) == 1 and bound.queue is None else None


def _mixed(value: int) -> int:
    """Return 64 bits that depend on all bits of ``value`` (SplitMix64; Steele, Lea and Flood 2014)."""
    mask = (1 << 64) - 1
    value = (value + 0x9E3779B97F4A7C15) & mask
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
    return value ^ (value >> 31)


@functools.cache
def torch_device(device: Any) -> TorchDevice:
    """Return the ``TorchDevice`` of a device of PyTorch.

    Raises:
        DeviceError: if Tinsmith has no such device, or cannot open it.
    """
    if device.type == "cpu":
        return TorchDevice("CPU", device)
    if device.type != "cuda" or torch.version.hip:
        raise DeviceError("torch.compile", f"tensors on {device}", "tensors on the CPU or on a GPU of NVIDIA's")
    index = torch.cuda.current_device() if device.index is None else device.index
    return CudaDevice(Device.canonicalize(f"CUDA:{index}"), torch.device("cuda", index))


@functools.lru_cache
def reason_against_device(device: Any, devices: Callable[[Any], TorchDevice] = torch_device) -> str:
    """Return the reason why programs cannot run on a device of PyTorch; "" if they can."""
    try:
        devices(device)
    except DeviceError as error:
        return str(error)
    return ""
