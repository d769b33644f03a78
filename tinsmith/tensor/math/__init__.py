"""Elementwise methods and products: tensors go in, nodes of elementwise ops (and sums, for products) come out.

- ``elementwise.py``: arithmetic, bits, signs, rounding, Python's operators; ``comparisons.py``: logic, tests and
  choices.
- ``elementary.py``: powers, exponentials, logarithms, trigonometry; ``special.py``: error and gamma functions.
- ``casting.py``: dtypes.
- ``products.py``: ``matmul``, ``einsum`` and other contractions.
"""
