"""NPY: NumPy arrays as a device: memory without programs.

``device.py`` has the allocator: ``Tensor(array)`` uses the caller's array until the data are copied to another device.
"""
