"""Finds the objects of the program's classes that can be reached from the program's variables, and the values of
requested attributes. The program's code is never run.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Set
from types import FrameType
from typing import Any

from .. import frames
from .._holding.objects import attributes, class_dict, class_name, mro

# Base classes of libraries that do not read a subclass's own attributes.
BASES = ("object", "Module", "Dataset", "IterableDataset", "ABC", "Generic")
MOST = 2000  # the maximum number of objects to look at
WIDE = 100  # the maximum number of elements of a container to look at
DEEP = 4  # the maximum number of levels below the variables


class Owners:
    """The objects of the program's modules."""

    def __init__(self, modules: Container[str]) -> None:
        self.modules = modules
        self.kinds: dict[int, bool] = {}  # by the address of a class: whether to look at its objects

    def values(self, stack: list[tuple[FrameType, int]], names: Set[str]) -> Iterator[tuple[Any, str, Any]]:
        """For each attribute with one of these names: the object, the name, and the value."""
        for owner in self.objects(stack) if names else ():
            for name, value in list((attributes(owner) or {}).items()):
                if name in names:
                    yield owner, name, value

    def has(self, owner: Any, kind: str) -> bool:
        """Whether a class with this name is among an object's classes, and whether all its other classes are the
        program's own or do not read the object's attributes.
        """
        names = [(class_dict(it).get("__module__"), class_name(it)) for it in mro(type(owner))]
        ours = [name for module, name in names if module in self.modules]
        others = [name for module, name in names if module not in self.modules]
        return any(it.rpartition(".")[2] == kind for it in ours) and all(it in BASES for it in others)

    def objects(self, stack: list[tuple[FrameType, int]]) -> list[Any]:
        """The objects that can be reached from the variables on the stack."""
        found: dict[int, Any] = {}
        level: list[Any] = []
        for frame, _ in stack:
            level += frames.read(frame, lambda variables: list(variables.values()))
        level += [it for frame, _ in stack[-1:] for it in list(frame.f_globals.values())]
        for _ in range(DEEP):
            below: list[Any] = []
            for it in level:
                if len(found) < MOST and id(it) not in found and (type(it) in (list, tuple, dict) or self.is_own(it)):
                    found[id(it)] = it
                    below += children(it)
            level = below
        return [it for it in found.values() if self.is_own(it)]

    def is_own(self, obj: Any) -> bool:
        """Whether an object is of one of the program's classes, or is a `torch.nn` module."""
        kind = type(obj)
        known = self.kinds.get(id(kind))
        if known is None:
            names = [(class_dict(it).get("__module__"), class_name(it)) for it in mro(kind)]
            is_ours = any(module in self.modules for module, _ in names)
            known = self.kinds[id(kind)] = is_ours or ("torch.nn.modules.module", "Module") in names
        return known


def children(owner: Any) -> list[Any]:
    """The objects to which the attributes of `owner` refer, or its elements if it is a small container."""
    if type(owner) in (list, tuple):
        return list(owner[:WIDE])
    if type(owner) is dict:
        return list(owner.values())[:WIDE]
    found = attributes(owner) or {}
    modules = found.get("_modules")
    return [*found.values(), *(modules.values() if type(modules) is dict else ())]
