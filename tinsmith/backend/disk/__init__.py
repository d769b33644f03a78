"""DISK: a file as a device: persistent memory without programs."""
