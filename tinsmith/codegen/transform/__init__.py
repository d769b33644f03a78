"""The opts' implementation: a kernel graph and an ``Opt`` go in, an equivalent kernel graph comes out, or an error.

- ``apply.py``: the handler and the legality checks of each opt; it calls the files below for the larger ones.
- ``thread_blocks.py``: LOCAL, GROUP, GROUPTOP, ROLES, RANK and the axes of a grid.
- ``matrix_units.py``: TC; ``stages.py``, ``stage_builder.py``: STAGE, and HINT, ROTATE, WALK; ``rings.py``,
  ``tma_boxes.py``: staged tiles in several slots, filled by bulk copies or by threads.
- ``computed_operand.py``, ``back_to_back_gemm.py``: contractions of computed operands, on cores and on matrix units;
  ONLINE.
- ``skip_masked_blocks.py``: SKIP and CARRY.
"""
