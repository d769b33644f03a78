"""Data for training: arrays, mapped files and sequences go in, batches come out.

``loader.py`` has ``DataLoader``, which loads batches while the device computes. Data sets are in ``nn/datasets.py``.
"""
