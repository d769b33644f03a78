"""Lowering: a kernel's tensor graph goes in; a kernel graph (stores over ranges) in normal form comes out.

- ``lower.py``: the lowering itself; ``indexing.py``: movement ops as index maps with conditions, and
  footprints (the elements of a value that given loops access).
- ``normalize.py``: the normal form before any opt.
- ``loop_partition.py``: split a loop where guards or index expressions change (the opt CUT).
"""
