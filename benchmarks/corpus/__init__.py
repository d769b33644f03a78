"""The frozen corpus: opts and source texts of many kernels for many targets, stored as text."""
