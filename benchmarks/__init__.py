"""Side-by-side measurements of Tinsmith, PyTorch and tinygrad: ``python -m benchmarks --help``."""
