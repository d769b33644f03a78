"""Indexing: ``x[...]`` goes in; movement nodes, GATHER and SCATTER come out.

- ``indexing.py``: reads and writes by index, ``gather`` and ``scatter``; ``subscripts.py``: the parser of what is
  between the brackets.
- ``slices.py``: boxes with steps and directions.
- ``positions.py``: ``take``, ``index_add``, ``searchsorted`` and other methods by position.
"""
