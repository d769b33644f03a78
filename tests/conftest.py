"""Every program that a test compiles is checked against the rules of its dialects between passes."""
import os

os.environ.setdefault("CHECK_IR", "1")
