"""From a kernel's tensor graph to source: lowering, optimizer choices, linearizer, renderers."""
