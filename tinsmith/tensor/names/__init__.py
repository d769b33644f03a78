"""Names of tensor methods: other names that work, and names that do not exist.

- ``aliases.py``: PyTorch's and the tutorials' other names of methods, and in-place forms.
- ``missing.py``: names of PyTorch that tensors lack; the error names the replacement.
"""
