"""Operations of neural networks as tensor methods; ``nn/layers`` are objects around them.

- ``functional.py``: norms, dropout, attention, embeddings; ``activations.py``: activation functions, losses.
- ``windows.py``: convolutions and pools; ``resampling.py``: interpolation.
"""
