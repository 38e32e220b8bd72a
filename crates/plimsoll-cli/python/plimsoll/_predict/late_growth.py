"""Memory that grows from step to step in an epoch after the requested steps, although it did not grow before: code that
runs only in this epoch keeps something, as `if epoch == last: maps.append(weights)`. Such an epoch gets two batches. If
memory grew with the second, the epoch gets more, to see whether each adds to it.
"""

from __future__ import annotations

import time
from typing import Any, Protocol

from .. import allocator, protocol
from .levels import is_even

SPARE = 1 << 20  # less growth with the second step of an epoch does not count
STEPS = 6  # the number of steps that show whether memory grows
LEAST = 1 << 18  # less growth in a step does not count


class Rest(Protocol):
    """The methods of `Finish` (finish.py) that are needed here."""

    torch: Any
    cut: bool

    def take(self, seconds: float) -> bool:
        """Extends the time by this many seconds, if the limit allows it. Returns whether the time was extended."""

    def saw(self, what: object) -> None:
        """Called when new code ran."""


class LateGrowth:
    """The allocated bytes of each device after each step of the current epoch."""

    def __init__(self, finish: Rest) -> None:
        self.finish = finish
        self.first: list[int] = []  # the same at the beginning of the epoch
        self.levels: list[list[int]] = []
        self.began = 0.0
        self.is_known = False  # whether the epoch runs to its end, because memory grows
        self.rows: list[protocol.CutLoop] = []

    def begins(self, levels: list[int]) -> None:
        """Called when an epoch begins."""
        self.first, self.levels, self.began, self.is_known = levels, [], time.monotonic(), False

    def stepped(self) -> None:
        """Called at the end of a step."""
        if len(self.levels) < STEPS:
            self.levels.append(allocator.levels(self.finish.torch))

    def goes_on(self, iterator: Any) -> bool:
        """Called when the program requests another batch of the epoch. Returns whether it gets one."""
        given = iterator.plimsoll_given
        if self.is_known or not self.levels or not given:
            return self.is_known
        if len(self.levels) < STEPS:
            # The first step may free what the epoch before left, so the second shows whether memory grows.
            last = self.levels[-2:]
            return len(last) < 2 or any(after - before >= SPARE for before, after in zip(*last))
        # The rise per step, without the first step, and how many steps a batch makes.
        each = {
            device: (levels[-1] - levels[1]) * len(levels) // ((len(levels) - 2) * given)
            for device, levels in enumerate(zip(*self.levels))
            if is_even(levels[1:], LEAST)  # in the first step, an optimizer creates its states
        }
        total = iterator.plimsoll_length
        if not each or total is None or total <= given:
            return False
        self.finish.saw(("grows", iterator.plimsoll_line))
        self.is_known = self.finish.take((time.monotonic() - self.began) / given * (total - given))
        if not self.is_known:
            self.rows.append(self.row(iterator, total, each))
        return self.is_known

    def row(self, iterator: Any, total: int, each: dict[int, int]) -> protocol.CutLoop:
        """The row for the report about an epoch that was cut short."""
        file, line = iterator.plimsoll_line
        grows = [
            protocol.GrowingBatches(
                device=device, bytes=bytes, first_bytes=self.first[device], last_bytes=self.levels[-1][device]
            )
            for device, bytes in each.items()
        ]
        given = iterator.plimsoll_given
        return protocol.CutLoop(
            file=file,
            line=line,
            given=given,
            made=given,
            total=total,
            left=total - given,
            grows=grows,
            host_bytes=0,
            is_cut=True,
            ended_us=int(time.time() * 1e6),
        )
