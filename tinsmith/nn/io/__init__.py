"""File formats of weights and data: a path goes in, tensors and plain values come out. No code of a file is run.

- ``torch_files.py``: PyTorch checkpoints, and the safe unpickler behind them.
- ``ggml.py``: GGUF files, and dequantization of their block formats.
- ``archives.py``: tar, zip, ``.npy`` and ``.npz``.

Safetensors files are in ``nn/state.py``.
"""
