"""Order and memory of a schedule: items over slots go in; a checked order and the memory of each slot come out.

- ``memory_plan.py``: dependency order, and ``verify_order``, which runs after every pass that moves items; outputs that
  overwrite the memory of an input; temporaries packed into one block per device by live ranges.
- ``slice_writes.py``: writes to a part of a value, and parts of a concatenation, stored at their final positions.
- ``memory_budget.py``: reordering and rematerialization under a limit of bytes.
"""
