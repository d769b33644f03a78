"""The runtime: realize, parallel compilation, kernel launches, device queues, and programs on disk."""
