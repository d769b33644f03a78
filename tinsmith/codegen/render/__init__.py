"""Renderers: a linear program goes in, source text of one kernel comes out.

- ``base.py``: class ``Renderer``, and queries of programs (launch sizes, local memory).
- ``language.py``: the C family; ``cstyle.py``: C for the CPU; ``gpu.py``: the base of the GPU languages, which
  ``cuda.py``, ``hip.py``, ``metal.py``, ``opencl.py`` and ``wgsl.py`` complete.
- ``llvm.py``: LLVM IR; ``llvm_arithmetic.py``: instruction sequences of its ops, AMX and dot products.

``backend/python/render.py`` renders for the interpreter.
"""
