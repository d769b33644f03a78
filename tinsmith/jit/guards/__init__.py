"""Guards: the state that a captured call read goes in; a check whether a replay is valid comes out.

- ``signature.py``: the key of a call's arguments, and the names that a function can read.
- ``state.py``: attributes, globals and containers that were read.
- ``tensors.py``: tensors that were read besides the arguments; the guards of the latest capture as flat lists.
"""
