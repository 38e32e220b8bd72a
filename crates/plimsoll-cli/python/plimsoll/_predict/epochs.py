"""Memory that grows from one epoch to the next, for example because each epoch's results are kept. It is seen after the
requested steps, when each further epoch gets one batch (finish.py).
"""

from __future__ import annotations

from typing import Any

from .. import allocator, protocol

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
            rises = [after - before for before, after in zip(levels[1:], levels[2:])]
            if len(rises) >= TIMES and min(rises) >= LEAST and max(rises) < 2 * min(rises):
                found.append(
                    protocol.GrowingSteps(
                        device=device,
                        bytes=sum(rises) // len(rises),
                        every=1,
                        times=len(rises),
                        steps=len(levels) + 1,  # the epoch of the requested steps came before
                        total=total,
                        resets=False,
                        quickens=0,
                        peak_bytes=0,
                        climbs=False,
                        epochs=True,
                    )
                )
        return found
