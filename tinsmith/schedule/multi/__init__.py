"""Several devices (SPMD): a graph of whole values goes in, a graph of parts, copies and collectives comes out.

- ``sharding.py``: the partitioner, with one rule per class of ops; ``axes.py``: where a partitioned axis goes in an
  op.
- ``collectives.py``: all-reduce, reduce-scatter, all-gather and broadcast as graphs; the order of steps that lets
  copies overlap with kernels.
"""
