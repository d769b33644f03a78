"""Elementwise methods: tensors go in, nodes of elementwise ops come out.

- ``arithmetic.py``: casts, arithmetic, comparisons, selection, bits, rounding, Python's operators.
- ``functions.py``: powers, exponentials, trigonometry, special functions, activations.
- ``elementwise.py``, ``elementary.py``, ``special.py``: their formulas, coefficients and gradients.
- ``products.py``: subscripts, dtypes and gradients of ``matmul`` and ``einsum``.
"""
