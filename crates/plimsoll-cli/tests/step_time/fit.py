"""Fits the rates of operators to measured ones: `python fit.py MEASURED.jsonl` prints rows for `src/plan/time/rates.rs`. Only the
programs `FITTED` count where they have the kind; kinds that only the others have are fitted to those. For an H200; needs NumPy.
"""

from __future__ import annotations

import collections
import json
import sys
from typing import Any

import numpy as np
import programs

# Bytes and FLOPs per microsecond (the H200's datasheet), and the constants of rates.rs.
BYTES, CHANNELS, GROUPS = 4.8e6, 200, 100
FLOPS = dict(float64=67e6, float32=67e6, tf32=494e6, bfloat16=989e6, float16=989e6)
FIXED, SHARES = np.concatenate([[0.8], np.geomspace(1, 300, 36)]), np.geomspace(0.01, 1.3, 50)


def times(row: dict[str, Any]) -> tuple[float, float]:
    """Microseconds of arithmetic and of traffic at the datasheet's rates."""
    kind, width = row["kind"], row["width"]
    name = "tf32" if "convolution" in kind and row["type"] == "float32" else row["type"]
    arithmetic, traffic = row["flops"] / FLOPS.get(name, 67e6), row["bytes"] / BYTES
    if width and "convolution" in kind:
        arithmetic *= (width + CHANNELS) / width
    if width and "group norm" in kind:
        traffic *= (width + GROUPS) / width
    return arithmetic, traffic


def main() -> None:
    """Prints the best rates of each kind: the least mean of |log(fitted / measured)|, weighted by time."""
    kinds: dict[str, list[tuple[bool, dict[str, Any]]]] = collections.defaultdict(list)
    with open(sys.argv[1]) as file:
        for line in map(json.loads, file):
            for row in line["operators"]:
                if row["us"]:
                    kinds[row["kind"]].append((line["name"] in programs.FITTED, row))
    for kind, found in sorted(kinds.items()):
        rows = [row for is_fitted, row in found if is_fitted] or [row for _, row in found]
        arithmetic, traffic = np.array([times(row) for row in rows]).T
        number = np.array([row["number"] for row in rows])
        actual = np.array([row["us"] for row in rows]) / number
        weights = number * actual / (number * actual).sum()
        best = (np.inf, 0.0, 1.0, 1.0)
        for share in SHARES if arithmetic.any() else SHARES[-1:]:
            fitted = FIXED[:, None, None] + arithmetic / share + (traffic / SHARES[:, None])[None]
            error = (np.abs(np.log(fitted / actual)) * weights).sum(-1)
            first, last = np.unravel_index(error.argmin(), error.shape)
            best = min(best, (float(error[first, last]), FIXED[first], share, SHARES[last]))
        error, fixed, share, traffic_share = best
        print(f'    kind("{kind}", {fixed:.1f}, {share:.2f}, {traffic_share:.2f}),  // {error:.2f}')


main()
