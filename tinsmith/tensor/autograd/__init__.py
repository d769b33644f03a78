"""Automatic differentiation: a value and targets go in, gradients as graph nodes come out.

- ``backward.py``: reverse mode by the gradient rules of the op table; ``backward()`` and ``gradient()``;
  gradients that the user or a formula gives: ``Function``, CUSTOM_GRADIENT.
- ``history.py``: the graphs of realized values, so that gradients flow through them.
"""
