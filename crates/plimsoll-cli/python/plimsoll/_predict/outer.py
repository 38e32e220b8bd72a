"""Memory that grows with each round of an outer loop while the requested steps run: an agent adds experience to a buffer
before each of many short trainings, and never clears it. Between two rounds, memory stays the same, and the trainings may
become longer, so growth from step to step (growth.py) is not seen.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import CodeType, FrameType
from typing import Any

from .. import protocol
from ..allocator import levels
from ..frames import of_program
from .epochs import Epochs
from .lengths import counter, length_of_loop
from .rounds import Round, round_of

SECONDS = 10.0  # the time limit for further rounds, once memory was seen to grow


class Outer:
    """The allocated bytes at the end of the first step in each round, for each outer loop that counts its rounds."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.now: dict[
            int, int
        ] = {}  # by position among the loops around a step, from the inside out: the latest round
        self.epochs: dict[int, Epochs] = {}  # by the same: the levels of its rounds
        self.totals: dict[int, int | None] = {}  # by the same: the number of its rounds
        self.lengths: dict[int, int | None] = {}  # by the same: the same, in one round of the loop around it
        self.outside: dict[int, list[Round]] = {}  # by the same: the rounds of the loops around it
        self.steps = 0
        self.begun: dict[int, list[int]] = {}  # by the same: the first step of each round
        self.began: float | None = None  # the time at which memory was first seen to grow

    def note(self, frame: FrameType, loops: Sequence[tuple[Any, CodeType]]) -> None:
        """Called at the end of a step in these loops, the innermost first."""
        self.steps += 1
        try:
            self.look({it.f_code: it for it in of_program(frame)}, loops if len(loops) > 1 else ())
        except Exception:
            pass  # the source may be misread

    def look(self, frames: dict[CodeType, FrameType], loops: Sequence[tuple[Any, CodeType]]) -> None:
        """Records the levels of each of these loops that has begun another round."""
        for at, (loop, code) in enumerate(loops):
            own = frames.get(code) if at else None
            now = None if own is None else counter(loop, own)
            if own is None or now is None or now == self.now.get(at):
                continue
            self.now[at] = now
            self.begun.setdefault(at, []).append(self.steps)
            self.totals[at] = self.rounds(at, loops, frames)
            # The first step of the first round creates the optimizer's states.
            self.epochs.setdefault(at, Epochs(self.torch, "round", 0)).begins(levels(self.torch), self.peaks())

    def peaks(self) -> list[int]:
        """The most allocated bytes of each device so far."""
        cuda = self.torch.cuda
        return [cuda.max_memory_allocated(it) for it in range(cuda.device_count())]

    def rounds(self, at: int, loops: Sequence[tuple[Any, CodeType]], frames: dict[CodeType, FrameType]) -> int | None:
        """The number of rounds of one of these loops in the complete program; None if it is unknown."""
        total: int | None = 1
        self.outside[at] = []
        for loop, code in loops[at:]:
            own = frames.get(code)
            length = None if own is None else length_of_loop(loop, own)
            if loop is loops[at][0]:
                self.lengths[at] = length
            if own is None or length is None or total is None:
                return None
            if loop is not loops[at][0]:
                inner = list(frames)[: list(frames).index(code)]
                self.outside[at].append(round_of(loop, own, total, {it.co_name for it in inner}))
            total *= length
        return total

    def left(self) -> int | None:
        """The steps that the program still makes, if each further round of the outermost loop makes as many as the latest
        one; None if that is unknown.
        """
        for at in sorted(self.begun, reverse=True):
            total, begun = self.totals.get(at), self.begun[at]
            if total is not None and len(begun) > 1:
                return max(total - len(begun), 0) * (begun[-1] - begun[-2]) + begun[-1] - begun[-2]
        return None

    def is_open(self) -> bool:
        """Whether more rounds would show whether memory grows evenly, and there is time for them."""
        if not any(it.is_open() for it in self.epochs.values()):
            return False
        self.began = self.began or time.monotonic()
        return time.monotonic() - self.began < SECONDS

    def rows(self, loops: Sequence[Any]) -> list[protocol.GrowingSteps]:
        """Rows for the report, of the outermost loop whose rounds need more and more memory."""
        for at in sorted(self.epochs, reverse=True):
            total, resets = self.totals[at], False
            owners = [it for own in self.epochs[at].holders.values() for it in own]
            dropped = next((it.steps for it in self.outside[at] if owners and all(map(it.drops, owners))), None)
            if dropped is not None:
                total, resets = dropped, True
            found = self.epochs[at].rows(total, loops)
            if found:
                return [self.row(it, self.lengths[at], resets) for it in found]
        return []

    def row(self, row: protocol.GrowingSteps, length: int | None, resets: bool) -> protocol.GrowingSteps:
        """A row of a loop with this length. If memory grows once in all of its rounds, it grows with the loop around it."""
        row["resets"] |= resets
        if length == row["every"] > 1:
            row["every"], row["steps"] = 1, -(-row["steps"] // length)
            row["total"] = row["total"] and row["total"] // length
        return row
