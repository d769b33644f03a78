"""Candidate generators for grids of thread blocks: a kernel graph goes in, lists of opts with a price come out.

- ``products.py``: the table of generators by structure (``BLOCKS``), contractions with tiles staged in local memory,
  and general reductions.
- ``rings.py``: contractions, and chains of them (attention), on a unit that reads the slots of a ring (``wgmma``).
- ``bandwidth.py``: memory-bound kernels: row and column reductions, maps.
- ``windows.py``: sums over overlapping windows: pools, convolutions of single channels, and their gradients.
"""
