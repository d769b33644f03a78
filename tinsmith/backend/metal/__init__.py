"""Metal on macOS, through pyobjc. On other systems kernel sources can still be generated and shown."""
