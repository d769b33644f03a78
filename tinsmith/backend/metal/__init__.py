"""Metal on macOS, through pyobjc. Elsewhere its kernels are written, and shown to who asks for them."""
