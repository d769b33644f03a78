"""Methods that move elements: tensors go in, nodes of movement ops come out (views where PyTorch has views).

- ``movement.py``: reshape, permute, expand, pad, shrink, flip; concatenation, stacking and splitting.
- ``layout.py``: PyTorch's other names for axes; the formula notation of einops.
"""
