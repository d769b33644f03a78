"""Programs as users write them, which must work on every device before anything else is looked at."""
