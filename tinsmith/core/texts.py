"""Human-readable text of counts, percentages, times and sizes."""
from __future__ import annotations


def plural(n: int, word: str) -> str:
    """Return a count with its noun in the right number.

    >>> plural(1, "copy"), plural(2, "copy"), plural(2, "launch"), plural(0, "kernel")
    ('1 copy', '2 copies', '2 launches', '0 kernels')
    """
    many = f"{word[:-1]}ies" if word.endswith("y") else f"{word}es" if word.endswith("ch") else f"{word}s"
    return f"{n} {word if n == 1 else many}"


def cut(text: str, width: int) -> str:
    """Truncate to ``width`` characters, with an ellipsis.

    >>> cut("abcdef", 4), cut("abcd", 4)
    ('abc…', 'abcd')
    """
    return text if len(text) <= width else f"{text[: width - 1]}…"


def percent(share: float) -> str:
    """Format a fraction as a percentage.

    >>> percent(0.257), percent(0.004)
    ('26 %', '0.4 %')
    """
    return f"{share * 100:.0f} %" if share >= 0.0995 or share == 0 else f"{share * 100:.1f} %"


def time_text(seconds: float) -> str:
    """Format seconds with a suitable unit: us, ms or s.

    >>> [time_text(s) for s in (3e-8, 1.234e-5, 0.0123, 2.0)]
    ['0.03 us', '12.3 us', '12.3 ms', '2.00 s']
    """
    value, unit = next(((seconds * k, u) for k, u in ((1e6, "us"), (1e3, "ms")) if seconds * k < 1000), (seconds, "s"))
    return f"{value:.2f} {unit}" if value < 10 else f"{value:.1f} {unit}" if value < 100 else f"{value:.0f} {unit}"


def bytes_text(n: int) -> str:
    """Format a number of bytes with a decimal unit.

    >>> [bytes_text(n) for n in (12, 4096, 67108864)]
    ['12 B', '4.1 KB', '67.1 MB']
    """
    value, unit = next(((n / k, u) for k, u in ((1e9, "GB"), (1e6, "MB"), (1e3, "KB")) if n >= k), (float(n), "B"))
    return f"{n} B" if unit == "B" else f"{value:.1f} {unit}"
