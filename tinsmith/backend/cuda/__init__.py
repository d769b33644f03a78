"""CUDA: CUDA C++ goes in, kernels launched through the driver API come out; schedules become CUDA graphs.

- ``device.py``: the device, its target, programs and graphs.
- ``driver.py``: context, streams, events and errors; NVRTC, which compiles without a GPU.
- ``launch_list.py``: many launches as one native call.
- ``memory.py``: GPU memory, copies through pinned buffers, and TMA descriptors.
"""
