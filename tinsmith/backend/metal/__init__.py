"""Metal on macOS, through pyobjc. On other systems kernel sources can still be generated and shown.

``device.py`` has the device, its allocator, compiler and programs; the renderer is ``codegen/render/metal.py``.
"""
