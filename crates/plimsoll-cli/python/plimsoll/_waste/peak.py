"""Finds the moment of `predict`'s highest peak, and which of the program's variables are live then but not read again.
The simulated GPU (plimsoll-standin, lines.rs) calls a listener after each line that used CUDA. If the peak has risen,
the line that has just run caused it, and the frames on the stack are those at the peak. For a peak in a backward pass,
the variables are examined when the pass begins, because a `del` before the pass does not free tensors that are saved
for it.
"""

from __future__ import annotations

import collections
import ctypes
import linecache
import sys
import time
from types import CodeType, FrameType
from typing import Any

from .. import frames, protocol
from .._holding.live import Tensors
from .._predict import device as standin
from .._predict.source import Source, scope_of
from .further import Further, Row
from .gradients import Gradients
from .insertion import Insertion, after_last_use, assigned_at, behind
from .names import Names, bound
from .sole import Sole, size_of
from .views import Views

LISTENER = ctypes.PYFUNCTYPE(None, ctypes.c_int)
NEW = -1  # the frame has not run a line yet
LEAST_PART = 100  # less than this part (1/100) of the peak is not reported
SECONDS = 1.5  # the limit of CPU time for examining variables
MOST = 6  # the maximum number of rows
MANY = 100  # if a variable, such as a model, keeps this many objects, it is examined only LOOKS times
LOOKS = 3


class Place:
    """A line of the program on the stack at the peak: the names of its function, and which of them are dead there."""

    def __init__(self, code: CodeType, names: Names, contents: Names, line: int, lines: list[str]) -> None:
        self.code, self.names, self.contents, self.line, self.lines = code, names, contents, line, lines
        self.statement = names.at(line)
        there = contents.at(line)
        self.dead = names.dead(self.statement) if self.statement else frozenset()
        # The names of tensors that are read again only for their shape.
        self.shapes = (contents.dead(there) - self.dead) if there else frozenset()

    def assigned(self) -> frozenset[str]:
        """The names that the statement at the peak assigns."""
        return bound(self.statement) if self.statement is not None else frozenset()

    def insertion(self, name: str) -> Insertion | None:
        """The place for a new line that deletes a name."""
        names = self.names if name in self.dead else self.contents
        statement = self.statement if names is self.names else self.contents.at(self.line)
        return after_last_use(names, name, statement, self.lines) if statement is not None else None


class Peak:
    """The highest peak so far, and the variables at that moment."""

    def __init__(self, torch: Any, optimizers: Any) -> None:
        self.torch, self.known = torch, Tensors(torch)
        self.gradients = Gradients(torch, self.known, optimizers)
        self.further = Further(self.known)
        self.best = 0
        self.rows: list[protocol.Waste] = []
        self.at_backward: tuple[tuple[CodeType, int], list[protocol.Waste]] | None = None  # the pass's line and rows
        self.places: dict[tuple[CodeType, int], Place | None] = {}
        self.scopes: dict[CodeType, tuple[Names, Names, list[str]] | None] = {}
        self.looks: collections.Counter[tuple[CodeType, str]] = (
            collections.Counter()
        )  # examinations of a variable with MANY objects that found nothing
        # The peak, and the rows, at the last examination for these lines.
        self.looked: dict[tuple[Any, ...], tuple[int, list[protocol.Waste]]] = {}
        self.spent = 0.0
        self.risen: set[tuple[CodeType, int]] = set()  # lines where the peak has risen
        self.listener = LISTENER(self.called)

    def start(self) -> None:
        """Watches this thread."""
        library = ctypes.PyDLL(None)
        if hasattr(library, "plimsoll_standin_watch") and sys.gettrace() is None:
            library.plimsoll_standin_watch("\n".join(frames.LIBRARIES).encode(), self.listener)

    def report(self) -> list[protocol.Waste]:
        """Rows for the report. There are none if the program created a stream, or captured a graph, which also creates
        a stream: work on a stream may read memory after the last line that names it.
        """
        return [] if standin.has_streams() else self.rows

    def called(self, line: int) -> None:
        """Called after a line that used CUDA. An exception here must not reach the program."""
        try:
            self.used(sys._getframe(1), line)
        except Exception:
            self.rows = []

    def used(self, frame: FrameType | None, line: int) -> None:
        """Handles a line that used CUDA; `frame` is the frame that Python is running."""
        device = self.torch.cuda.current_device()
        peak = int(self.torch._C._cuda_memoryStats(device)["allocated_bytes"]["all"]["peak"])
        if peak <= self.best:
            return
        self.best = peak
        stack = self.stack(frame, line)
        before = self.at_backward
        if before is not None and before[0] in [(it.f_code, number) for it, number in stack]:
            self.rows = before[1]
        else:
            self.at_backward = None
            self.rows = self.look_again(stack, is_done=bool(stack) and stack[0][0] is frame)
        self.risen.update((it.f_code, number) for it, number in stack[:1])

    def stack(self, frame: FrameType | None, line: int) -> list[tuple[FrameType, int]]:
        """The program's frames, the innermost first, each with its current line."""
        found = [(it, it.f_lineno) for it in frames.of_program(frame)]
        if found and found[0][0] is frame and line:
            found[0] = frame, line
            if line == NEW:
                del found[0]
        return found

    def backward(self, frame: FrameType) -> None:
        """Called when a backward pass begins."""
        try:
            stack = self.stack(frame, 0)
            if stack:
                self.at_backward = (stack[0][0].f_code, stack[0][1]), self.look(stack)
            self.gradients.began()
        except Exception:
            self.at_backward = None

    def look_again(self, stack: list[tuple[FrameType, int]], is_done: bool) -> list[protocol.Waste]:
        """Like `look`. If the peak has risen by less than the least part since the last time at these lines, the rows
        are the same.
        """
        key = (*((it.f_code, number) for it, number in stack), is_done)
        peak, rows = self.looked.get(key, (0, []))
        if self.best - peak >= self.least():
            rows = self.look(stack, is_done)
            self.looked[key] = self.best, rows
        return rows

    def look(self, stack: list[tuple[FrameType, int]], is_done: bool = False) -> list[protocol.Waste]:
        """Rows for the variables that are live but not read again. With `is_done`, the innermost line has already run
        and assigned its names.
        """
        if self.spent > SECONDS:
            return []
        began = time.thread_time()
        try:
            with self.known.quiet():
                return self.found(stack, is_done)
        finally:
            self.spent += time.thread_time() - began

    def found(self, stack: list[tuple[FrameType, int]], is_done: bool) -> list[protocol.Waste]:
        """Does the work of `look`, without checking the time limit."""
        sole, values = Sole(self.known), []
        for frame, line in stack:
            place = self.place(frame.f_code, line, frame.f_globals)
            if place is not None:
                names = place.dead | place.shapes | place.names.stored
                values.append((place, frames.read(frame, lambda variables: pick(variables, names))))
        rows: list[protocol.Waste] = []
        views: Views[Place] = Views(self.known)
        for nth, (place, variables) in enumerate(values):
            new = place.assigned() if is_done and nth == 0 and stack[0][1] == place.line else frozenset()
            for name in list(variables):
                if name in new:
                    rows += self.renewed(place, name, variables[name])
                elif self.looks[place.code, name] >= LOOKS:
                    continue
                elif name in place.dead or name in place.shapes and self.known.is_tensor(variables[name]):
                    views.add_dead(place, name, variables[name])
                    sole.add((nth, name), variables.pop(name))
                elif self.known.is_tensor(variables[name]):
                    views.add(place, name, variables[name])
            variables.clear()
        rows += self.views(views, sole) + self.gradients.rows(stack, self.scope_of_frame, self.least())
        del views  # `views` refers to tensors
        rows += self.further.graphs(stack, self.least())
        others = self.further.add(sole, stack, set(sole.roots.values()))
        if sole.explore():
            rows += self.freed([place for place, _ in values], sole, others)
        return sorted(merged(rows), key=lambda it: -it["bytes"])[:MOST]

    def freed(self, places: list[Place], sole: Sole, others: dict[Any, Row]) -> list[protocol.Waste]:
        """Rows for the variables whose deletion frees memory, and the rows in `others`, which are stored by key, whose
        objects keep enough memory.
        """
        least = self.least()
        large = [key for key in sole.roots if sole.most([key]) >= least]
        sizes = {key: sole.bytes([key]) for key in large}
        rest = [key for key in large if sizes[key] < least]
        shared = sole.bytes(rest) if len(rest) > 1 else 0
        if shared >= least:
            # Several of these names refer to the same memory, such as a tensor and its view.
            sizes.update({key: shared - sole.bytes([it for it in rest if it != key]) for key in rest})
        for key in sole.roots.keys() - others.keys():
            if sizes.get(key, 0) < least and sole.count(key) >= MANY:
                self.looks[places[key[0]].code, key[1]] += 1
        found: list[protocol.Waste] = []
        for key, size in ((key, size) for key, size in sizes.items() if size >= least):
            row = others[key](size) if key in others else self.row(places[key[0]], key[1], size)
            found += [row] if row is not None else []
        return found

    def least(self) -> int:
        """The smallest number of bytes to report."""
        return self.best // LEAST_PART

    def row(self, place: Place, name: str, size: int) -> protocol.Waste | None:
        """A row for a dead variable, if a new line can free it."""
        there = place.insertion(name)
        if there is None:
            return None
        kind, text = "del", f"del {name}"
        if name in place.shapes:
            kind, text = "shape", f'{name} = {name}.detach().to("meta")'
        return waste(kind, place, name, size, there, text)

    def renewed(self, place: Place, name: str, value: Any) -> list[protocol.Waste]:
        """A row for a variable that still referred to the previous iteration's tensor when the peak's line assigned it
        again. Its size is taken from the new tensor.
        """
        is_again = (place.code, place.line) in self.risen and name in place.dead
        if not is_again or not self.known.is_tensor(value) or not self.known.get(value, "is_cuda"):
            return []
        size, there = size_of(value), place.insertion(name)
        return [waste("del", place, name, size, there, f"del {name}")] if there and size >= self.least() else []

    def views(self, views: Views[Place], sole: Sole) -> list[protocol.Waste]:
        """Rows for variables with small views that alone keep a large storage alive, and for dead variables that also
        keep this storage.
        """
        rows: list[protocol.Waste] = []
        for size, small, dead in views.large(sole, self.least()):
            copies = [self.copy(place, name, size) for place, name in small]
            dels = [self.row(place, name, size) for place, name in dead]
            if all(copies) and all(dels):
                rows += [it for it in copies + dels if it is not None]
        return rows

    def copy(self, place: Place, name: str, size: int) -> protocol.Waste | None:
        """A row for a variable that should have a copy instead of a view."""
        if name in place.names.closed or not place.names.is_known:
            return None
        line = assigned_at(place.names, name, place.line)
        statement = place.names.at(line)
        there = behind(place.names, statement, place.lines, name) if statement is not None else None
        return waste("view", place, name, size, there, f"{name} = {name}.clone()") if there else None

    def place(self, code: CodeType, line: int, variables: dict[str, Any]) -> Place | None:
        """The `Place` of a line; None if its source is unknown."""
        key = code, line
        if key not in self.places:
            scope = self.scope(code, variables)
            self.places[key] = scope and Place(code, scope[0], scope[1], line, scope[2])
        return self.places[key]

    def scope_of_frame(self, frame: FrameType) -> tuple[Names, list[str]] | None:
        """The names of a frame's function, and the lines of its file."""
        scope = self.scope(frame.f_code, frame.f_globals)
        return scope and (scope[0], scope[2])

    def scope(self, code: CodeType, variables: dict[str, Any]) -> tuple[Names, Names, list[str]] | None:
        """The names of a code object's function. Among modules, only the main program counts, because names in other
        modules may be read elsewhere.
        """
        if code not in self.scopes:
            self.scopes[code] = None
            source = Source.of(code, variables)
            found = source and scope_of(source.tree, code)
            is_alone = (
                code.co_name != "<module>" or variables.get("__name__") == "__main__" and not self.further.reads_main()
            )
            if source and found is not None and isinstance(getattr(found, "body", None), list) and is_alone:
                lines = linecache.getlines(code.co_filename, variables)
                self.scopes[code] = Names(found), Names(found, by_content=True), lines
        return self.scopes[code]


def merged(rows: list[protocol.Waste]) -> list[protocol.Waste]:
    """Merges the rows for the same new line: several objects may have the same attribute."""
    found: dict[tuple[str, int, str], protocol.Waste] = {}
    for row in rows:
        same = found.setdefault((row["file"], row["after"], row["text"]), row)
        if same is not row:
            same["bytes"] += row["bytes"]
    return list(found.values())


def pick(variables: Any, names: Any) -> dict[str, Any]:
    """The variables of a frame that have one of these names."""
    return {it: variables[it] for it in names if it in variables}


def waste(kind: str, place: Place, name: str, size: int, there: Insertion, text: str) -> protocol.Waste:
    """Builds a row for the report."""
    return there.waste(kind, name, place.code.co_filename, assigned_at(place.names, name, place.line), size, text)
