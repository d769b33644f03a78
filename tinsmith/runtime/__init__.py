"""What runs: kernels loaded and launched, queues of devices, programs on disk."""
