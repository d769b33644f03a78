"""Which values get memory, in what order kernels run, and where buffers lie."""
