"""Tensor: one file per family of methods."""
