"""Fourier transforms: real tensors, or pairs (real, imaginary) along a last axis of size 2, go in and come out.

- ``fft.py``: the transforms in any number of axes, and ``stft``.
- ``window_functions.py``: Hann, Hamming and other windows; frequencies of a transform.
"""
