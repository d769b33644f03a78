"""CUDA: CUDA C++ goes in, kernels launched through the driver API come out; schedules become CUDA graphs.

- ``device.py``: the device, its target, programs and graphs; ``driver.py``: context, streams, events and errors.
- ``memory.py``: GPU memory and copies through pinned buffers.
- ``nvrtc.py``: compilation, which needs no GPU; ``tensor_maps.py``: TMA descriptors.
"""
