"""Metal: kernels are written; compiling and running them needs a Mac."""
