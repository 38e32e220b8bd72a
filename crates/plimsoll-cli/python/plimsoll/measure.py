"""Measures the memory of a piece of code on every GPU: the peak, the owners of the memory at the peak, and the growth.

The pytest plugin and the notebook use it.
"""

from __future__ import annotations

import gc
import linecache
import os
import tempfile
from dataclasses import dataclass, field
from typing import Any

from .errors import PlimsollError
from .recording import BEFORE, Recording
from .sizes import shown

ENTRIES = 200_000  # events of one measurement


@dataclass
class Owner:
    """Memory of one line of the program."""

    bytes: int
    line: str  # "train.py:12 forward", or why the line is unknown
    category: str | None = None
    source: str = ""
    file: str = ""  # the file of the line; empty if there is no line
    number: int = 0
    function: str = ""
    is_before: bool = False  # whether the memory was allocated before the measurement


@dataclass
class Device:
    """The measurement of one GPU."""

    device: int
    before_bytes: int = 0  # allocated when the measurement began
    peak_bytes: int = 0  # the allocated peak
    reserved_bytes: int = 0  # the reserved peak
    after_bytes: int = 0  # allocated when the measurement ended
    owners: list[Owner] = field(default_factory=list)  # the owners of the memory at the peak
    grown: list[Owner] = field(default_factory=list)  # allocated during the measurement and not freed
    note: str = ""  # the reason if the owners are unknown

    @property
    def growth_bytes(self) -> int:
        return self.after_bytes - self.before_bytes


class Measured:
    """Measures the code between calls to ``begin`` and ``end``."""

    def __init__(self) -> None:
        import torch

        self.torch = torch
        self.recording: Recording | None = None
        self.devices: list[Device] = []
        self.note = ""

    def begin(self, *, empty_cache: bool = False) -> None:
        """Starts to record."""
        cuda = self.torch.cuda
        cuda.init()
        gc.collect()
        if empty_cache:
            cuda.empty_cache()
        self.devices = [Device(it) for it in range(cuda.device_count())]
        for it in self.devices:
            cuda.reset_peak_memory_stats(it.device)
            it.before_bytes = cuda.memory_allocated(it.device)
        handle, path = tempfile.mkstemp(prefix="plimsoll-", suffix=".pickle")
        os.close(handle)
        try:
            self.recording = Recording(path, stacks="python", max_entries=ENTRIES, marks_before=True)
        except Exception as why:  # A failed recording must not fail the code; the peaks are known anyway.
            os.remove(path)
            self.note = f"the memory history is not recorded: {why}"

    def end(self) -> list[Device]:
        """The figures of every GPU that was used."""
        cuda = self.torch.cuda
        gc.collect()
        for it in self.devices:
            it.peak_bytes = cuda.max_memory_allocated(it.device)
            it.reserved_bytes = cuda.max_memory_reserved(it.device)
            it.after_bytes = cuda.memory_allocated(it.device)
        used = [it for it in self.devices if it.reserved_bytes] or self.devices[:1]
        self.explain(used)
        return used

    def explain(self, used: list[Device]) -> None:
        """Finds the owners of the memory with `plimsoll explain`."""
        recording, self.recording = self.recording, None
        if recording is None:
            for it in used:
                it.note = self.note
            return
        try:
            explained = {it["device"]: it for it in recording.explain()["devices"]}
            for it in used:
                if it.device in explained:
                    read(it, explained[it.device])
        except (PlimsollError, OSError) as why:
            for it in used:
                it.note = f"not explained: {why}"
        finally:
            recording.cancel()
            for path in (recording.path, f"{recording.path}.unfinished"):
                if os.path.exists(path):
                    os.remove(path)


def read(device: Device, explained: dict[str, Any]) -> None:
    """Reads the owners of the memory at the peak, and of the memory that is still allocated, from the answer of
    `plimsoll explain`.
    """
    device.owners = [owner(row) for row in explained["held"]["by_line"]]
    if device.growth_bytes > 0:
        # If nothing was freed after the peak, the bytes at the peak are also those at the end.
        end = explained["held_at_end"] or explained["held"]
        rows = [owner(row) for row in end["by_line"] if row["bytes"]]
        device.grown = [it for it in rows if it.file and not it.is_before]
        # The rest of the growth has no line: it was allocated before the first recording, or without a Python stack.
        named = sum(it.bytes for it in device.grown)
        rest = min(device.growth_bytes - named, sum(it.bytes for it in rows if not it.file))
        if rest > 0:
            device.grown.append(Owner(rest, "without a Python stack, such as in the backward pass"))
        device.grown.sort(key=lambda it: -it.bytes)


def owner(row: dict[str, Any]) -> Owner:
    """The owner in a row of the answer."""
    line = row["line"] or row.get("package_line")
    if line is None:
        return Owner(row["bytes"], "allocated before, or without a Python stack", row["category"])
    file, number = line["file"], line["line"]
    is_before = file.startswith(BEFORE)
    file = file[len(BEFORE) :] if is_before else file
    function = line.get("function") or ""
    source = linecache.getline(file, number).strip()
    if is_cell(file):
        place = f"line {number} of {'an earlier' if is_before else 'the'} cell"
        place = place if function == "<module>" else f"{place}, {function}"
    else:
        place = f"{short(file)}:{number} {function}".rstrip()
    return Owner(row["bytes"], place, row["category"], source, file, number, function, is_before)


def is_cell(file: str) -> bool:
    """Whether a file is a cell of a notebook."""
    name = os.path.basename(os.path.dirname(file))
    return file.startswith("<ipython-input") or name.startswith("ipykernel_")


def short(file: str) -> str:
    """The path, relative to the current folder if the file is below it."""
    inside = os.path.relpath(file) if os.path.isabs(file) else file
    return file if inside.startswith("..") else inside


def table(owners: list[Owner], rows: int) -> list[str]:
    """Lines of text about the owners, the largest owners first."""
    lines = []
    for it in owners[:rows]:
        category = it.category or "unknown"
        lines.append(f"  {shown(it.bytes):>12}  {category:<12}  {it.line}  {it.source}".rstrip())
    if len(owners) > rows:
        rest = sum(it.bytes for it in owners[rows:])
        lines.append(f"  {shown(rest):>12}  {len(owners) - rows} more")
    return lines
