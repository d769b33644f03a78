"""The kernel compiler: lowering of a kernel's tensor graph, optimizer, linearizer and renderers."""
