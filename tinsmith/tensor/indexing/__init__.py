"""Indexing: ``x[...]`` goes in; movement nodes, GATHER and SCATTER come out.

- ``indexing.py``: the methods: reads and writes by index, sorting, statistics of sorted values.
- ``subscripts.py``: the parser of the index in ``x[...]``; ``slices.py``: boxes with steps and directions.
- ``positions.py``: binary search and index vectors.
"""
