"""PYTHON: an interpreter of linear programs that checks every access and detects races (docs/design.md).

- ``device.py``: the device, the launch, and the functions that programs call; ``render.py``: linear programs as Python
  generators.
- ``warps.py``: warps, blocks, and the order that barriers and shuffles establish; asynchronous copies and units.
- ``memory.py``: checked memory, and the race detector.
"""
