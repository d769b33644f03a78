"""Movement ops as index maps: where in memory does element ``i`` of a reshaped, padded, flipped tensor live?

Everything works on Python ints and on ``core.sint.SymbolicInt`` alike. Nothing here knows what a graph node is.
"""
from tinsmith.shape.reshape import merge_dims
from tinsmith.shape.tracker import ShapeTracker
from tinsmith.shape.view import View

__all__ = ["ShapeTracker", "View", "merge_dims"]
