"""Devices: the protocol, the registry, buffers, and one folder per device."""
from tinsmith.backend.device import Allocator, Call, Compiled, Compiler, Device, Program
from tinsmith.backend.memory import Buffer, BufferSpec

__all__ = ["Allocator", "Buffer", "BufferSpec", "Call", "Compiled", "Compiler", "Device", "Program"]
