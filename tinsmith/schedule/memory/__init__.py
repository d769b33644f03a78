"""Order and memory of a schedule: items over slots go in; a checked order and the memory of each slot come out.

- ``dependencies.py``: dependency order, and ``verify_order``, which runs after every pass that moves items.
- ``memory_plan.py``: temporaries packed into one block per device by live ranges.
- ``in_place.py``: outputs that overwrite the memory of an input.
- ``store_into_concat.py``: parts of a concatenation written directly to their final positions.
- ``memory_budget.py``: reordering and rematerialization under a limit of bytes.
"""
