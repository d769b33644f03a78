"""Methods along axes: tensors and axes go in, nodes of REDUCE, SCAN and HISTOGRAM come out.

- ``reduce.py``: sums, extremes, means, variances, softmax; cumulative sums, products and extremes.
- ``statistics.py``: sort, top-k and their relatives; quantiles, histograms, covariances, distances.
"""
