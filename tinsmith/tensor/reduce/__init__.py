"""Methods along axes: tensors and axes go in, nodes of REDUCE, SCAN and HISTOGRAM come out.

- ``reduce.py``: sums, extremes, means, variances, softmax; ``scans.py``: cumulative sums, products and extremes.
- ``sorting.py``: sort, top-k and their relatives.
- ``statistics.py``: quantiles, histograms, covariances, distances.
"""
