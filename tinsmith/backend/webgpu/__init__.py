"""WebGPU through the wgpu package: Vulkan, Metal and Direct3D 12, or Mesa's software Vulkan without a GPU."""
