"""Typical user programs, which must work on every device before anything else is tested."""
