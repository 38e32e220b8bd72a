"""Steps whose requests differ in size, as with batches of varying length. Freed blocks then rarely fit the next requests, so
the reserved bytes may grow long after the first steps, although the allocated bytes do not. The run continues until the
reserved bytes have settled. If they have not settled in time, the verdict says by how much they were still growing. If each
step requests more than the step before, the peak may begin to rise later, so the run continues too.
"""

from __future__ import annotations

import time
from collections.abc import Container

from .. import protocol
from ..allocator import LEAST_GROWTH
from . import settings

ALIKE = 1.02  # steps whose requests differ by less count as equal
PROBE = 8  # after this many steps, it is clear whether all steps differ, or only a few kinds of steps alternate
MANY = 8  # from this number on, kinds of steps are not "a few"
QUIET = 24  # the reserved bytes have settled if they did not grow for this many steps, and for half of all steps
SECONDS = 8.0  # the limit of CPU time for these steps
WAITING = 2.5  # the limit for wall-clock time is this many times SECONDS
MOST = 600  # the maximum number of these steps
LEAST = 8 << 20  # growth of the reserved bytes is reported only from this many bytes on


class Varying:
    """By device: the bytes requested so far, and the peak of the reserved bytes, at the end of each step."""

    def __init__(self) -> None:
        self.requested: dict[int, list[int]] = {}
        self.reserved: dict[int, list[int]] = {}
        self.began: tuple[float, float] | None = None  # the CPU time and wall-clock time at which waiting began
        self.is_unsettled = False
        self.steps = 0

    def note(
        self, requested: dict[int, int], peaks: dict[tuple[int, str], tuple[int, int]], unfrozen: Container[int] = ()
    ) -> None:
        """Called when a step is done. On the devices `unfrozen`, more parameters are trained since this step: its batch
        may be like those before, so the comparison begins again.
        """
        self.steps += 1
        for device in [it for it in self.requested if it in unfrozen]:
            del self.requested[device], self.reserved[device]
        for device, bytes in requested.items():
            self.requested.setdefault(device, []).append(bytes)
            self.reserved.setdefault(device, []).append(peaks.get((device, "reserved"), (0, 0))[0])

    def waits(self, total: int | None, grows: bool = False) -> bool:
        """Whether to run one more step. `total` is the number of steps of the complete program, if it is known. If the
        memory that remains after a step grows, this explains requests that rise.
        """
        open = [it for it in self.requested if self.is_open(it) or not grows and self.rises(it)]
        if not settings.FURTHER or settings.ranks() > 1 or settings.PLAN or not open or self.steps == total:
            self.is_unsettled = False
            return False
        now = time.process_time(), time.monotonic()
        self.began = self.began or now
        spent = max(now[0] - self.began[0], (now[1] - self.began[1]) / WAITING)
        self.is_unsettled = spent > SECONDS or self.steps >= MOST
        return not self.is_unsettled

    def varies(self, device: int) -> bool:
        """Whether the requests of the steps differ. While there are few steps, two different steps are enough."""
        # The first step does not count, because it also contains requests that occur only once.
        steps = [after - before for before, after in zip(self.requested[device], self.requested[device][1:])]
        found = kinds(steps)
        return found >= 2 and (len(steps) < PROBE or found >= min(len(steps) // 2, MANY))

    def is_open(self, device: int) -> bool:
        """Whether the requests of the steps differ, and the reserved bytes of a device have not settled."""
        steps = len(self.requested[device]) - 1
        is_settled = steps >= PROBE and self.risen(device, max(QUIET, steps // 2)) <= 0
        return self.varies(device) and not is_settled

    def rises(self, device: int) -> bool:
        """Whether each step requests more than the step before, as with sequences that become longer."""
        steps = [after - before for before, after in zip(self.requested[device], self.requested[device][1:])]
        last = steps[-max(PROBE, len(steps) // 2) :]
        is_rising = len(last) >= PROBE and all(after > before for before, after in zip(last, last[1:]))
        return is_rising and last[-1] - last[0] >= LEAST_GROWTH * len(last)

    def risen(self, device: int, steps: int) -> int:
        """The growth of a device's reserved bytes in its latest steps."""
        levels = self.reserved[device]
        return levels[-1] - levels[max(len(levels) - 1 - steps, 0)]

    def rows(self, left: int | None) -> list[protocol.Varying]:
        """Rows for the report: the devices whose requests differ from step to step, and whether their reserved bytes
        were still growing. The program makes `left` more steps.
        """
        found = []
        for device, levels in self.reserved.items():
            half, steps = len(levels) // 2, len(levels) - 1
            grew = self.risen(device, half) if self.is_unsettled and self.is_open(device) else 0
            if steps >= PROBE and self.varies(device):
                found.append(protocol.Varying(device=device, bytes=grew if grew >= LEAST else 0, steps=half, left=left))
        return found


def kinds(sizes: list[int]) -> int:
    """The number of clearly different sizes."""
    found = 0
    least = -1.0
    for size in sorted(sizes):
        if size > ALIKE * least:
            found, least = found + 1, size
    return found
