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

Loops = Sequence[tuple[Any, CodeType]]  # nested loops with their functions, the innermost first


class OuterLoop:
    """The rounds of an outer loop that counts them."""

    def __init__(self, torch: Any) -> None:
        self.now: int | None = None  # the latest round
        self.begun: list[int] = []  # the first step of each round
        self.epochs = Epochs(torch, "round", 0)  # the levels of its rounds
        self.length: int | None = None  # the number of rounds, in one round of the loop around it
        self.total: int | None = None  # the same, in the complete program
        self.outside: list[Round] = []  # the rounds of the loops around it

    def measure(self, loops: Loops, frames: dict[CodeType, FrameType]) -> None:
        """Finds the numbers of rounds. `loops` are this loop and those around it."""
        self.length, self.total, self.outside = None, None, []
        total = 1
        for nth, (loop, code) in enumerate(loops):
            own = frames.get(code)
            length = None if own is None else length_of_loop(loop, own)
            if own is None or length is None:
                return
            if nth == 0:
                self.length = length
            else:
                inner = list(frames)[: list(frames).index(code)]
                self.outside.append(round_of(loop, own, total, {it.co_name for it in inner}))
            total *= length
        self.total = total

    def left(self) -> int | None:
        """The steps that the program still makes, if each further round makes as many as the latest one; None if that is
        unknown.
        """
        if self.total is None or len(self.begun) < 2:
            return None
        return (max(self.total - len(self.begun), 0) + 1) * (self.begun[-1] - self.begun[-2])

    def rows(self, loops: Sequence[Any]) -> list[protocol.GrowingSteps]:
        """Rows for the report, if its rounds need more and more memory."""
        owners = [it for own in self.epochs.holders.values() for it in own]
        dropped = next((it.steps for it in self.outside if owners and all(map(it.drops, owners))), None)
        found = self.epochs.rows(self.total if dropped is None else dropped, loops)
        for row in found:
            row["resets"] |= dropped is not None
            # If memory grows once in all of its rounds, it grows with the loop around it.
            if self.length == row["every"] > 1:
                row["every"], row["steps"] = 1, -(-row["steps"] // self.length)
                row["total"] = row["total"] and row["total"] // self.length
        return found


class Outer:
    """The allocated bytes at the end of the first step in each round, for each outer loop that counts its rounds."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.loops: dict[int, OuterLoop] = {}  # by position among the loops around a step, from the inside out
        self.steps = 0
        self.began: float | None = None  # the time at which memory was first seen to grow

    def note(self, frame: FrameType, loops: Loops) -> None:
        """Called at the end of a step in these loops, the innermost first."""
        self.steps += 1
        try:
            self.look({it.f_code: it for it in of_program(frame)}, loops if len(loops) > 1 else ())
        except Exception:
            pass  # the source may be misread

    def look(self, frames: dict[CodeType, FrameType], loops: Loops) -> None:
        """Records the levels of each of these loops, except the innermost, that has begun another round."""
        for at, (loop, code) in enumerate(loops[1:], 1):
            own = frames.get(code)
            now = None if own is None else counter(loop, own)
            if now is None or at in self.loops and now == self.loops[at].now:
                continue
            outer = self.loops.setdefault(at, OuterLoop(self.torch))
            outer.now = now
            outer.begun.append(self.steps)
            outer.measure(loops[at:], frames)
            # The first step of the first round creates the optimizer's states.
            outer.epochs.begins(levels(self.torch), self.peaks())

    def peaks(self) -> list[int]:
        """The most allocated bytes of each device so far."""
        cuda = self.torch.cuda
        return [cuda.max_memory_allocated(it) for it in range(cuda.device_count())]

    def from_outside(self) -> list[OuterLoop]:
        """The loops, the outermost first."""
        return [self.loops[at] for at in sorted(self.loops, reverse=True)]

    def left(self) -> int | None:
        """The steps that the program still makes, by the outermost loop with a known number of rounds."""
        return next((left for it in self.from_outside() if (left := it.left()) is not None), None)

    def is_open(self) -> bool:
        """Whether more rounds would show whether memory grows evenly, and there is time for them."""
        if not any(it.epochs.is_open() for it in self.loops.values()):
            return False
        self.began = self.began or time.monotonic()
        return time.monotonic() - self.began < SECONDS

    def rows(self, loops: Sequence[Any]) -> list[protocol.GrowingSteps]:
        """Rows for the report, of the outermost loop whose rounds need more and more memory."""
        return next((rows for it in self.from_outside() if (rows := it.rows(loops))), [])
