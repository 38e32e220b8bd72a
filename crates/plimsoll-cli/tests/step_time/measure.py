"""Measures the programs on a GPU: `python measure.py OUT [NAME...]` writes a line of JSON for each program to a file.

A line has the wall time and the processor time of steps, and for each kind of operator in a step, the time of its
kernels. Each program should run in its own process. `fit.py` and `compare.py` read the lines.
"""

from __future__ import annotations

import importlib.util
import json
import pathlib
import statistics
import sys
import time
from typing import Any

import programs
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

WARM, STEPS = 4, 8  # steps before the measured ones, and those
place = pathlib.Path(__file__).parents[2] / "python/plimsoll/techniques/kinds.py"
spec = importlib.util.spec_from_file_location("kinds", place)
assert spec and spec.loader
kinds = importlib.util.module_from_spec(spec)
spec.loader.exec_module(kinds)


def tensors_in(value: Any) -> list[Any]:
    """The GPU's tensors in a value."""
    if isinstance(value, torch.Tensor):
        return [value] if value.is_cuda else []
    if isinstance(value, dict):
        return tensors_in(list(value.values()))
    return [it for part in value for it in tensors_in(part)] if isinstance(value, (list, tuple)) else []


class Mode(TorchDispatchMode):
    """Records each operator, inside a range with its number."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[dict[str, Any] | None] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, packet = kwargs or {}, func._overloadpacket
        with torch.profiler.record_function(f"op#{len(self.rows)}"):
            self.rows.append(None)
            result = func(*args, **kwargs)
        found = tensors_in((args, kwargs, result))
        if not found or packet.__name__ in kinds.FREE or getattr(func, "is_view", False):
            return result
        flops = kinds.of_convolution(packet, args, result)
        if flops is None:
            flops = flop_registry[packet](*args, **kwargs, out_val=result) if packet in flop_registry else 0
        kind = kinds.of(packet, args, found)
        floating = next((it.dtype for it in found if it.is_floating_point()), torch.float32)
        self.rows[-1] = dict(
            kind=kind, type=str(floating).removeprefix("torch."), width=kinds.width(packet, args),
            flops=flops, bytes=kinds.moved(kind, found), number=0, us=0.0,
        )  # fmt: skip
        return result


def operators(step: Any) -> dict[str, Any]:
    """The operators of a step, with the time of their kernels."""
    mode = Mode()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile, mode:
        step()
        torch.cuda.synchronize()
    kernels = 0
    for event in profile.events():
        is_own = event.name.startswith("op#")
        if str(event.device_type).endswith("CUDA"):
            kernels += not is_own
        elif is_own and (row := mode.rows[int(event.name[3:])]):
            row["us"] += event.device_time_total
    merged: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in filter(None, mode.rows):
        key = tuple(row[name] for name in ("kind", "type", "width", "flops", "bytes"))
        known = merged.setdefault(key, dict(row, us=0.0))
        known["number"], known["us"] = known["number"] + 1, known["us"] + row["us"]
    return dict(kernels=kernels, operators=list(merged.values()))


def measured(name: str) -> dict[str, Any]:
    """A line of the output."""
    torch.manual_seed(0)
    step = (programs.FITTED | programs.OTHERS)[name]()
    for _ in range(WARM):
        step()
    torch.cuda.synchronize()
    processor = []
    begun = time.perf_counter()
    for _ in range(STEPS):
        before = time.process_time()
        step()
        processor.append(time.process_time() - before)
    torch.cuda.synchronize()
    wall = (time.perf_counter() - begun) / STEPS
    gpu = torch.cuda.get_device_name()
    return dict(name=name, gpu=gpu, wall_s=wall, host_s=statistics.median(processor), **operators(step))


def main() -> None:
    """Measures the programs of the command line, or all."""
    out, *wanted = sys.argv[1:]
    for name in wanted or (programs.FITTED | programs.OTHERS):
        line = measured(name)
        with open(out, "a") as file:
            file.write(json.dumps(line) + "\n")
        print(
            f"{name}: {line['wall_s'] * 1e3:.2f} ms a step, {line['host_s'] * 1e3:.2f} ms of the processor", flush=True
        )


main()
