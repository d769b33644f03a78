"""Decompositions: ops that a target lacks go in, basic operations come out. They run before any opt.

- ``decompose.py``: the driver, and the rules per op; 16-bit floats compute in float32.
- ``elementary.py``: exp, log, tanh, erf and relatives, powers, sin and cos of any angle.
- ``floats.py``: their building blocks (formats, fitted constants, double-float sums); 8-bit floats, stored as bytes.
"""
