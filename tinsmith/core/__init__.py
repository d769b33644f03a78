"""The base layer: dtypes, settings, errors, the disk cache, counters. It imports no other part of the package."""
