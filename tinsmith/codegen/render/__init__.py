"""Renderers: a linear program becomes source text. Base class, C family, LLVM IR."""
