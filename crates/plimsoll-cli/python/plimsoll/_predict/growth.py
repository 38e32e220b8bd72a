"""Detects memory that grows from step to step. How many steps the program's loops will run is read from their source
(lengths.py).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from types import CodeType, FrameType
from typing import Any

from .. import allocator, frames, protocol
from .._holding.growing import Growing
from .._holding.holder import Holder
from ..allocator import LEAST_GROWTH
from .banks import bank_of
from .breaks import value_break
from .capacity import limited
from .lengths import ENDLESS, Pace, around, counter, epochs, length_of_loop
from .levels import (
    ROWS,
    growth_of,
    is_climbing,
    is_growing,
    is_rising,
    is_unended,
    large_rises,
    may_spread,
    quickening,
    rate,
    rises,
    short,
    spread,
)
from .rounds import Round, bounded, round_of
from .states import States

CONFIRM = 200  # steps after which growth counts as confirmed: before, a list may be cleared, or a cache may become full
SECONDS = 10.0  # the time limit for the CONFIRM steps
SPREAD_SECONDS = 3.0  # the same limit, if memory grows in one of several steps
FIRST = 3  # the steps after which the loops are looked for


def grows(
    device: int,
    bytes: int,
    times: int,
    steps: int,
    total: int | None,
    *,
    every: int = 1,
    resets: bool = False,
    quickens: int = 0,
    peak_bytes: int = 0,
    climbs: bool = False,
    unit: str = "step",
    states: bool = False,
) -> protocol.GrowingSteps:
    """A row for the report; without the named arguments, memory grows by the same bytes each time, to the end."""
    return protocol.GrowingSteps(
        device=device,
        bytes=bytes,
        every=every,
        times=times,
        steps=steps,
        total=total,
        resets=resets,
        quickens=quickens,
        peak_bytes=peak_bytes,
        climbs=climbs,
        unit=unit,
        states=states,
    )


class Growth:
    """The allocated bytes at the end of each step, and the number of steps of the complete program. Gradients and
    optimizer states of a model that is unfrozen while it trains are counted separately (states.py).
    """

    def __init__(self, torch: Any, states: States | None = None) -> None:
        self.torch, self.states = torch, states
        self.allocated: dict[int, int] = {}  # by device: allocated bytes at the end of the latest step
        self.levels: dict[int, list[int]] = {}  # by device: the same at the end of each step, without such states
        self.total: int | None = None  # steps of the complete program; None: unknown
        self.epochs: int | None = None  # how often the innermost loop runs
        self.rounds: list[Round] = []  # rounds of the loops around the innermost loop, from the inside out
        self.later: dict[int, list[int]] = {}  # by device: as `levels`, since batches vary
        self.ends: dict[int, int] = {}  # by device: after how many steps a tensor with a limit has stopped growing
        self.peaks: dict[int, list[int]] = {}  # by device: the peak so far, at the end of each step
        self.began: float | None = None  # the time at which memory was first seen to grow
        self.scopes: list[tuple[Any, CodeType]] = []  # the loops around a step, with their functions
        self.steps = 0
        self.pace = Pace()
        self.planned: int | None = None  # steps of these loops, as far as it was known in the first steps
        self.breaks: protocol.Break | None = None  # a statement that ends these loops at an unknown step

    def note(self, peaks: dict[tuple[int, str], tuple[int, int]], varies: bool, given: int = 0) -> None:
        """Records the levels at the end of a step, unless the batches vary, and the peaks so far: bytes and step, by
        device and kind of peak. Loaders have yielded `given` batches.
        """
        self.steps += 1
        if self.steps <= FIRST:
            self.surround(sys._getframe(2), self.steps, given)
        for device, level in enumerate(allocator.levels(self.torch)):
            own = self.states.note(device, level) if self.states is not None else 0
            (self.later if varies else self.levels).setdefault(device, []).append(level - own)
            self.allocated[device] = level
        for (device, kind), (peak, _) in peaks.items():
            if kind == "allocated":
                self.peaks.setdefault(device, []).append(peak)

    def is_unsure(self) -> bool:
        """Whether memory grew in the latest steps, and more steps would show whether it continues to grow."""
        rose = any(min(rises(it)[-2:], default=0) >= LEAST_GROWTH for it in self.peaks.values() if len(it) > 2)
        if rose and not any(len(it) > ROWS for it in self.peaks.values()):
            return True
        if any(self.is_patient(device, self.peaks[device], SECONDS) for device in self.climbing()):
            return True
        # All parameters may be trained before the time is up.
        own = self.states.bytes if self.states is not None else {}
        if any(self.is_open(device, levels, SECONDS, None) for device, levels in own.items()):
            return True
        return any(self.is_open(device, levels) for device, levels in self.levels.items())

    def unfreezing(self) -> dict[int, tuple[int, int, int]]:
        """The growth of gradients and optimizer states on each device where they grow, in the form of `growth_of`."""
        found = {it: growth_of(own) for it, own in (self.states.bytes.items() if self.states is not None else ())}
        return {it: grown for it, grown in found.items() if grown[0] >= LEAST_GROWTH}

    def growing(self) -> dict[int, int]:
        """The latest level of each device whose memory grows."""
        grown = {it: growth_of(levels) for it, levels in self.levels.items()}
        found = (
            it for it, (bytes, every, _) in grown.items() if bytes >= LEAST_GROWTH and self.lasts(it, bytes, every)
        )
        return {it: self.allocated[it] for it in found}

    def is_steady(self) -> bool:
        """Whether each of the latest steps, or every second one, added memory."""
        return any(map(is_growing, self.levels.values()))

    def is_unended(self) -> bool:
        """Whether the memory that remains after a step still rises, but not evenly."""
        growing = self.growing()
        every = {it: levels + self.later.get(it, []) for it, levels in self.levels.items() if it not in growing}
        return any(map(is_unended, every.values()))

    def lasts(self, device: int, bytes: int, every: int) -> bool:
        """Whether the growth of a device's memory, before batches varied, has continued since then."""
        later, size = self.later.get(device, []), max(every, ROWS)
        if len(later) < 2 * size:
            return True
        return min(later[-size:]) - min(self.levels[device][-size:]) >= bytes * (len(later) // every) // 2

    def climbs(self) -> list[protocol.Climb]:
        """Rows for the report: devices whose peak rose in each of the latest steps, although the memory that remains
        after a step does not grow.
        """
        return [
            protocol.Climb(device=it, bytes=rate(self.peaks[it]), steps=len(self.peaks[it]))
            for it in self.climbing()
            if self.total is None or len(self.peaks[it]) < self.total
        ]

    def climbing(self) -> list[int]:
        """The devices whose peak rose in each of the latest steps, although the memory that remains after a step does
        not grow: activations that become larger.
        """
        growing = self.growing().keys() | self.unfreezing().keys()
        return [device for device, peaks in self.peaks.items() if device not in growing and is_climbing(peaks)]

    def is_open(
        self, device: int, levels: list[int], seconds: float = SPREAD_SECONDS, steps: int | None = CONFIRM
    ) -> bool:
        """Whether more steps would show whether the memory of one device continues to grow. `seconds` is the time limit
        if it grows in one of several steps, and `steps` the most steps if it grows in each.
        """
        if len(levels) <= ROWS:
            # A rise in every second step is enough.
            return max(rises(levels)[-2:], default=0) >= LEAST_GROWTH and not self.is_warm(levels)
        is_even = is_growing(levels) or is_rising(levels)
        if not is_even and spread(levels) is None and not may_spread(levels):
            return False
        if is_even or len([at for at in large_rises(levels) if at > 1]) > 1:
            seconds = SECONDS
        return self.is_patient(device, levels, seconds, steps if is_even else None)

    def is_patient(self, device: int, levels: list[int], seconds: float, steps: int | None = CONFIRM) -> bool:
        """Whether there are time and memory for more steps. `steps` is the most steps, and `seconds` the most time since
        memory was first seen to grow.
        """
        self.began = self.began or time.monotonic()
        is_early = (steps is None or len(levels) < steps) and time.monotonic() - self.began < seconds
        return is_early and self.has_room(device, levels)

    def is_warm(self, levels: list[int]) -> bool:
        """Whether memory grew only in the first step, in which the optimizer creates its state."""
        return len(levels) == 3 and rises(levels)[-1] < LEAST_GROWTH and rises(levels)[-1] >= 0

    def has_room(self, device: int, levels: list[int]) -> bool:
        """Whether the device has memory for a few more steps. If not, no more steps run, and the step in which memory
        runs out is computed.
        """
        free, _ = self.torch.cuda.mem_get_info(device)
        unused = self.torch.cuda.memory_reserved(device) - self.allocated[device]
        return bool(free + unused > 8 * max(rises(levels[-ROWS - 1 :])))

    def survey(self, growing: Growing, frame: FrameType, step: int, is_last: bool) -> None:
        """Finds the owners of memory that grows, at the end of a step, and by how much they will still grow."""
        seconds = growing.stepped(self.growing(), step, is_last)
        growing.found = {it: [limited(one, frame) for one in own] for it, own in growing.found.items()}
        if self.began is not None:
            self.began += seconds  # surveys do not take the time for more steps

    def rows(self, holders: dict[int, list[Holder]] | None = None) -> list[protocol.GrowingSteps]:
        """Rows for the report: the devices whose memory grows, by how much per step, and until when. `holders` are the
        owners of that memory, by device.
        """
        found = []
        for device, levels in self.levels.items():
            bytes, every, times = growth_of(levels)
            if bytes < LEAST_GROWTH and self.breaks is not None and self.breaks["is_early"]:
                bytes, every, times = short(levels)
            owners = (holders or {}).get(device, [])
            steps = self.until(owners, len(levels), every, bytes)
            steps = self.full(device) if steps is None else steps
            is_bounded = (
                steps is None and bool(owners) and all(bounded([loop for loop, _ in self.scopes], it) for it in owners)
            )
            if bytes >= LEAST_GROWTH and not is_bounded and self.lasts(device, bytes, every):
                quickens = quickening(levels) if every == 1 else 0
                row = grows(
                    device,
                    bytes + quickens * len(levels) // 4,  # the growth per step at the end of the run
                    times,
                    # While batches vary, steps have peaks, but no levels.
                    max(len(levels), len(self.peaks.get(device, []))),
                    (self.total or self.planned) if steps is None else steps,
                    every=every,
                    resets=steps is not None,
                    quickens=quickens,
                    peak_bytes=self.rate(device) if every == 1 and not quickens else 0,
                )
                found.append(row)
        found += [self.unfrozen(device, *grown) for device, grown in self.unfreezing().items()]
        for device in self.climbing() if self.total is not None else ():
            peaks = self.peaks[device]
            times, more = len(peaks) - len(peaks) // 2, rate(peaks)
            end = self.full(device)
            total = self.total if end is None else end
            row = grows(device, more, times, len(peaks), total, resets=end is not None, peak_bytes=more, climbs=True)
            found.append(row)
        return found

    def full(self, device: int) -> int | None:
        """The step after which a tensor with a limit stops growing, if the loops do not end before."""
        end = self.ends.get(device)
        return end if end is not None and (self.total is None or end < self.total) else None

    def unfrozen(self, device: int, bytes: int, every: int, times: int) -> protocol.GrowingSteps:
        """The row for gradients and optimizer states, which grow until all parameters have them. If more parameters need
        them, more activations are saved too, so the peak may rise by more.
        """
        peaks = self.peaks.get(device, [])
        room = self.states.room(device) if self.states is not None else 0
        end = len(peaks) + every * -(-room // bytes)
        total = end if self.total is None else min(end, self.total)
        size = every * (len(peaks) // 2 // every)
        more = (peaks[-1] - peaks[-1 - size]) * every // size if size else 0
        return grows(device, bytes, times, len(peaks), total, every=every, peak_bytes=more, states=total == end)

    def rate(self, device: int) -> int:
        """The bytes by which a device's peak rises per step, without the states of parameters that are unfrozen."""
        peaks = self.peaks.get(device, [])
        own = self.states.bytes.get(device, []) if self.states is not None else []
        return rate([peak - it for peak, it in zip(peaks, own)] if len(own) == len(peaks) else peaks)

    def until(self, holders: list[Holder], done: int, every: int, bytes: int) -> int | None:
        """The number of steps after which an outer loop drops all of these holders, in each of its iterations, or after
        which they are full, if they grow by `bytes` every `every` steps. None if neither is known.
        """
        left = [it.left_bytes for it in holders]
        if left and None not in left and bytes:
            return done + every * -(-sum(it for it in left if it is not None) // bytes)
        return next((it.steps for it in self.rounds if holders and all(it.drops(one) for one in holders)), None)

    def look(self, frame: FrameType, steps: int, given: int) -> None:
        """Called at the end of a step. `frame` is in the program or in PyTorch, and `given` is the number of batches
        that its loaders have yielded.
        """
        for device in (*self.growing(), *self.climbing()):
            self.find_end(frame, device)
        if self.total is None:
            self.epochs = self.total = None
            try:
                loops = [(loop, own) for own in frames.of_program(frame) for loop in around(own)]
                self.scopes = [(loop, own.f_code) for loop, own in loops]
                self.epochs = epochs(loops)
                total = self.of_loops(frame, steps, given)
                self.total = total if total is not None and total < ENDLESS else None
            except Exception:
                pass  # the source may be misread; then the number of steps is unknown

    def surround(self, frame: FrameType, steps: int, given: int) -> None:
        """Finds the loops around the first steps: the program may end soon."""
        try:
            self.scopes = [(loop, own.f_code) for own in frames.of_program(frame) for loop in around(own)]
            self.planned = self.of_loops(frame, steps, given)
        except Exception:
            pass  # the source may be misread

    def find_break(self, sites: Iterable[Any], steps: int, state: str) -> protocol.Break | None:
        """Called for a report in this state: when the program ends, finds whether an unknown value, read at one of these
        sites, ends the loops of the steps.
        """
        if state == "running":
            return None
        places = [it.place for it in sites if it.place is not None and it.fate != "size"]
        lines, functions = {(file, line) for file, line, _ in places}, {it[2] for it in places} - {"<module>"}
        try:
            self.breaks, is_outermost = value_break(self.scopes, lines, functions)
        except Exception:
            self.breaks, is_outermost = None, False  # the source may be misread
        if self.breaks is not None and state == "ended":
            # If the steps of an inner loop are unknown, so is whether the outer loop ended early.
            self.breaks["is_early"] = is_outermost if self.planned is None else steps < self.planned
        return self.breaks

    def find_end(self, frame: FrameType, device: int) -> None:
        """Finds after how many steps a growing tensor will have reached the limit that the source gives."""
        try:
            bytes, every, _ = growth_of(self.levels[device])
            levels = self.levels[device] if bytes >= LEAST_GROWTH else self.peaks[device]
            bank = bank_of(self.torch, list(frames.of_program(frame)), device, levels[-1] - levels[len(levels) // 4])
            if bank is not None and bytes < LEAST_GROWTH:
                # Only the peak is known to rise. While `cat` copies the tensor, it exists twice.
                bytes, every = min(max(bank.bytes // self.steps, 1), rate(levels)), 1
            if bank is not None:
                self.ends[device] = self.steps + every * -(-bank.left // bytes)
        except Exception:
            pass  # the source may be misread

    def of_loops(self, frame: FrameType | None, steps: int, given: int) -> int | None:
        """The number of steps in the loops around a frame. None if the number is unknown for one of these loops."""
        total: int | None = None
        done: int | None = None
        functions: set[str] = set()
        self.rounds = []
        for own in frames.of_program(frame):
            for loop in around(own):
                if total is not None:
                    self.rounds.append(round_of(loop, own, self.pace.scaled(total, steps, done), functions))
                length = length_of_loop(loop, own)
                if length is None:
                    return None
                if total is None:
                    done = counter(loop, own)
                    done = given if done is None else done
                total = length * (1 if total is None else total)
            functions.add(own.f_code.co_name)
        return None if total is None else self.pace.scaled(total, steps, done, is_last=True)
