"""Devices: the device protocol, the device registry, buffers, and one folder per device."""
from tinsmith.backend.device import Allocator, Compiled, Compiler, Device
from tinsmith.backend.memory import Buffer, BufferSpec
from tinsmith.backend.program import Call, Program

__all__ = ["Allocator", "Buffer", "BufferSpec", "Call", "Compiled", "Compiler", "Device", "Program"]
