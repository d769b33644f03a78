"""PYTHON: an interpreter of linear programs that checks every access and detects races (docs/design.md).

- ``device.py``: the device; ``render.py``: linear programs as Python generators; ``runtime.py``: the functions that
  they call, and the launch.
- ``warps.py``: warps, blocks, and the order that barriers and shuffles establish.
- ``memory.py``: checked memory, and the race detector; ``rings.py``: asynchronous copies and matrix units.
"""
