"""Candidate generators for grids of thread blocks: a kernel graph goes in, lists of opts with a price come out.

- ``blocks.py``: the table of generators by structure (``BLOCKS``), and general reductions.
- ``products.py``: contractions with tiles staged in local memory; ``rings.py``: contractions on a unit that reads the
  slots of a ring (``wgmma``); ``back_to_back_gemm.py``: chains of contractions (attention).
- ``bandwidth.py``: memory-bound kernels: row and column reductions, maps.
"""
