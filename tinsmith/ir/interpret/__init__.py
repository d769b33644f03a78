"""Reference interpreters, the tests' oracle: a graph and NumPy arrays go in, the graph's values come out.

- ``tensor.py``: tensor graphs, op by op.
- ``kernel.py``: kernel graphs, with every opt applied, without linearizer, renderer or device.

Linear programs are interpreted by the PYTHON device (``backend/python``), which also detects races.
"""
