"""Command-line tools: pages that are generated from the code, explanations of error codes."""
