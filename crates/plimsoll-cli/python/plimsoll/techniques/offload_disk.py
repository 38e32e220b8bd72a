"""Moves large tensors that the backward pass needs to files, if the host's memory has no room for them. The numbers are
identical. Works like `offload`, except that copies do not overlap with the computation, so this technique is the last
resort.
"""

from __future__ import annotations

from typing import Any

from . import context
from .disk import Files
from .offload import PERCENT, Offload


class OffloadDisk(Offload):
    """Keeps saved tensors in files."""

    name = "offload-disk"

    def __init__(self, value: int | None, least_bytes: int | None = None, folder: str | None = None) -> None:
        super().__init__(value, least_bytes)
        self.buffers = Files(folder, bool(getattr(context.host, "has_no_values", False)))

    def report(self) -> dict[str, Any]:
        row = super().report()
        if row["applied"]:
            percent = "" if self.percent == PERCENT else f"={self.percent}"
            row["lines"] = [f"# PyTorch has no setting for it: plimsoll run --with offload-disk{percent}"]
        return row
