"""Guards: the state that a captured call read goes in; a check whether a replay is valid comes out.

- ``signature.py``: the key of a call's arguments; ``state.py``: attributes, globals and containers that were read.
- ``tensors.py``: tensors that were read besides the arguments; ``bytecode_names.py``: names that a function can read.
- ``fast_path.py``: the guards of the latest capture as flat lists.
"""
