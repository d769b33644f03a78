"""Memory and files that others share: arrays, capsules, files and URLs go in, tensors come out, and back.

- ``protocols.py``: NumPy's and Python's protocols; ``dlpack.py``: DLPack capsules; ``einops.py``: the backend for
  einops.
- ``files.py``: tensors on mapped files (device DISK); ``sources.py``: tensors from files, addresses and URLs.
- ``hashing.py``: hashes of a tensor's bytes.
"""
