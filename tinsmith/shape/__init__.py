"""Movement ops as index maps: from the indices of a reshaped, padded or flipped tensor to memory addresses.

``Tensor.uop.st`` is such a map, and kernel trees print one per buffer; writes to tensor views use ``View`` to find
their memory (``tensor/storage.py``). Kernels compute their indices separately (``codegen/lower/indexing.py``).

- ``view.py``: one strided map, its reshapes, and merged dimensions.
- ``tracker.py``: ``ShapeTracker``, a stack of views, and two views as one.
- ``sint.py``: sizes, which are Python ints or ``SymbolicInt``; so this package does not depend on graph nodes.
"""
from tinsmith.shape.tracker import ShapeTracker
from tinsmith.shape.view import View, merge_dims

__all__ = ["ShapeTracker", "View", "merge_dims"]
