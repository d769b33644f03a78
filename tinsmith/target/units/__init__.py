"""Matrix units: rows of ``ir.matrix_unit.MatrixUnit``, one file per vendor. To add a unit, add a row here.

A row gives step sizes, element types, register layouts, required features and throughput (docs/new_accelerator.md).

- ``x86.py``: AMX tiles, AVX-512 dot products (BF16, VNNI), and the outer product by multiply-adds of any vector
  machine.
- ``nvidia.py``: ``mma.sync`` of a warp, ``wgmma`` of a warpgroup (Hopper).
- ``amd.py``: WMMA of RDNA 3; ``apple.py``: SIMD-group matrices.
"""
