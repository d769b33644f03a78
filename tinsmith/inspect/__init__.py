"""Inspection of programs: explain, plan, profile, traces, run-time checks, and BEAM search."""
