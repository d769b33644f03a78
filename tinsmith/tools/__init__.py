"""Command-line tools: generators of documentation pages, explanations of error codes."""
