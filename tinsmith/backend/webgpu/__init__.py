"""WebGPU through the wgpu package: Vulkan, Metal and Direct3D 12, and Mesa's software Vulkan where there is no GPU."""
