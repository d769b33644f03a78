"""Creation of tensors: shapes, numbers and seeds go in, graph nodes without memory come out.

- ``creation.py``: the methods: constants, ranges, patterns, in-place fills, random draws, new tensors like given ones.
- ``random.py``: random numbers from counters (Threefry), and the generator's state.
"""
