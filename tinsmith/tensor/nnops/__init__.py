"""Operations of neural networks as tensor methods; ``nn/layers`` are objects around them.

- ``functional.py``: the methods: norms, dropout, attention, embeddings, convolution, pools, losses, interpolation.
- ``windows.py``: windows of convolutions and pools; ``resampling.py``: positions and weights of interpolation;
  ``activations.py``: gradients of activations and losses.
"""
