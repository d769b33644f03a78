"""Data for training: arrays, mapped files and sequences go in, batches come out.

- ``loader.py``: ``DataLoader``, which loads batches while the device computes.
- ``downloads.py``: cached downloads of data set files, with hash check.

The data sets themselves are in ``nn/datasets.py``.
"""
