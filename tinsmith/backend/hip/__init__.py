"""HIP: generates kernel sources for AMD GPUs; nothing here runs them.

``device.py`` names the device and its renderer, ``codegen/render/hip.py``.
"""
