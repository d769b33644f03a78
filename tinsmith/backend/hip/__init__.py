"""HIP: kernels for AMD's GPUs are written; nothing here runs them."""
