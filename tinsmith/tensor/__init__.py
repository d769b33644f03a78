"""``Tensor``: method calls go in, graph nodes come out; nothing is computed before a value is read or realized.

The methods are a chain of twelve classes, one per subject, each of which builds on those before it; the other modules
of a folder have the formulas, algorithms and gradients that the methods call.

- ``base.py``: ``TensorBase``: node, memory, values; ``execution.py``: sizes, devices, realization, gradients.
- ``shape/``: ``Movement``, ``Layout``; ``math/``: ``Arithmetic``, ``Functions``; ``reduce/``: ``Reduce``;
  ``indexing/``: ``Indexing``; ``create/``: ``Creation``; ``linalg/``: ``LinearAlgebra``; ``nnops/``: ``Functional``;
  ``interop/``: ``Interop``; ``tensor.py``: ``Tensor`` with second names and in-place forms (``names.py``).
- ``realize.py``: from tensors to programs; ``storage.py``: memory shared by views.
- ``autograd/``: gradients; ``placement.py``: shards; ``modes.py``, ``autocast.py``: switches for a block.
- ``host_data.py``: values and functions of the host; ``arguments.py``, ``helpers.py``, ``sizes.py``: arguments, axes
  and sizes; ``checks.py``: ``CHECKED=1``; ``layer_names.py``: origins of nodes; ``display.py``: the text of a tensor.
"""
