"""Rewrites before fusion: a tensor graph goes in, an equivalent one comes out. ``schedule/scheduler.py`` runs them.

- ``rewrites.py``: the driver ``rebuilt``; removal of empty values; casts moved below views.
- ``polyphase_conv.py``: strided transposed convolutions as dense ones, one per phase.
- ``sorted_scatter.py``: scatter-add by sorting.
- ``compact_scatter.py``: rounded scatter-add in one row per distinct index.
- ``split_reductions.py``: partial results of long reductions and scans.
- ``channels_last.py``: copies of operands that TMA boxes can read; the cut of a matmul with few tiles.
- ``promote_constants.py``, ``dynamic_sizes.py``: constants and sizes that change between calls become arguments and
  variables (called by ``runtime/realize.py``).
"""
