"""Finds memory at the peak that objects other than variables keep: attributes that are not read again, containers that
are only added to, and graphs that sums of losses keep. `attributes.py`, `containers.py` and `sums.py` find them in the
source.
"""

from __future__ import annotations

import ast
import collections
import linecache
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from .. import frames, protocol
from .._holding.live import Tensors
from .._predict.source import looked_up, scope_of
from .attributes import Attribute, dead
from .containers import Unread, unread
from .insertion import Insertion, instead
from .names import Names
from .owners import Owners
from .program import Program, loaded
from .sole import Sole
from .sums import Sum, graph_of, sums

Stack = list[tuple[FrameType, int]]  # the innermost frame first, each with its line
LOOKS = 3  # if the graphs of a sum kept little memory this often, the sum is not examined again
Row = Callable[[int], "protocol.Waste | None"]


class Further:
    """The attributes, containers and sums found in the source, and the rows for those that keep memory now."""

    def __init__(self, known: Tensors) -> None:
        self.known = known
        self.modules: dict[str, str] = {}
        self.seen: tuple[int, str] | None = None  # the number of loaded modules at the last search, and the newest one
        self.read(Program({}))

    def read(self, program: Program) -> None:
        """Searches the source of the program."""
        self.program = program
        self.owners = Owners(self.modules)
        self.attributes = {it.name: it for it in dead(program)}
        self.containers = unread(program)
        self.sums = sums(program)
        self.looks: collections.Counter[int] = collections.Counter()
        self.named = {it.name for it in self.containers if it.scope is None} | self.attributes.keys()

    def reads_main(self) -> bool:
        """Whether a module of the program may read the variables of the main program: `import __main__`."""
        self.refresh()
        return self.program.reads_main

    def refresh(self) -> None:
        """Searches again if the program has loaded more modules."""
        seen = len(sys.modules), next(reversed(sys.modules))
        if seen == self.seen:
            return
        self.seen = seen
        now = loaded()
        if now != self.modules:
            self.modules = now
            self.read(Program(now))

    def add(self, sole: Sole, stack: Stack, names: set[int]) -> dict[Any, Row]:
        """Adds the values that may be freed to `sole`, except values at one of the addresses in `names`, which belong
        to variables. Returns the rows for the added values, by their keys in `sole`.
        """
        self.refresh()
        rows: dict[Any, Row] = {}
        for it in self.containers:
            value = self.variable(it, stack) if it.scope is not None else None
            if value is not None and id(value) not in names:
                sole.add(("container", id(value)), value)
                rows["container", id(value)] = row_of_container(it)
        for owner, name, value in self.owners.values(stack, self.named):
            attribute = self.attributes.get(name)
            there = attribute and self.owners.has(owner, attribute.kind) and attribute.insertion(stack)
            if attribute and there:
                sole.add(("attribute", id(owner), name), value)
                rows["attribute", id(owner), name] = row_of_attribute(attribute, there)
            for container in self.containers:
                if container.scope is None and container.name == name and self.owners.has(owner, container.kind):
                    sole.add(("container", id(owner), name), value)
                    rows["container", id(owner), name] = row_of_container(container)
        return rows

    def graphs(self, stack: Stack, least: int) -> list[protocol.Waste]:
        """Rows for the sums and lists whose graphs keep at least `least` bytes."""
        self.refresh()
        found: list[protocol.Waste] = []
        for it in self.sums:
            frame = next((frame for frame, _ in stack if scope_at(it, frame)), None)
            if frame is not None and isinstance(it.base, ast.Name):
                found += self.summed(it, looked_up(it.base, frame), least)
        summed = {it.base.attr for it in self.sums if isinstance(it.base, ast.Attribute)}
        for _, name, value in self.owners.values(stack, summed):
            for it in self.sums:
                if isinstance(it.base, ast.Attribute) and it.base.attr == name:
                    found += self.summed(it, value, least)
        return found

    def variable(self, it: Unread, stack: Stack) -> Any:
        """The container that a variable currently refers to."""
        for frame, _ in stack:
            if isinstance(it.scope, ast.Module):
                variables = frame.f_globals
                if variables.get("__name__") == "__main__" and variables.get("__file__") == it.source.file:
                    return variables.get(it.name)
            elif frame.f_code.co_filename == it.source.file and scope_of(it.source.tree, frame.f_code) is it.scope:
                return frames.read(frame, lambda variables: variables.get(it.name))
        return None

    def summed(self, it: Sum, value: Any, least: int) -> list[protocol.Waste]:
        """A row for a sum or a list whose graphs keep at least `least` bytes."""
        value = it.element(value)
        if self.looks[id(it.statement)] >= LOOKS or value is None:
            return []
        size, count = graph_of(self.known, value)
        if count < 2:
            return []
        if size < least:
            self.looks[id(it.statement)] += 1
            return []
        edited = it.edited()
        if edited is None:
            return []
        there, text = edited
        statement = it.statement
        name, first = ast.unparse(it.target), statement.lineno
        return [there.waste("graph", name, it.source.file, first, size, text, each=size // count, first=first)]


def scope_at(it: Sum, frame: FrameType) -> bool:
    """Whether a frame is running the function or the module of a sum."""
    if frame.f_code.co_filename != it.source.file:
        return False
    return scope_of(it.source.tree, frame.f_code) is it.source.scope(it.statement)


def row_of_attribute(it: Attribute, there: Insertion) -> Row:
    """The row for a dead attribute."""

    def row(size: int) -> protocol.Waste:
        return there.waste("del", it.text, it.source.file, it.line, size, f"del {it.text}")

    return row


def row_of_container(it: Unread) -> Row:
    """The row for a container to which the program only adds."""

    def row(size: int) -> protocol.Waste | None:
        scope = it.source.scope(it.statement)
        there = instead(Names(scope), it.statement, linecache.getlines(it.source.file))
        if there is None:
            return None
        name = it.name if it.scope is not None else it.own
        return there.waste("unread", name, it.source.file, it.line, size, it.text, first=it.statement.lineno)

    return row
