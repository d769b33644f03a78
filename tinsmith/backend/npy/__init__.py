"""NPY: NumPy arrays as a device: memory without programs."""
