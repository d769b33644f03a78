"""Linear algebra: matrices go in, factors and solutions come out as graphs. On a CPU, LAPACK factorizes.

- ``linear_algebra.py``: the methods, with those of Fourier transforms (``fft.py``).
- ``triangular.py``: algorithms and gradients of Cholesky and LU; ``orthogonal.py``: of QR, symmetric eigenvalues, SVD.
"""
