"""Capture and replay: the second call of a jitted function is captured, later calls run what it ran."""
from tinsmith.jit.collect import CacheCollector, JitItem
from tinsmith.jit.function import TinyJit

jit = TinyJit

__all__ = ["CacheCollector", "JitItem", "TinyJit", "jit"]
