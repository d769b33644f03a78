"""The CPU: LLVM through llvmlite, a native worker pool, and memory in huge pages."""
