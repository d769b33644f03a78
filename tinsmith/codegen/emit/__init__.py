"""The linearizer: a kernel graph with its opts goes in, a linear program (a list of UOps) comes out.

- ``linearize.py``: the entry point, class ``Linearizer``, and branches for rare values; ``emitter.py``: its base class
  (values, indices, memory accesses); ``scopes.py``: loops; ``reductions.py``: accumulators and reduction loops.
- ``thread_blocks.py``, ``warps.py``, ``barriers.py``: blocks of threads, shuffles, removal of redundant barriers.
- ``fragments.py``: results of matrix units in registers; ``back_to_back_gemm.py``: chains of contractions on them.
- ``block_rank.py``: histograms and ranks; ``strided.py``: strided vector accesses.
"""
