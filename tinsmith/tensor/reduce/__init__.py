"""Methods along axes: tensors and axes go in, nodes of REDUCE, SCAN and HISTOGRAM come out.

- ``reduce.py``: the methods: sums, extremes, moments, norms; scans; products of matrices and ``einsum``.
- ``statistics.py``: the algorithms of sort, top-k, quantiles and histograms.
"""
