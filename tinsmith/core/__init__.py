"""Ground floor: dtypes, settings, errors, the disk cache, counters. Imports nothing else of the package."""
