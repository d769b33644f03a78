"""The process that measures one model: ``python -m benchmarks.zoo.worker``; a line of JSON per row."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--size", default="small")
    parser.add_argument("--rows", default="inference/f32,training/f32,inference/bf16,training/bf16")
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--inductor", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compile-only", default="")
    parser.add_argument("--strict", action="store_true", help="a rule that fails is an error")
    options = parser.parse_args()
    os.environ["THREADS"] = str(options.threads)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    out = os.dup(1)
    os.dup2(2, 1)  # what libraries print is no result

    import torch

    from benchmarks.zoo.measure import Settings, measured
    from benchmarks.zoo.registry import models

    torch.set_num_threads(options.threads)
    settings = Settings(options.rounds, options.inductor, options.strict, options.device, options.compile_only)
    for text in options.rows.split(","):
        mode, _, precision = text.partition("/")
        row = measured(models()[options.model], options.size, mode, precision, settings)
        os.write(out, (json.dumps({**asdict(row), "passed": row.passed}) + "\n").encode())
    sys.stdout.flush()


if __name__ == "__main__":
    main()
