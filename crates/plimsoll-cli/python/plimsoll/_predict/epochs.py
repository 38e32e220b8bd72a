"""Memory that grows from one epoch to the next, for example because each epoch's results are kept. It is seen after the
requested steps, when each further epoch gets two batches (late_growth.py).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from .. import protocol
from .._holding.growing import Growing
from .._holding.holder import Holder
from .capacity import limited
from .growth import grows
from .rounds import bounded

LEAST = 16 << 20  # less growth per epoch is not reported
TIMES = 3  # how often memory must be seen to grow
MANY = 6  # the same, if the number of epochs is unknown
SURE = 8  # after this many times, no more epochs run to confirm it


class Epochs:
    """The allocated bytes at the beginning of each epoch after the requested steps, and the peaks until then. `before` is
    the number of earlier epochs. An outer loop has rounds instead of epochs (outer.py).
    """

    def __init__(self, torch: Any, unit: str = "epoch", before: int = 1) -> None:
        self.torch, self.unit, self.before, self.growing = torch, unit, before, Growing(torch)
        self.levels: list[list[int]] = []  # by epoch: allocated bytes of each device
        self.peaks: list[list[int]] = []  # by epoch: the most allocated bytes so far, if they are known
        self.holders: dict[int, list[Holder]] = {}  # by device: the owners of the growth, at the latest survey
        self.known: dict[int, list[Holder]] = {}  # the same, without their limits
        self.surveyed = 0  # the epochs that began before that survey

    def begins(self, levels: list[int], peaks: list[int] | None = None) -> None:
        """Called in an epoch that began with these allocated bytes of each device, and the most of them so far."""
        before = self.levels[-1] if self.levels else levels
        self.levels.append(levels)
        self.peaks.append(levels if peaks is None else peaks)
        rose = {it: level for it, level in enumerate(levels) if level - before[it] >= LEAST}
        self.growing.stepped(rose, len(self.levels), is_last=False)
        if self.growing.latest != self.known:
            frame = sys._getframe(1)
            self.holders = {it: [limited(one, frame) for one in own] for it, own in self.growing.latest.items()}
            self.surveyed, self.known = len(self.levels), dict(self.growing.latest)

    def rows(self, total: int | None, loops: Sequence[Any] = (), breaks: bool = False) -> list[protocol.GrowingSteps]:
        """Rows for the report, if memory grew evenly. `total` is the program's number of epochs, if it is known. With
        `breaks`, an unknown value ends one of these loops, perhaps too early.
        """
        found: list[protocol.GrowingSteps] = []
        for device, levels in enumerate(zip(*self.levels)):
            # The first of these epochs may still allocate something that stays.
            rose = list(levels if breaks and len(levels) < TIMES + 2 else levels[1:])
            each, every, times = repeated(rose, 2 if breaks else TIMES)
            if not each or total is None and not breaks and times < MANY:
                continue
            full, owners = self.full(device, each, every), self.holders.get(device, [])
            if full is None and any(bounded(loops, it) for it in owners):
                continue
            is_full = full is not None and (total is None or full < total)
            done, end = len(levels) + self.before, full if is_full else total
            # What is kept may also be joined, so that it exists twice for a moment. At first, other memory may be the peak.
            peaks, often = [it[device] for it in self.peaks], max(times // every // 2, 1)
            more = (peaks[-1] - peaks[-1 - often * every]) // often
            row = grows(device, each, times, done, end, every=every, resets=is_full, unit=self.unit, peak_bytes=more)
            found.append(row)
        return found

    def full(self, device: int, each: int, every: int = 1) -> int | None:
        """The epoch after which the containers that keep the growing memory are full, if they grow by `each` bytes in
        `every` epochs; None if other objects keep it.
        """
        left = [it.left_bytes for it in self.holders.get(device, [])]
        known = [it for it in left if it is not None]
        return self.surveyed + every * -(-sum(known) // each) if known and len(known) == len(left) else None

    def is_open(self) -> bool:
        """Whether more epochs would show whether memory grows evenly: the latest half of the epochs needed more memory
        than those before.
        """
        half = len(self.levels) // 2
        return half > 0 and any(
            max(levels[half:]) - max(levels[:half]) >= LEAST and repeated(levels[1:], TIMES)[2] < SURE
            for levels in zip(*self.levels)
        )


def repeated(levels: Sequence[int], times: int) -> tuple[int, int, int]:
    """The bytes by which memory grows evenly in a number of the latest epochs, that number, and how often it was seen: at
    least `times`. If each round of an outer loop has several epochs, as for each of several models, each epoch needs
    more than the same epoch of the round before. Zeros if memory does not grow like this.
    """
    for every in range(1, len(levels) // 2 + 1):
        rose: list[int] = []
        for before, after in zip(levels[::-1][every:], levels[::-1]):
            more = after - before
            if more < LEAST or rose and (more >= 2 * min(rose) or max(rose) >= 2 * more):
                break
            rose.append(more)
        if len(rose) >= max(times, every + 1):
            return sum(rose) // len(rose), every, len(rose)
    return 0, 1, 0
