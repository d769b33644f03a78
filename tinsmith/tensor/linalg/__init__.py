"""Linear algebra: matrices go in, factors and solutions come out as graphs. On a CPU, LAPACK factorizes.

- ``triangular.py``: Cholesky and LU, determinants, solving; ``orthogonal.py``: QR, symmetric eigenvalues, SVD,
  and functions made of these: least squares, pseudo-inverse, rank, powers, norms.
"""
