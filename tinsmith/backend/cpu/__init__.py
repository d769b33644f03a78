"""The CPU backend: LLVM through llvmlite, a native worker pool, and memory in huge pages."""
