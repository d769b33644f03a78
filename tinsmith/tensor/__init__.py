"""``Tensor``: method calls go in, graph nodes come out; nothing is computed before a value is read or realized.

- ``tensor.py``: the class, assembled from ``base.py`` (node, memory, values) and one class of methods per family.
- ``math/``, ``reduce/``, ``shape/``, ``indexing/``, ``create/``, ``nnops/``, ``linalg/``, ``fft.py``: the families;
  ``names.py``: aliases and missing names; ``interop/``: files and other array libraries.
- ``realize.py``, ``realize_methods.py``: from tensors to programs; ``storage.py``: memory shared by views.
- ``autograd/``: gradients; ``placement.py``: devices and shards; ``modes.py``, ``autocast.py``: switches for a block.
- ``host_data.py``: values and functions of the host; ``arguments.py``, ``helpers.py``, ``sizes.py``: arguments, axes
  and sizes; ``checks.py``: ``CHECKED=1``; ``layer_names.py``: origins of nodes; ``display.py``: the text of a tensor.
"""
