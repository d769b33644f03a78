"""Devices: the device protocol, the device registry, buffers, and one folder per device.

- ``device.py``: ``Device``, ``Compiled`` (a device), ``Allocator`` and ``Compiler``, which docs/new_accelerator.md
  implements; sources for devices that are not on this machine.
- ``memory.py``, ``shards.py``: buffers on one device, with the caching allocator, and on several.
- ``program.py``: loaded kernels, launches, and graphs of launches; ``machine.py``: measured rates, kernel timing.
- ``cpu/``, ``cuda/``, ``hip/``, ``metal/``, ``opencl/``, ``webgpu/``, ``python/`` (the interpreter): devices that
  compute; ``npy/``, ``disk/``: NumPy arrays and files as devices.
"""
from tinsmith.backend.device import Allocator, Compiled, Compiler, Device
from tinsmith.backend.memory import Buffer, BufferSpec
from tinsmith.backend.program import Call, Program

__all__ = ["Allocator", "Buffer", "BufferSpec", "Call", "Compiled", "Compiler", "Device", "Program"]
