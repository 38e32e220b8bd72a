"""Finds how far a container will still grow: a deque with `maxlen`, or a list or dictionary whose length the program
tests, as in `if len(self.memory) < self.capacity: self.memory.append(None)` or `if len(kept) > 100: kept.pop(0)`.
"""

from __future__ import annotations

import ast
import collections
import dataclasses
import re
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

from .. import frames
from .._holding.holder import Holder
from .._holding.objects import MANY, is_a, mro
from .banks import limit_of
from .lengths import length, value_of
from .rounds import FREES, container_of
from .source import Source, last_name

FILLS = {"append", "appendleft", "add", "extend", "insert", "update", "heappush", "setdefault"}
BELOW, ABOVE = (ast.Lt, ast.LtE, ast.NotEq), (ast.Gt, ast.GtE, ast.Eq)
SWAPPED: dict[type, type] = {ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Gt: ast.Lt, ast.GtE: ast.LtE}


def limited(holder: Holder, frame: FrameType | None) -> Holder:
    """This holder, with the bytes by which it will still grow, if a limit of its container is known. `frame` is in the
    program, or was called by it.
    """
    try:
        left = room(holder, list(frames.of_program(frame)))
    except Exception:
        left = None  # misread source must not fail the program
    return holder if left is None else dataclasses.replace(holder, left_bytes=left)


def room(holder: Holder, stack: list[FrameType]) -> int | None:
    """The bytes by which a holder will still grow; None if that is unknown."""
    name = container_of(holder)
    if name is None:
        return None
    path: Any = ast.parse(name, mode="eval").body
    deque = re.search(r"deque of (\d+) tensors? of at most (\d+)", holder.text)
    for frame in stack:
        many = value_of(path, frame)
        if many is None or not is_a(many, *MANY) or not len(many) or deque and not is_a(many, collections.deque):
            continue
        owner = value_of(path.value, frame) if isinstance(path, ast.Attribute) else None
        elements = list(many.values() if is_a(many, dict) else many)
        filled = sum(it is not None for it in elements)
        most = many.maxlen if is_a(many, collections.deque) else rows(many, elements, owner)
        if most is None:
            most = limit(name, path, owner, stack)
            # A container that has more elements has another limit, or none: `while len(queue) > 0: queue.pop()`.
            most = most if most is not None and 0 < most and filled <= most + 1 else None
        return None if most is None else holder.bytes * max(most - filled, 0) // max(filled, 1)
    # No frame has a name for it, as for a closure's. One tensor counts as one element.
    return holder.bytes * max(int(deque[2]) - int(deque[1]), 0) // max(int(deque[1]), 1) if deque else None


def rows(many: Any, elements: list[Any], owner: Any) -> int | None:
    """The most elements of a container that was made with a place for each of them, or of a dataset's cache, which has one
    for each row. None if the container is something else.
    """
    from torch.utils.data import Dataset

    if elements[-1] is None and 4 * sum(it is None for it in elements) > len(elements):
        return len(elements)
    if not isinstance(owner, Dataset) or not is_a(many, dict) or not all(type(it) is int for it in many):
        return None
    size = length(owner)
    return size if size is not None and size >= len(elements) else None


def limit(name: str, path: Any, owner: Any, stack: list[FrameType]) -> int | None:
    """The most elements of the container to which a path leads from a variable of the program, as its source says."""
    files = {it.f_code.co_filename: {name} for it in stack}
    for kind in mro(type(owner)) if owner is not None else ():
        # Methods call the owner `self`.
        file = getattr(sys.modules.get(kind.__module__), "__file__", None)
        if type(file) is str and not frames.is_library(file):
            files.setdefault(file, {name}).add(f"self.{path.attr}")
    found = []
    for file, names in files.items():
        source = Source.at(file, {})
        for most in guards(source.tree, names) if source is not None else ():
            value = limit_of(most, owner, stack, file)
            found += [] if value is None else [value]
    return max(found, default=None)


def guards(tree: ast.AST, names: set[str]) -> Iterator[Any]:
    """The expressions for the most elements of the container that has one of these names."""
    for node in ast.walk(tree):
        if not isinstance(node, (ast.If, ast.While)):
            continue
        for test in ast.walk(node.test):
            found = compared(test, names)
            if found is None:
                continue
            kind, most = found
            rest = node.orelse
            is_full = issubclass(kind, ABOVE) and (any(frees(it, names) for it in node.body) or fills(rest, names))
            if is_full or issubclass(kind, BELOW) and fills(node.body, names):
                yield most


def compared(test: Any, names: set[str]) -> tuple[type, Any] | None:
    """The comparison of `len(NAME)` with an expression, as if `len` came first; None if this is no such comparison."""
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return None
    kind = type(test.ops[0])
    if is_length(test.left, names):
        return kind, test.comparators[0]
    return (SWAPPED.get(kind, kind), test.left) if is_length(test.comparators[0], names) else None


def is_length(node: Any, names: set[str]) -> bool:
    """Whether an expression is the length of the container, or in its class `len(self)`."""
    if not isinstance(node, ast.Call) or last_name(node.func) != "len" or len(node.args) != 1:
        return False
    of = ast.unparse(node.args[0])
    return of in names or of == "self" and any(it.startswith("self.") for it in names)


def fills(statements: list[Any], names: set[str]) -> bool:
    """Whether a statement adds an element to the container."""
    return any(changes(node, names, FILLS) for it in statements for node in ast.walk(it))


def frees(statement: Any, names: set[str]) -> bool:
    """Whether a statement removes elements of the container."""
    for node in ast.walk(statement):
        if changes(node, names, FREES) or isinstance(node, ast.Assign) and names & set(map(ast.unparse, node.targets)):
            return True
        if isinstance(node, ast.Delete) and names & {
            ast.unparse(it.value) if isinstance(it, ast.Subscript) else "" for it in node.targets
        }:
            return True
    return False


def changes(node: Any, names: set[str], functions: set[str]) -> bool:
    """Whether a node calls one of these functions of the container, or with it, as `heapq.heappush(kept, x)`."""
    if isinstance(node, ast.Assign) and functions is FILLS:
        return any(isinstance(it, ast.Subscript) and ast.unparse(it.value) in names for it in node.targets)
    if not isinstance(node, ast.Call) or not any(last_name(node.func).startswith(it) for it in functions):
        return False
    of = [node.func.value] if isinstance(node.func, ast.Attribute) else []
    return any(ast.unparse(it) in names for it in of + node.args[:1])
