"""WebGPU through the wgpu package: Vulkan, Metal and Direct3D 12, or Mesa's software Vulkan without a GPU.

``device.py`` has the device, its allocator, compiler and programs; the renderer is ``codegen/render/wgsl.py``.
"""
