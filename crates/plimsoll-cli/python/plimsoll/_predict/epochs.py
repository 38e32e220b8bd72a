"""Memory that grows from one epoch to the next, for example because each epoch's results are kept. It is seen after the
requested steps, when each further epoch gets one batch (finish.py).
"""

from __future__ import annotations

from typing import Any

from .. import allocator, protocol
from .growth import grows, rises

LEAST = 16 << 20  # less growth per epoch is not reported
TIMES = 3  # how often memory must be seen to grow


class Epochs:
    """The allocated bytes at the beginning of each epoch after the requested steps."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.levels: list[list[int]] = []  # by epoch: allocated bytes of each device

    def begins(self) -> None:
        """Called when an epoch begins."""
        self.levels.append(allocator.levels(self.torch))

    def rows(self, total: int | None) -> list[protocol.GrowingSteps]:
        """Rows for the report, if memory grew evenly. `total` is the program's number of epochs, if it is known."""
        found: list[protocol.GrowingSteps] = []
        if total is None:
            return found
        for device, levels in enumerate(zip(*self.levels)):
            # The first of these epochs may still allocate something that stays.
            rose = rises(list(levels[1:]))
            if len(rose) >= TIMES and min(rose) >= LEAST and max(rose) < 2 * min(rose):
                done = len(levels) + 1  # the epoch of the requested steps came before
                found.append(grows(device, sum(rose) // len(rose), len(rose), done, total, epochs=True))
        return found
