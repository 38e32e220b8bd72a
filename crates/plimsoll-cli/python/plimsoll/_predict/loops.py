"""A loop over a DataLoader that starts after the requested steps, such as an evaluation. Decides how many batches of
the loop are made, and computes how much memory the other batches would add.

The first batches show whether memory grows from one batch to the next. If it does and there is enough time, the loop
runs to its end: with all batches, or with copies of one batch if making batches takes most of the time. If there is no
time for that, or if memory does not grow, the last batch follows at once, and `row` says how many bytes each of the
skipped batches would have added.
"""

from __future__ import annotations

import copy
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from .. import allocator, frames, protocol
from . import host
from .levels import rises

FIRST = 7  # the number of first batches, which are always made
STEADY = 4  # the number of latest batches over which growth is measured
SPARE = 16 << 20  # if memory grows by fewer bytes in the rest of a loop, the growth is not reported
SOME = 32  # copies of a batch between two measurements
PATIENCE = 5.0  # the most seconds that each of the first batches may take
SHORT = 0.3  # a loop whose rest takes fewer seconds runs to its end
UNKNOWN_TIME = 5.0  # seconds for a loop of unknown length


class Rest(Protocol):
    """The methods of `Finish` (finish.py) that a loop needs: the time left for the code after the steps."""

    torch: Any
    loops: list[Loop]
    cut: bool

    def left(self) -> float:
        """The seconds that are left for the code after the steps."""

    def take(self, seconds: float) -> bool:
        """Extends the time by this many seconds, if the limit allows it. Returns whether the time was extended."""


class Loop:
    """One loop over a DataLoader. `following` is the loader's own function for the next batch."""

    def __init__(self, finish: Rest, iterator: Any, loader: Any, following: Callable[..., Any]) -> None:
        self.finish, self.following = finish, following
        self.iterator: Any = weakref.ref(iterator)  # weak, because the loader's worker processes end with the iterator
        try:
            self.total: int | None = len(loader)
        except Exception:
            self.total = None  # the dataset has no length
        self.given = 0
        self.made = 0  # the number of batches that are not copies
        self.levels: list[list[int]] = []  # by request: allocated bytes of each device
        self.began = self.second = 0.0
        self.ended = 0.0  # when the loop ended, in seconds since 1970
        self.making = 0.0  # seconds that the loader took to make batches
        self.place: tuple[str, int] | None = None
        self.candidate: Any = None  # a batch that may be copied
        self.pattern: Any = None  # the batch that is copied
        self.is_decided = self.is_cut = False
        self.each: dict[int, float] = {}  # by device: growth per batch
        self.host_levels: list[int] = []  # by request: anonymous bytes on the host
        self.host_each = 0.0
        finish.loops.append(self)

    def batch(self) -> Any:
        """Returns the next batch for the program, which is new or a copy, or ends the loop."""
        now = time.monotonic()
        if self.given == 0:
            self.began, self.place = now, frames.program_line(sys._getframe(1))
        if self.given == 1:
            self.second = now
        if self.given <= FIRST and self.finish.left() < PATIENCE:
            self.finish.take(PATIENCE)
        if not self.is_decided or self.is_cut:
            self.note()
        if self.given == FIRST and not self.is_decided:
            self.is_decided = True
            self.decide((now - self.second) / (FIRST - 1))
        if self.total is None and self.given > FIRST and now - self.began > UNKNOWN_TIME:
            self.note()
            self.measure()
            self.is_cut = self.finish.cut = True
            raise StopIteration
        if self.pattern is not None and self.total is not None and self.given < self.total - 1 - self.waiting():
            self.given += 1
            if self.given % SOME == 0:
                self.note()
            return copy.deepcopy(self.pattern)
        begun = time.monotonic()
        self.candidate = None
        try:
            result = self.following(self.iterator())
        except StopIteration:
            self.pattern = None
            raise
        self.making += time.monotonic() - begun
        self.given += 1
        self.made += 1
        if self.given == FIRST:
            self.candidate = result
        return result

    def note(self) -> None:
        """Records the levels when the program requests a batch."""
        self.ended = time.time()
        self.levels.append(allocator.levels(self.finish.torch))
        self.host_levels.append(host.level())

    def measure(self) -> None:
        """The growth per batch over the latest batches."""
        last = self.levels[-STEADY - 1 :]
        if len(last) <= STEADY:
            return
        steps = rises(self.host_levels[-STEADY - 1 :])
        self.host_each = sum(steps) / STEADY if min(steps) > 0 else 0.0
        for device, levels in enumerate(zip(*last)):
            steps = rises(list(levels))
            if min(steps) >= 0 and sum(it > 0 for it in steps) > STEADY // 2:
                self.each[device] = sum(steps) / STEADY

    def decide(self, seconds: float) -> Any:
        """Decides, after the first batches, whether to make all other batches, to copy one batch, or to skip to the
        last batch. Each batch takes `seconds`.
        """
        self.measure()
        if self.total is None or self.total <= FIRST + 1:
            return
        rest = self.total - self.given
        if max(self.each.values(), default=0) * rest <= SPARE:
            # A short loop runs to its end, because the memory that each loop leaves may grow from epoch to epoch. So does
            # one that keeps something small: how much the code after it needs may depend on the number of batches.
            keeps, self.each = bool(self.each), {}
            if seconds * rest < (self.finish.left() / 2 if keeps else SHORT):
                return None
            if not keeps or not self.copies(seconds, rest):
                self.skip()
            return None
        if seconds * rest < self.finish.left() / 2:
            return
        if not self.copies(seconds, rest) and not self.finish.take(seconds * rest):
            self.skip()

    def copies(self, seconds: float, rest: int) -> bool:
        """Whether copies of one batch replace the `rest` of the batches, because making them takes most of the time."""
        making = self.making / max(self.made, 1)
        fast = max(seconds - making, 0) * rest
        if self.can_skip() and 2 * fast < seconds * rest and self.finish.take(fast):
            try:
                self.pattern = copy.deepcopy(self.candidate)
            except Exception:
                self.pattern = None  # this batch cannot be copied
        if self.pattern is not None:
            self.skip()
        return self.pattern is not None

    def waiting(self) -> int:
        """The number of batches that worker processes are already making."""
        return getattr(self.iterator(), "_tasks_outstanding", 0)

    def can_skip(self) -> bool:
        """Whether the loader reads its dataset by index, so that some batches can be left out."""
        from torch.utils.data import _DatasetKind

        return bool(self.iterator()._dataset_kind == _DatasetKind.Map)

    def skip(self) -> None:
        """Makes the loader continue with its last batch. If the dataset is not map-style, the loader ends instead."""
        self.is_cut = self.pattern is None
        if not self.can_skip():
            self.finish.cut = True
            raise StopIteration
        iterator, last = self.iterator(), None
        for last in iterator._sampler_iter:
            pass
        iterator._sampler_iter = iter(() if last is None else (last,))

    def hides(self) -> bool:
        """Whether memory grew with different batches, but less than half as much with copies of one batch, for example
        because results are stored under a key for each row.
        """
        levels, copies = self.levels[FIRST:], self.given - self.made
        if self.is_cut or copies < 2 * SOME or len(levels) < 2:
            return False
        grown = [max(it) - it[0] for it in zip(*levels)]
        return any(grown[device] < each * (copies - SOME) / 2 for device, each in self.each.items())

    def row(self) -> protocol.CutLoop | None:
        """The loop as a row of the report; None if the loop got all of its batches."""
        if not self.is_decided or self.given == self.made and not self.is_cut:
            return None
        is_cut = self.is_cut or self.hides()
        seen = self.given if self.is_cut else self.made
        left = 0 if self.total is None or not is_cut else max(self.total - seen, 0)
        file, line = self.place or (None, None)
        grows = [
            protocol.GrowingBatches(
                device=device, bytes=int(it), first_bytes=self.levels[0][device], last_bytes=self.levels[-1][device]
            )
            for device, it in self.each.items()
            if it > 0
        ]
        return protocol.CutLoop(
            file=file,
            line=line,
            given=self.given,
            made=self.made,
            total=self.total,
            left=left,
            grows=grows if is_cut else [],
            host_bytes=int(self.host_each) if self.host_each * left > SPARE else 0,
            is_cut=is_cut,
            ended_us=int(self.ended * 1e6),
        )
