"""The CPU backend: LLVM IR or C goes in, machine code run by a native worker pool comes out.

- ``device.py``: the device, its memory, programs and graphs of launches.
- ``llvm.py``: LLVM through llvmlite (features, compilation, linking, conversions of 16-bit floats); gcc or clang.
- ``pool.py``: the worker pool, and NumPy functions among its commands; ``pool_program.py``: its LLVM IR.
- ``os_calls.py``: calls of the operating system, with fallbacks.
"""
