"""DISK: files as a device, memory without programs that outlives the process."""
