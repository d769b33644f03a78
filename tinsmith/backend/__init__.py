"""The device protocol, the registry, and one folder per device with all that belongs to it."""
