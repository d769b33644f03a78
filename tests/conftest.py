"""Every program that a test compiles is checked against the rules of its dialects between passes, and runs on memory
that holds NaN where nothing is written: a kernel that is lost shows."""
import os

from hypothesis import settings

os.environ.setdefault("CHECK_IR", "1")
os.environ.setdefault("POISON", "1")

# How long an example takes depends on what else the machine does, and whether its kernels are compiled already.
settings.register_profile("tinsmith", deadline=None)
settings.load_profile("tinsmith")
