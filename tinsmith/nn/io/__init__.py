"""File formats of weights and data: a path goes in, tensors and plain values come out. No code of a file is run.

- ``torch_files.py``: PyTorch checkpoints; ``pickles.py``: the safe unpickler behind them.
- ``gguf.py``: GGUF files; ``ggml.py``: dequantization of their block formats.
- ``numpy_files.py``: ``.npy`` and ``.npz``; ``archives.py``: tar and zip; ``values.py``: the plain values of a
  checkpoint.

Safetensors files are in ``nn/state.py``.
"""
