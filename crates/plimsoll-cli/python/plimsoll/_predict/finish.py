"""After the requested steps, the training DataLoader stops as if it had no more batches. So the code after the loop
runs too, such as an evaluation, which often uses larger batches. If batches.py finds a later batch that is larger than
those of the steps, one more step runs with it before the loop ends.

A loader that starts after the training loop, or the training's own loader at another line of the program, yields all its
batches if memory grows from batch to batch and there is time. If making the batches takes most of the time, copies of
one batch replace the batches between the first ones and the last (loops.py). If memory does not grow, or there is no
time, the loader yields only its first batches and its last.

If the program starts more epochs, each gets two batches (late_growth.py), until the time is up. A training loop that is not over a
DataLoader runs to its end if the end is near and the code after the loop may need memory (after.py). Otherwise the
program is stopped, and the code that did not run is listed (`after`, `unseen`).
"""

from __future__ import annotations

import ast
import itertools
import linecache
import sys
import time
import weakref
from collections.abc import Iterator
from types import FrameType
from typing import Any

from .. import allocator, frames, protocol
from .._holding.holder import Holder
from . import batches, loops, settings
from .after import after
from .epochs import Epochs
from .growth import Growth
from .heavy import Heavy
from .late_growth import LateGrowth
from .lengths import LOADERS, length
from .levels import is_unended
from .outer import Loops, Outer
from .trainers import Callbacks

LEAST_TIME, MOST_TIME = 10.0, 60.0  # seconds for the code after the steps
LONGEST_TIME = 120.0  # the same limit if a loop with growing memory needs more time
IDLE = 5  # stop after this many further steps without new code in between, and then IDLE_TIME
IDLE_TIME = 1.0
MODELS = 4  # after the steps, this many new models count as new code
REST_TIME = 5.0  # IDLE_TIME if the code after these steps may need memory
RUN_ON_TIME = 8.0  # the loop of the steps runs to its end if that takes at most this many seconds of CPU time


class Loaders:
    """Numbers DataLoaders. An address does not identify a DataLoader: a loop over `DataLoader(...)` does not keep the
    loader, so a later one may reuse its address.
    """

    def __init__(self) -> None:
        self.known: dict[int, tuple[weakref.ref[Any], int]] = {}  # by address
        self.numbers = itertools.count()

    def number(self, loader: Any) -> int:
        """The number of a loader."""
        known = self.known.get(id(loader))
        if known is None or known[0]() is not loader:
            known = self.known[id(loader)] = weakref.ref(loader), next(self.numbers)
        return known[1]


class Finish:
    """Ends the program after the requested steps: decides which loaders end early, and when to stop."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.begun = time.monotonic()
        self.finishing = 0.0  # the time at which the steps were done
        self.until = 0.0  # when the time for the code after the steps is up
        self.loaders = Loaders()
        self.training: set[int] = set()  # loaders that yielded a batch between steps, by number
        self.since_step: set[int] = set()
        self.latest: int | None = None  # the loader that yielded the latest batch
        self.begun_with: list[int] | None = None  # allocated bytes when a loop began that may be an epoch
        self.lines: set[tuple[str, int]] = set()  # the program's lines that took these batches
        self.lines_since_step: set[tuple[str, int]] = set()
        self.given = 0  # batches that these loaders yielded
        self.batches: batches.Batches | None = None  # the batches of the training loop that was ended early
        self.cut = False  # whether a loader was ended early
        self.loops: list[loops.Loop] = []  # loops over loaders that started after the steps
        self.outer = Outer(torch)  # rounds of outer loops in the steps
        self.epochs = Epochs(torch)  # epochs after the steps
        self.late_growth = LateGrowth(self)
        self.callbacks = Callbacks(torch)
        self.levels: list[int] = []  # allocated bytes after the steps, sampled a few times a second
        self.new: set[object] = set()  # loaders and lines first seen after the steps
        self.idle = 0  # steps since the last new loader or line
        self.idle_since = 0.0  # the CPU time at which `idle` reached IDLE
        self.runs_on = False  # whether the loop of the steps is running to its end
        self.is_whole = False  # whether the loop of the steps has run to its end
        self.after: list[protocol.Place] = []  # code after the last step that may need memory
        self.ends: list[tuple[float, float]] = []  # CPU time and wall-clock time at the end of each of the latest steps
        self.called: set[tuple[str, int]] = set()  # lines that call `eval()`
        self.sites: set[tuple[str, int]] = set()  # the program's lines on the stack when it created an optimizer
        self.models = 0  # optimizers created after the steps
        self.files: set[str] = set()  # the program's files that were on the stack at a step
        self.watch_loaders()
        self.watch_evaluation()

    def watch_loaders(self) -> None:
        """Counts the batches of DataLoaders, and ends the training loader once the steps are done."""
        from torch.utils.data import dataloader

        finish, kind = self, dataloader._BaseDataLoaderIter
        begin, following, again = kind.__init__, kind.__next__, kind._reset

        def __init__(self: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
            begin(self, loader, *args, **kwargs)
            start(self, loader)

        def _reset(self: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
            again(self, loader, *args, **kwargs)
            start(self, loader)

        def start(self: Any, loader: Any) -> None:
            self.plimsoll_loader, self.plimsoll_given = finish.loaders.number(loader), 0
            self.plimsoll_line, self.plimsoll_length = None, length(loader)
            self.plimsoll_batches = (
                None
                if finish.finishing or settings.ranks() > 1
                else batches.Batches(finish.torch, weakref.proxy(self), loader)
            )
            self.plimsoll_loop = loops.Loop(finish, self, loader, following) if finish.finishing else None

        def __next__(self: Any) -> Any:
            loader = getattr(self, "plimsoll_loader", None)
            if loader is None:
                return following(self)
            loop, trains = self.plimsoll_loop, loader in finish.training
            if loop is not None:
                # The same loader may be read by an evaluation. The line that takes the first batch shows which it is.
                self.plimsoll_line = self.plimsoll_line or frames.program_line(sys._getframe(1))
                is_there = self.plimsoll_line in finish.lines
                trains = trains and is_there
                if is_there and self.plimsoll_given == 0:
                    finish.epoch_begins(is_sure=trains)
            if loop is not None and trains and loop in finish.loops:
                finish.loops.remove(loop)
            if loop is not None and trains and finish.late_growth.goes_on(self):
                self.plimsoll_given += 1
                return following(self)
            if finish.finishing and trains and self.plimsoll_given > 0:
                finish.cut = True
                finish.batches = finish.batches or self.plimsoll_batches
                larger = self.plimsoll_batches and self.plimsoll_batches.larger(following)
                if larger is None:
                    raise StopIteration
                return larger
            finish.latest = loader
            if loop is not None and not trains:
                finish.saw((loader, self.plimsoll_line))
                self.plimsoll_given += 1
                return loop.batch()
            result = following(self)
            self.plimsoll_given += 1
            if self.plimsoll_batches is not None:
                self.plimsoll_batches.saw(result)
            finish.given += not finish.finishing
            finish.since_step.add(loader)
            line = None if finish.finishing else frames.program_line(sys._getframe(1))
            if line is not None:
                finish.lines_since_step.add(line)
                LOADERS.setdefault(line, self.plimsoll_length)
            return result

        kind.__init__, kind.__next__, kind._reset = __init__, __next__, _reset

    def watch_evaluation(self) -> None:
        """Records the lines that call `eval()`."""
        module, finish = self.torch.nn.Module, self
        original = module.eval

        def eval(self: Any) -> Any:
            frame = sys._getframe(1)
            place = frame.f_code.co_filename, frame.f_lineno
            finish.called.add(place)
            if finish.finishing:
                finish.saw(place)
            return original(self)

        eval.__wrapped__ = original  # type: ignore[attr-defined]
        module.eval = eval

    def stepped(self, loops: Loops) -> None:
        """Called when a step in these loops was counted. The loaders that yielded a batch for it belong to training."""
        self.training |= self.since_step
        self.lines |= self.lines_since_step
        self.since_step, self.lines_since_step = set(), set()
        self.ends = [*self.ends[-3:], (time.process_time(), time.monotonic())]
        self.files |= {frame.f_code.co_filename for frame in frames.of_program(sys._getframe(1))}
        self.outer.note(sys._getframe(1), loops)

    def steps_left(self, growth: Growth) -> int | None:
        """The steps that the program still makes; None if unknown."""
        return self.outer.left() if growth.total is None else max(growth.total - growth.steps, 0)

    def is_unsure(self, growth: Growth) -> bool:
        """Whether more steps would show whether memory grows."""
        return growth.is_unsure() or self.outer.is_open()

    def epoch_begins(self, is_sure: bool) -> None:
        """Called when a loop at a line of the training begins, after the steps. If its loader is new, a step in the loop
        shows that it is an epoch: a function may run the training and the evaluation.
        """
        levels = allocator.levels(self.torch)
        if is_sure:
            self.epochs.begins(levels)
        self.begun_with = None if is_sure else levels
        self.late_growth.begins(levels)

    def made(self, frame: FrameType) -> None:
        """Called when the program creates an optimizer, perhaps for another model in the next round of an outer loop."""
        self.sites |= {(it.f_code.co_filename, it.f_lineno) for it in frames.of_program(frame)}
        if self.finishing:
            self.models += 1
            if self.models <= MODELS:
                self.saw(("optimizer", self.models))

    def next_model(self, loops: Loops) -> list[protocol.Place]:
        """The outer loop that creates an optimizer in each round, if its next round was not reached."""
        for loop, code in [] if self.models else loops[1:]:
            file = code.co_filename
            if any(at == file and loop.lineno <= line <= loop.end_lineno for at, line in self.sites):
                text = linecache.getline(file, loop.lineno).strip()[:160]
                return [protocol.Place(file=file, line=loop.lineno, text=text)]
        return []

    def growth(self, growth: Growth, holders: dict[int, list[Holder]]) -> list[protocol.GrowingSteps]:
        """Rows about memory that grows from step to step, from round to round of an outer loop, or from epoch to epoch;
        none if the loop has run to its end.
        """
        if self.is_whole:
            return []
        loops = [loop for loop, _ in growth.scopes]
        # What only some steps add may come from an outer loop.
        outer = [] if growth.is_steady() else self.outer.rows(loops)
        found = outer or growth.rows(holders)
        return found + self.epochs.rows(growth.epochs, loops, growth.breaks is not None)

    def late(self, rows: list[protocol.Late]) -> list[protocol.Late]:
        """Rows about code of the training loop that did not run in these steps; none if the loop has run to its end."""
        return [] if self.is_whole else rows + (self.callbacks.rows or [])

    def cut_loops(self) -> list[protocol.CutLoop]:
        """Rows for the report about loops over loaders that did not get all of their batches."""
        return [row for row in (it.row() for it in self.loops) if row] + self.late_growth.rows

    def may_go_on(self) -> bool:
        """Whether the code after the steps can be reached."""
        return bool(self.training) or self.has_trainer()

    def has_trainer(self) -> bool:
        """Whether transformers' Trainer runs the training."""
        return "transformers.trainer" in sys.modules and any("transformers/trainer" in it for it in self.stack())

    def stack(self) -> Iterator[str]:
        """The files of the frames on the stack, from the innermost outwards."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            yield frame.f_code.co_filename
            frame = frame.f_back

    def look(self, frame: FrameType | None, loops: Loops) -> None:
        """Finds the code after a step in these loops that may need memory."""
        try:
            self.after = [*self.next_model(loops), *after(frame, Heavy(self.torch))]
        except Exception:
            self.after = []  # misread source must not fail the program

    def can_run_on(self, frame: FrameType, steps: int, total: int | None, loops: Loops) -> bool:
        """Whether these loops run to their end, because the code after it may need memory and the end is near."""
        self.look(frame, loops)
        if not self.after or not settings.FURTHER or settings.STOPS or settings.ranks() > 1 or not total:
            return False
        paces = [(it[0] - before[0], it[1] - before[1]) for before, it in zip(self.ends, self.ends[1:])]
        rest = max(total - steps, 0)
        processor, wall = (min((it[at] for it in paces), default=MOST_TIME) * rest for at in (0, 1))
        self.runs_on = rest > 0 and processor < RUN_ON_TIME and wall < MOST_TIME
        self.until = time.monotonic() + MOST_TIME
        return self.runs_on

    def ran_on(self, steps: int, total: int | None) -> bool:
        """Called when another step of the training loop is done. Returns whether it was the last step of the loop."""
        self.is_whole = total is not None and steps >= total
        self.runs_on = not self.is_whole
        return self.is_whole

    def begin(self) -> None:
        """Called when the steps are done: the time for the code after the steps begins."""
        self.finishing = time.monotonic()
        passed = self.finishing - self.begun
        self.until = self.finishing + min(max(passed, LEAST_TIME), MOST_TIME)

    def saw(self, what: object) -> None:
        """Called when a loader or a line ran after the steps."""
        if what not in self.new:
            self.new.add(what)
            self.idle = 0

    def left(self) -> float:
        """The number of seconds that are left for the code after the steps."""
        return self.until - time.monotonic()

    def take(self, seconds: float) -> bool:
        """Extends the time by the seconds that a loop with growing memory needs, up to a limit. Returns whether the
        time was extended.
        """
        longest = self.finishing + LONGEST_TIME
        if time.monotonic() + seconds > longest:
            return False
        self.until = min(max(self.until, time.monotonic() + seconds + LEAST_TIME), longest + LEAST_TIME)
        return True

    def is_up(self) -> bool:
        """Whether to stop because the time is up."""
        return self.until > 0 and self.left() < 0

    def goes_on(self, frame: FrameType, loops: Loops) -> bool:
        """Called at the end of each step after the requested steps. Returns whether the program may continue."""
        self.late_growth.stepped()
        if self.begun_with is not None and self.latest is not None:
            self.epochs.begins(self.begun_with)
            self.begun_with = None
            self.training.add(self.latest)
        self.idle = 0 if self.epochs.is_open() else self.idle + 1
        if self.idle <= IDLE:
            return not self.is_up()
        now = time.process_time()
        if self.idle == IDLE + 1:
            self.idle_since = now
            self.look(frame, loops)
        return now - self.idle_since < (REST_TIME if self.after else IDLE_TIME) and not self.is_up()

    def note_level(self) -> None:
        """Records the allocated bytes a few times a second."""
        self.levels.append(max(allocator.levels(self.torch), default=0))
        if len(self.levels) > 4096:
            del self.levels[::2]

    def grew(self, growth: Growth) -> bool:
        """Whether memory was still growing when the program was stopped."""
        if growth.is_unended() and not self.is_whole:
            return True
        # Containers that keep each epoch's results become full.
        is_limited = any(it.left_bytes is not None for own in self.epochs.holders.values() for it in own)
        return not is_limited and is_unended(self.levels)

    def unseen(self) -> list[protocol.Place]:
        """The lines of the program that call `eval()` and were not reached."""
        found = []
        for file in sorted(self.files):
            try:
                tree = ast.parse("".join(linecache.getlines(file)))
            except SyntaxError:
                continue
            for node in ast.walk(tree):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "eval":
                    lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
                    if not node.args and not any((file, line) in self.called for line in lines):
                        found.append(
                            protocol.Place(
                                file=file, line=node.lineno, text=linecache.getline(file, node.lineno).strip()
                            )
                        )
        return found[:20]
