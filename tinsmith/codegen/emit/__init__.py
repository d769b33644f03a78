"""The linearizer: a kernel graph with its opts goes in, a linear program (a list of UOps) comes out.

- ``linearize.py``: the entry point, class ``Linearizer``, and branches for rare values; ``emitter.py``: its base class
  (values, indices, memory accesses); ``scopes.py``: loops; ``reductions.py``: accumulators, reduction loops,
  and reductions over warps by shuffles.
- ``thread_blocks.py``, ``barriers.py``: blocks of threads, removal of redundant barriers.
- ``fragments.py``: results of matrix units in registers, and chains of contractions on them.
- ``block_rank.py``: histograms and ranks; ``strided.py``: strided vector accesses.
"""
