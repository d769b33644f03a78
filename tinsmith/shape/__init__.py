"""Movement ops as index maps: where in memory does element ``i`` of a reshaped, padded, flipped tensor live?

``Tensor.uop.st`` is such a map, and the trees of kernels show one for each buffer; a write to a view goes to where its
``View`` says (``tensor/storage.py``). Kernels have indices of their own (``codegen/indexing.py``).

Everything works on Python ints and on ``core.sint.SymbolicInt`` alike. Nothing here knows what a graph node is.
"""
from tinsmith.shape.reshape import merge_dims
from tinsmith.shape.tracker import ShapeTracker
from tinsmith.shape.view import View

__all__ = ["ShapeTracker", "View", "merge_dims"]
