"""Methods that move elements: tensors go in, nodes of movement ops come out (views where PyTorch has views).

- ``movement.py``: reshape, permute, expand, pad, shrink, flip; ``layout.py``: PyTorch's other names for axes.
- ``joining.py``: concatenation, stacking and splitting; ``rearrange.py``: the formula notation of einops.
"""
