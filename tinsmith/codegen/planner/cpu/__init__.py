"""Candidate generators for CPU cores: a kernel graph goes in, lists of opts with a price come out.

- ``register_tiles.py``: contractions by register tiles and packed panels; ``matrix_units.py``: contractions on AMX and
  dot-product units, and contractions of computed operands (attention).
- ``reductions.py``: reductions along rows.
- ``loops.py``: maps, transposes, scatters and scans; when to partition a loop (CUT); the opts that end every candidate:
  prefetches, non-temporal stores, threads.
"""
