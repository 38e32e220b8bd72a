"""Finds the path from an object up to a name in the program, with a breadth-first search over the referrers that the
garbage collector reports. The search ends at a module's variable, a class, or a variable of a running function.

The collector does not know the variables of running functions; they are read from the threads' frames. The walk keeps
references to objects only while it runs.
"""

from __future__ import annotations

import gc
import sys
import time
import types
from collections.abc import Iterable
from types import FrameType
from typing import Any

from ..frames import is_function
from .objects import attributes, is_a, is_ours, locals_of, name_of_globals

SECONDS = 2.0  # the time limit of a walk
WIDTH = 48  # the maximum number of objects in one level
MOST = 400  # the maximum number of objects in a branch
BRANCHES = 8  # the maximum number of an object's referrers that are followed


class Local:
    """A variable of a running function."""

    def __init__(self, name: str, frame: FrameType, thread: str | None) -> None:
        self.name, self.function = name, frame.f_code.co_name
        self.file, self.line, self.thread = frame.f_code.co_filename, frame.f_code.co_firstlineno, thread


class Chain:
    """The objects from the start up to the topmost object that was found, and the root that the topmost object is."""

    def __init__(self, objects: list[Any], root: Local | str | None, is_garbage: bool = False) -> None:
        self.objects = objects
        self.root = root  # a variable of a running function, a module's name, or None
        self.is_garbage = is_garbage  # only the garbage collector would free the objects


class Branch:
    """The part of the search that starts at one object that refers to the start."""

    def __init__(self, start: Any, holder: Any) -> None:
        self.objects = {id(start): start, id(holder): holder}
        self.below = {id(holder): id(start)}
        self.frontier = [id(holder)]

    def chain(self, top: int) -> list[Any]:
        """The path from the start up to an object."""
        found = [self.objects[top]]
        while top in self.below:
            top = self.below[top]
            found.append(self.objects[top])
        return found[::-1]


class Climb:
    """Walks up from objects to the roots that exist at this moment."""

    def __init__(self) -> None:
        self.until = time.monotonic() + SECONDS
        self.modules = modules()
        self.locals = running()
        self.own: set[int] = set()  # addresses of our own containers

    def is_late(self) -> bool:
        """Whether the time limit is reached."""
        return time.monotonic() > self.until

    def chains(self, starts: tuple[Any, ...]) -> list[list[Chain]]:
        """For each of these objects, a list with one chain for each object that refers to it."""
        branches = self.branches(starts)
        found = [[Chain([it], root) for root in self.locals.get(id(it), ())] for it in starts]
        self.own.update(id(chain.objects) for chains in found for chain in chains)
        for nth, branch in branches:
            self.arrive(branch, branch.frontier[0], found[nth])
        while any(branch.frontier for _, branch in branches) and not self.is_late():
            self.rise(branches, found)
        ends = [(nth, branch, self.is_garbage(branch, branches, found)) for nth, branch in branches if branch.objects]
        for nth, branch, is_garbage in ends:
            found[nth].append(self.unnamed(branch, is_garbage))
        return found

    def branches(self, starts: tuple[Any, ...]) -> list[tuple[int, Branch]]:
        """A branch for each object that refers to one of `starts`, with the index of that start."""
        found: list[tuple[int, Branch]] = []
        for owner, below in self.referring(starts):
            for nth, start in enumerate(starts):
                if id(start) in below and sum(it == nth for it, _ in found) < BRANCHES:
                    found.append((nth, Branch(start, owner)))
                    self.own.add(id(found[-1][1].objects))
        return found

    def rise(self, branches: list[tuple[int, Branch]], found: list[list[Chain]]) -> None:
        """Moves all branches up by one level."""
        before = [(nth, branch, set(branch.frontier)) for nth, branch in branches if branch.frontier]
        level = {it: branch.objects[it] for _, branch, frontier in before for it in frontier}
        objects = tuple(level.values())
        del level
        for _, branch, _ in before:
            branch.frontier = []
        for owner, below in self.referring(objects):
            for nth, branch, frontier in before:
                mine = below & frontier
                if mine and branch.objects and id(owner) not in branch.objects and len(branch.objects) < MOST:
                    branch.objects[id(owner)] = owner
                    branch.below[id(owner)] = next(iter(mine))
                    if len(branch.frontier) < WIDTH:
                        branch.frontier.append(id(owner))
                    self.arrive(branch, id(owner), found[nth])

    def arrive(self, branch: Branch, at: int, found: list[Chain]) -> None:
        """Ends a branch if it has reached a root."""
        obj = branch.objects[at]
        root: Local | str | None = next(iter(self.locals.get(at, ())), None)
        if root is None and type(obj) is dict:
            root = self.modules.get(at) or name_of_globals(obj)
        if root is None and not is_a(obj, type, types.ModuleType):
            return
        found.append(self.made(branch, at, root))
        branch.objects.clear()
        branch.frontier = []

    def referring(self, objects: tuple[Any, ...]) -> list[tuple[Any, set[int]]]:
        """The objects that refer to any of the given `objects`, each with the addresses of the given objects to which
        it refers.
        """
        wanted = {id(it) for it in objects}
        found = []
        for owner in gc.get_referrers(*objects):
            if id(owner) not in self.own and not is_ours(owner):
                below = wanted.intersection(map(id, gc.get_referents(owner)))
                below.discard(id(owner))
                if below:
                    found.append((owner, below))
        return found

    def made(self, branch: Branch, top: int, root: Local | str | None, is_garbage: bool = False) -> Chain:
        """Makes the chain of a branch. From then on, the chain's list counts as one of our own containers."""
        chain = Chain(branch.chain(top), root, is_garbage)
        self.own.add(id(chain.objects))
        return chain

    def unnamed(self, branch: Branch, is_garbage: bool) -> Chain:
        """The chain of a branch that has not reached a root: up to a function, a generator, an exception, or an attribute."""
        scopes = (types.FunctionType, types.GeneratorType, types.CoroutineType, BaseException)
        above = [(at, obj) for at, obj in branch.objects.items() if at in branch.below]
        tops = [at for at, obj in above if is_a(obj, *scopes)] or [
            at for at, obj in above if attributes(obj) is not None
        ]
        return self.made(branch, tops[0] if tops else above[0][0], None, is_garbage)

    def is_garbage(self, branch: Branch, branches: list[tuple[int, Branch]], found: list[list[Chain]]) -> bool:
        """Whether no other object refers to the objects above the start, so that they form a cycle."""
        if branch.frontier or len(branch.objects) >= MOST or self.is_late():
            return False
        counts = dict.fromkeys(branch.objects, 0)

        def count(objects: Iterable[Any]) -> None:
            for at in map(id, objects):
                if at in counts:
                    counts[at] += 1

        for at in branch.objects:
            count(gc.get_referents(branch.objects[at]))
        for _, other in branches:
            count(other.objects.values())
        for chain in (it for chains in found for it in chains):
            count(chain.objects)
        # The call to getrefcount itself holds one more reference.
        return all(sys.getrefcount(branch.objects[at]) - 1 <= counts[at] for at in branch.below)


def modules() -> dict[int, str]:
    """The modules' names by the address of their variables."""
    found: dict[int, str] = {}
    for name, module in list(sys.modules.items()):
        own = attributes(module) if is_a(module, types.ModuleType) else None
        if type(name) is str and own is not None:
            found.setdefault(id(own), name)  # the first name: the module `__main__` also has other names
    return found


def running() -> dict[int, list[Local]]:
    """The variables of all running functions, by the addresses of the variables' values."""
    import threading

    names = {}
    for ident, thread in list(threading._active.items()):  # type: ignore[attr-defined]
        kept = attributes(thread)
        name = kept.get("_name") if kept is not None else None
        names[ident] = name if type(name) is str else None
    found: dict[int, list[Local]] = {}
    mine = threading.get_ident()
    frame: FrameType | None
    # `frame` is set to None at the end; otherwise, this function's frame would keep itself and its callers' variables
    # alive.
    for ident, frame in sys._current_frames().items():
        thread = None if ident == mine else names.get(ident) or str(ident)
        while frame is not None:
            if is_function(frame) and not is_ours(frame):
                for name, value in locals_of(frame):
                    found.setdefault(id(value), []).append(Local(name, frame, thread))
            frame = frame.f_back
    return found
