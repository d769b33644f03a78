"""Kernel fusion: a tensor graph goes in; the verdict about each value comes out, stored or fused, with the rule.

- ``rules.py``: the rules as tables of named rows, each with its law, its test, and the text of both verdicts. Start
  here for "why is this one kernel", and to add a rule; docs/design.md (Scheduling) answers the question for softmax.
- ``fusion.py``: the walk over the graph that collects the reads of each value and records the verdicts: ``fused``
  returns the ``Fusion`` record. Every value that is not stored is computed inside its readers' kernels.
- ``analysis.py``: one record of facts per value, and queries about contractions with computed operands.
- ``memory_order.py``: the order of axes in which each value is stored.
- ``fan_in.py``: backward slices for this decision: views above a value, and the elementwise fan-in down to reductions.

Afterwards, on the list of kernels:

- ``horizontal.py``: kernels with common loops or inputs become one; column sums move into a kernel that reads the same
  rows.
"""
