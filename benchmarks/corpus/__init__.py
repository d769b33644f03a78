"""The frozen corpus: what is chosen and written for many kernels on many machines, kept as text."""
