"""CUDA: kernels compiled with NVRTC and launched through the driver API; realized schedules become CUDA graphs."""
