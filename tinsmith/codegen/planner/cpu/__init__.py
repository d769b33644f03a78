"""Candidate generators for CPU cores: a kernel graph goes in, lists of opts with a price come out.

- ``register_tiles.py``: contractions by register tiles and packed panels; ``matrix_units.py``: contractions on AMX and
  dot-product units; ``computed_operands.py``: contractions of computed operands (attention).
- ``reductions.py``: reductions along rows; ``elementwise.py``: maps, transposes and scatters.
- ``loops.py``: scans, and the opts that end every candidate: prefetches, non-temporal stores, threads.
- ``loop_partition.py``: when to partition a loop (CUT).
"""
