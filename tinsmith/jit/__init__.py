"""Capture and replay: the second call of a jitted function is captured, later calls run what it ran (docs/jit.md).

- ``function.py``: ``TinyJit``: finds the capture for a call; ``capture.py``: records one call; ``collect.py``: the
  programs that ran; ``capture_hooks.py``: Python functions and unrepeatable calls that ran.
- ``guards/``: the conditions under which a capture is valid.
- ``merged_schedule.py``: all programs as one schedule, and templates of results and new state; ``replay.py``: the
  replay on the current buffers.
- ``aliases.py``, ``memory.py``: the memory that results share.
- ``reachability.py``, ``deferred_grads.py``: memory that may be reused; gradients that nobody reads.
- ``verify.py``: ``VERIFY=k``: compare replays with uncaptured calls.
"""
from tinsmith.jit.collect import CacheCollector, JitItem
from tinsmith.jit.function import TinyJit

jit = TinyJit

__all__ = ["CacheCollector", "JitItem", "TinyJit", "jit"]
