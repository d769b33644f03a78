"""Movement ops as index maps: from the indices of a reshaped, padded or flipped tensor to memory addresses.

``Tensor.uop.st`` is such a map, and kernel trees print one per buffer; writes to tensor views use ``View`` to find
their memory (``tensor/storage.py``). Kernels compute their indices separately (``codegen/lower/indexing.py``).

Sizes are Python ints or ``shape.sint.SymbolicInt``. This package does not depend on graph nodes.
"""
from tinsmith.shape.reshape import merge_dims
from tinsmith.shape.tracker import ShapeTracker
from tinsmith.shape.view import View

__all__ = ["ShapeTracker", "View", "merge_dims"]
