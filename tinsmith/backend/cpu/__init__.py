"""The CPU backend: LLVM IR or C goes in, machine code run by a native worker pool comes out.

- ``device.py``: the device, its programs and graphs of launches; ``memory.py``: host memory, with reuse.
- ``llvm.py``: LLVM through llvmlite: features, compilation, linking, conversions of 16-bit floats; ``ccompiler.py``:
  gcc or clang instead.
- ``pool.py``: the worker pool; ``pool_program.py``: its LLVM IR; ``host.py``: NumPy functions among its commands.
- ``os_calls.py``: calls of the operating system, with fallbacks.
"""
