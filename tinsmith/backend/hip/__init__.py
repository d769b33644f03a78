"""HIP: generates kernel sources for AMD GPUs; nothing here runs them."""
