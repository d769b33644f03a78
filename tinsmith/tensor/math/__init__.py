"""Elementwise methods and products: tensors go in, nodes of elementwise ops (and sums, for products) come out.

- ``elementwise.py``: arithmetic, bits, signs, rounding; ``comparisons.py``: logic, tests and choices.
- ``elementary.py``: powers, exponentials, logarithms, trigonometry; ``special.py``: error and gamma functions.
- ``casting.py``: dtypes; ``operators.py``: Python's operators and in-place forms.
- ``products.py``: ``matmul``, ``einsum`` and other contractions.
"""
