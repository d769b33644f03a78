"""Integer algebra: index expressions, conditions and sizes go in; simpler equal nodes, or bounds, come out.

- ``symbolic.py``: the default rewrite rules, which hold for every value of every dtype, and rules that are wrong for
  NaN, infinities or signed zeros (``FASTMATH=1``).
- ``bounds.py``: interval arithmetic, and the free ranges of a node.
- ``sizes.py``: an index as a sum of terms with coefficients, and back; the normal form of symbolic sizes, and
  conditions on them.
"""
