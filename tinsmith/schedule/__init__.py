"""Which values get memory, in what order kernels run, where buffers lie, and the running itself."""
