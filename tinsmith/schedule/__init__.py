"""The scheduler: a tensor graph goes in, a list of kernels and copies over numbered buffers (slots) comes out.

- ``scheduler.py``: the driver: rewrites, fusion, then one ``ScheduleItem`` per kernel; ``schedule_item.py``: its data
  types.
- ``canonical.py``: the key of a program, independent of buffers and bound values.
- ``passes/``: rewrites before fusion; ``fusion/``: which values have memory and which kernels are merged; ``memory/``:
  order, memory plan, in-place updates, memory budget; ``multi/``: several devices.
- ``values.py``: sizes of values, views above them, and the ops that have memory of their own; sets of positions along
  an axis, to test if parts overlap.

``runtime/lowering.py`` calls all of this in order.
"""
