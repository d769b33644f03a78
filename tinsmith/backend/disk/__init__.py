"""DISK: a file as a device: persistent memory without programs.

``device.py`` maps the file of ``DISK:path``; ``tensor/interop/files.py`` reads and writes tensors on it.
"""
