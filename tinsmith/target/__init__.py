"""Machine data: what a device can do, and the costs by which the scheduler and the planner choose.

A device's renderer holds one ``Target``; schedule/, codegen/ and runtime/ read its fields and never a device's name.

- ``target.py``: ``Target``: capabilities, memory sizes, matrix units, and the three records below.
- ``cpu_model.py``: ``CpuModel`` and ``TileCosts``: costs and limits of kernels on cores.
- ``gpu_model.py``: ``GpuModel``: the same for grids of thread blocks.
- ``schedule_costs.py``: ``Costs`` and ``Cuts``: when to recompute a value, and how to split reductions and scans.
- ``units/``: matrix instructions, one row of data each.
"""
