"""OpenCL devices, GPUs and PoCL on a CPU, through pyopencl.

``device.py`` has the device, its allocator, compiler and programs; the renderer is ``codegen/render/opencl.py``.
"""
