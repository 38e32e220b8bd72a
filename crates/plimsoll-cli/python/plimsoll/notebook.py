"""``%load_ext plimsoll``: ``%%memory`` measures the GPU memory of a cell, and ``%memory`` that of one statement."""

from __future__ import annotations

import ast
import linecache
from typing import Any

from . import sizes
from .measure import Device, Measured, Owner, is_cell, table
from .recording import no_gpu

ROWS = 6
NUMBERS: dict[str, int] = {}  # the numbers of measured cells, by their file names


def load(ipython: Any) -> None:
    """Registers the magics, for ``%load_ext plimsoll``."""
    ipython.register_magic_function(lambda line, cell=None: memory(ipython, line, cell), "line_cell", "memory")


def memory(ipython: Any, line: str, cell: str | None) -> None:
    """Runs the magic: runs the code, and prints the memory that it allocated."""
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
    number, known = ipython.displayhook.prompt_count, set(files(ipython))
    try:
        ipython.run_cell(code)  # prints the result of the code, or its traceback
    finally:
        devices = measured.end()
        # IPython counts the code of a magic as a separate cell; users see the number of the cell that contains this
        # code.
        NUMBERS.update((file, number) for file in files(ipython) if file not in known)
    for device in devices:
        for it in device.owners + device.grown:
            name(ipython, it)
        print("\n".join(report(device, rows)))
    return None


def arguments(line: str, cell: str | None) -> tuple[int | None, str]:
    """The number of rows to print, and the code to run. The number is None if the line was not understood."""
    if cell is None:
        return (ROWS, line) if line.strip() else (None, "")
    if not line.strip():
        return ROWS, cell
    return (int(line), cell) if line.strip().isdecimal() and int(line) > 0 else (None, "")


def missing() -> str | None:
    """The reason why measuring is impossible; None if it is possible."""
    return no_gpu()


def name(ipython: Any, owner: Owner) -> None:
    """Adds to an owner the cell of its line, and the variable or output that keeps the line's memory."""
    if not owner.file or not is_cell(owner.file):
        return
    count = number_of(ipython, owner.file)
    if count is not None and owner.is_before:
        inside = "" if owner.function == "<module>" else f", {owner.function}"
        owner.line = f"line {owner.number} of cell [{count}]{inside}"
    # A tensor in a variable looks like a parameter or an input if nothing else shows what it is.
    if owner.function == "<module>" and owner.category not in ("workspace", "gradient", "optimizer state"):
        kept = keeper(ipython, owner, count)
        if kept is not None:
            owner.category, named = kept
            owner.line = f"{named}, {owner.line}"


def files(ipython: Any) -> dict[str, int]:
    """The numbers of cells by the names of their files."""
    return getattr(ipython.compile, "_filename_map", {})


def number_of(ipython: Any, file: str) -> int | None:
    """The number in a cell's brackets. IPython knows the file of each cell; for a cell without a file, the
    number is in its name.
    """
    known = NUMBERS.get(file, files(ipython).get(file))
    if known is None and file.startswith("<ipython-input-"):
        digits = file[len("<ipython-input-") :].split("-")[0]
        known = int(digits) if digits.isdecimal() else None
    return known


def keeper(ipython: Any, owner: Owner, count: int | None) -> tuple[str, str] | None:
    """The category and the name of the variable or output that keeps the memory of a line."""
    try:
        body = ast.parse("".join(linecache.getlines(owner.file))).body
    except SyntaxError:
        return None
    found = [it for it in body if it.lineno <= owner.number <= (it.end_lineno or it.lineno)]
    if not found:
        return None
    statement = found[0]
    if isinstance(statement, ast.Expr):
        kept = ipython.user_ns.get("Out", {}).get(count) if statement is body[-1] else None
        return ("output", f"Out[{count}]") if is_plain(kept, owner.bytes) else None
    targets = getattr(statement, "targets", None) or [getattr(statement, "target", None)]
    names = [it.id for target in targets if target is not None for it in ast.walk(target) if isinstance(it, ast.Name)]
    kept_names = [it for it in names if is_plain(ipython.user_ns.get(it), owner.bytes)]
    return ("tensor", ", ".join(kept_names)) if kept_names else None


def is_plain(value: Any, most_bytes: int) -> bool:
    """Whether a value is a tensor on a GPU, without a graph and of at most `most_bytes`. If so, a row with these bytes
    is about this tensor.
    """
    import torch

    if not isinstance(value, torch.Tensor) or not value.is_cuda or value.requires_grad:
        return False
    return bool(value.untyped_storage().nbytes() <= most_bytes)


def report(device: Device, rows: int) -> list[str]:
    """The lines that ``%%memory`` prints for a device."""
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
