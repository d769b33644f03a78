"""Kernel fusion: a tensor graph goes in; the values that are stored come out, each with the reason that DEBUG=3 prints.

- ``fusion.py``: the decision for one graph: ``fused`` returns the ``Fusion`` record (with a reason per stored value)
  and the stored nodes in order; every other value is computed inside its consumers' kernels. Start here for "why is
  this one kernel"; docs/design.md (Scheduling) answers it for softmax.
- ``fan_in.py``: backward slices for this decision: views above a value, and the elementwise fan-in down to reductions.

Afterwards, on the list of kernels:

- ``horizontal.py``: kernels with common loops or inputs become one; column sums move into a kernel that reads the same
  rows.
"""
