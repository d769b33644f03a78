"""CUDA: kernels compiled with NVRTC, launched through the driver; realized schedules become graphs of it."""
