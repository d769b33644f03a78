"""What people ask about programs: explanations, plans, profiles, traces, checks, and searches of opts."""
