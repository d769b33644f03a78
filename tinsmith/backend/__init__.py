"""Devices: the device protocol, the device registry, buffers, and one folder per device.

- ``device.py``: ``Device``, ``Compiled`` (a device), ``Allocator`` and ``Compiler``; docs/new_accelerator.md implements
  them.
- ``memory.py``, ``shards.py``: buffers on one device, and on several; ``free_lists.py``: the caching allocator.
- ``program.py``: loaded kernels, launches, and graphs of launches; ``timing.py``: kernel timing.
- ``machine.py``: measured rates of this machine; ``source_only.py``: generated sources for devices that are not here.
- ``cpu/``, ``cuda/``, ``hip/``, ``metal/``, ``opencl/``, ``webgpu/``, ``python/`` (the interpreter): devices that
  compute; ``npy/``, ``disk/``: NumPy arrays and files as devices.
"""
from tinsmith.backend.device import Allocator, Compiled, Compiler, Device
from tinsmith.backend.memory import Buffer, BufferSpec
from tinsmith.backend.program import Call, Program

__all__ = ["Allocator", "Buffer", "BufferSpec", "Call", "Compiled", "Compiler", "Device", "Program"]
