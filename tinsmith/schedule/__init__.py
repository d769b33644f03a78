"""The scheduler: rewrites before fusion, kernel fusion, order of kernels, memory plan, and sharding over devices."""
