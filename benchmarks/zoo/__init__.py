"""The model zoo: ``torch.compile(backend="tinsmith")`` on models that nobody here chose (docs/torch.md).

``registry.py`` names the models, ``models_*.py`` build them; ``worker.py`` measures one model in a process of its own
with ``measure.py``; ``runner.py`` starts the workers and keeps the results in a JSON file; ``summary.py`` reads such
files; ``ops.py`` has the distinct ops of all graphs. ``python -m benchmarks zoo --help``.
"""
