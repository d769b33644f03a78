"""CUDA: kernels are compiled with NVRTC; nothing is launched yet."""
