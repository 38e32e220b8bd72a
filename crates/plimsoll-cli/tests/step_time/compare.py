"""Compares `plan`'s estimates with measured steps: `python compare.py PLIMSOLL PYTHON GPU MEASURED.jsonl [FACTOR] [NAME...]`
prints a row for each program of `measure.py`'s output. FACTOR is the measured machine's host factor (`plimsoll calibrate --host`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))


def estimate(plimsoll: str, python: str, gpu: str, factor: str | None, name: str) -> dict[str, Any]:
    """The row of the unchanged program in `plan`'s answer."""
    words = ["plan", "--gpu", gpu, "--json", *(["--host-factor", factor] if factor else [])]
    words += ["--", python, os.path.join(HERE, "programs.py"), name]
    answer = subprocess.run([plimsoll, *words], capture_output=True, text=True).stdout
    return json.loads(answer)["tried"][0]


def main() -> None:
    """Prints the table."""
    plimsoll, python, gpu, measured, *more = sys.argv[1:]
    factor = more.pop(0) if more else None
    print(
        "| program | measured, ms | estimated, ms | error | host, measured and estimated, ms | bound by |\n|---|---|---|---|---|---|"
    )
    errors = []
    with open(measured) as file:
        lines = [json.loads(line) for line in file]
    for line in lines:
        if more and line["name"] not in more:
            continue
        row = estimate(plimsoll, python, gpu, factor, line["name"])
        step, host = row["estimated_step_seconds"], row["estimated_host_seconds"]
        if step is None:
            print(f"| {line['name']} | {line['wall_s'] * 1e3:.1f} | none | | | |", flush=True)
            continue
        errors.append(step / line["wall_s"] - 1)
        print(
            f"| {line['name']} | {line['wall_s'] * 1e3:.1f} | {step * 1e3:.1f} | {errors[-1]:+.0%} |"
            f" {line['host_s'] * 1e3:.1f}, {host * 1e3:.1f} | {row['bound_by']} |",
            flush=True,
        )
    mean = sum(map(abs, errors)) / max(len(errors), 1)
    print(f"\nmean error {mean:.0%}, worst {max(errors, key=abs, default=0):+.0%}")


main()
