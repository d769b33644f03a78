"""Renderers: source text of a linear program, for the C family, LLVM IR and WGSL."""
