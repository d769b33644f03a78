"""Sizes that are known at run time only.

- ``variable.py``: ``Variable``, a named integer between bounds.
- ``traced.py``: the sizes that a captured function sees, which report how they are used.
- ``growth.py``: values that grow in a loop.
"""
