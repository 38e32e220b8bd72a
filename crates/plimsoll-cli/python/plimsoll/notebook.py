"""``%load_ext plimsoll``: ``%%memory`` measures the GPU memory of a cell, and ``%memory`` that of a statement."""

from __future__ import annotations

from typing import Any

from . import sizes
from .measure import Device, Measured, table

ROWS = 6


def load(ipython: Any) -> None:
    """Registers the magics, for ``%load_ext plimsoll``."""
    ipython.register_magic_function(lambda line, cell=None: memory(ipython, line, cell), "line_cell", "memory")


def memory(ipython: Any, line: str, cell: str | None) -> None:
    rows, code = arguments(line, cell)
    if rows is None:
        return print("usage: %%memory [ROWS], above the code; or %memory STATEMENT")
    why = missing()
    if why is not None:
        print(f"not measured: {why}")
        ipython.run_cell(code)
        return None
    measured = Measured()
    measured.begin()
    devices: list[Device] = []
    try:
        ipython.run_cell(code)  # prints the traceback of a failure, and its result
    finally:
        devices = measured.end()
    for device in devices:
        print("\n".join(report(device, rows)))
    return None


def arguments(line: str, cell: str | None) -> tuple[int | None, str]:
    if cell is None:
        return (ROWS, line) if line.strip() else (None, "")
    if not line.strip():
        return ROWS, cell
    return (int(line), cell) if line.strip().isdecimal() and int(line) > 0 else (None, "")


def missing() -> str | None:
    try:
        import torch
    except ImportError as why:
        return f"PyTorch cannot be imported ({why})"
    return None if torch.cuda.is_available() else "no CUDA GPU (torch.cuda.is_available() is False)"


def report(device: Device, rows: int) -> list[str]:
    lines = [
        f"GPU {device.device}: peak {sizes.shown(device.peak_bytes)} allocated, {sizes.shown(device.reserved_bytes)} reserved;"
        f" {sizes.shown(device.before_bytes)} before, {sizes.shown(device.after_bytes)} after"
        f" ({'+' if device.growth_bytes > 0 else ''}{sizes.shown(device.growth_bytes)})"
    ]
    if device.owners:
        lines += ["allocated at the peak:", *table(device.owners, rows)]
    elif device.note:
        lines.append(device.note)
    if device.grown:
        lines += ["still allocated:", *table(device.grown, rows)]
    return lines
