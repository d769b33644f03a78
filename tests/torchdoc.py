"""Generator of the coverage table in docs/torch.md: ``python tests/torchdoc.py``; it needs PyTorch."""
from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

PAGE = ROOT / "docs" / "torch.md"
BEGIN, END = "<!-- coverage: python tests/torchdoc.py -->", "<!-- end of coverage -->"


def core_ops() -> list[Any]:
    """Return the op overloads of core ATen, by name."""
    import torch

    found = []
    for full in torch._C._dispatch_get_all_op_names():
        namespace, _, name = full.partition("::")
        packet, _, overload = name.partition(".")
        if namespace == "aten" and overload != "out" and not overload.endswith("_out"):
            op = getattr(getattr(torch.ops.aten, packet), overload or "default", None)
            if op is not None and torch.Tag.core in op.tags:
                found.append(op)
    return sorted(found, key=str)


def table() -> list[str]:
    """Return the lines of the table: per op, its overloads and who runs them."""
    import torch

    from tinsmith.torch.decompositions import decompositions
    from tinsmith.torch.rules import rule_for

    rows: dict[str, dict[str, list[str]]] = {}
    counts = {"ours": 0, "decomposed": 0, "PyTorch": 0}
    for op in core_ops():
        who = "ours" if rule_for(op) else "decomposed" if op in decompositions() else "PyTorch"
        counts[who] += 1
        _, name, overload = str(op).split(".")
        rows.setdefault(name, {}).setdefault(who, []).append(overload)
    release = ".".join(torch.__version__.split(".")[:2])
    lines = [f"Of the {sum(counts.values())} ops of core ATen (PyTorch {release}), {counts['ours']} have a rule, "
             f"{counts['decomposed']} are decomposed into such, and PyTorch runs {counts['PyTorch']}.", "",
             "| run by | ops |", "| --- | --- |"]
    for who in counts:
        names = [f"`{name}`" + ("" if len(found) == 1 else f" ({', '.join(found[who])})")
                 for name, found in rows.items() if who in found]
        lines.append(f"| {who} | {', '.join(names) or '–'} |")
    return lines


def page() -> str:
    """Return the page with the current table."""
    text = PAGE.read_text("utf-8")
    block = "\n".join([BEGIN, "", *table(), "", END])
    return re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: block, text, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
