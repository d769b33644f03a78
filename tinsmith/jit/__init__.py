"""Capture and replay: the second call of a jitted function is captured, later calls run what it ran."""
from tinsmith.jit.capture import TinyJit

jit = TinyJit

__all__ = ["TinyJit", "jit"]
