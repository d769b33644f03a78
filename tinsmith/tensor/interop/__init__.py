"""Memory and files that others share: arrays, capsules, files and URLs go in, tensors come out, and back.

- ``protocols.py``: NumPy's and Python's protocols; tensors from files, addresses and URLs; the backend for einops.
- ``dlpack.py``: DLPack capsules.
- ``files.py``: tensors on mapped files (device DISK), and hashes of their bytes.
"""
