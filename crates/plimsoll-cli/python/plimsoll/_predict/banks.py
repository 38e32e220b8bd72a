"""Finds a tensor that grows only to a limit which the program's source gives, such as the bank of features in
`bank = torch.cat([bank, y])[-4096:]`, or `if len(self.queue) > K: self.queue = self.queue[-K:]`.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from types import BuiltinFunctionType, FrameType, FunctionType, ModuleType
from typing import Any, NamedTuple

from .. import frames
from .._holding.live import Tensors
from .lengths import value_of
from .source import Source, looked_up

SHARE = 2  # a tensor is the growing one if it has at least the growth divided by this number
NO_OWNERS = (type, ModuleType, FunctionType, BuiltinFunctionType)
MOST = 200  # the maximum number of objects in which an attribute is looked for


class Bank(NamedTuple):
    """A tensor that grows to a limit: its bytes, and by how many bytes it will still grow."""

    bytes: int
    left: int


def bank_of(torch: Any, stack: list[FrameType], device: int, grown: int) -> Bank | None:
    """The tensor on this device that has grown by about `grown` bytes, if the source gives its limit. `stack` are the
    program's frames at the end of a step.
    """
    known = Tensors(torch)
    modules = (getattr(it, "__file__", None) for it in list(sys.modules.values()))
    files = {it.f_code.co_filename for it in stack}
    files |= {it for it in modules if type(it) is str and it.endswith(".py") and not frames.is_library(it)}
    for file in sorted(files):
        source = Source.at(file, {})
        for target, dim, limit in limits(source.tree) if source is not None else ():
            for owner, tensor in values(target, stack, file):
                if not known.is_tensor(tensor) or not known.is_on(tensor, device):
                    continue
                shape = tuple(known.get(tensor, "shape") or ())
                most = limit_of(limit, owner, stack, file)
                if dim >= len(shape) or not shape[dim] or most is None:
                    continue
                size = known.storage(tensor)[1]
                if SHARE * size >= grown:
                    row: int = known.base.numel(tensor) * known.base.element_size(tensor) // shape[dim]
                    return Bank(row * shape[dim], max(most - shape[dim], 0) * row)
    return None


def limits(tree: ast.AST) -> Iterator[tuple[Any, int, Any]]:
    """The assignments that keep a part of a value: the target, the dimension, and the expression for the most elements."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Subscript) or len(node.targets) != 1:
            continue
        target, at = node.targets[0], node.value.slice
        name = ast.unparse(target)
        read = {ast.unparse(it) for it in ast.walk(node.value.value) if isinstance(it, (ast.Name, ast.Attribute))}
        for dim, part in enumerate(at.elts if isinstance(at, ast.Tuple) else [at]):
            limit = limit_in(part)
            if name in read and limit is not None and isinstance(target, (ast.Name, ast.Attribute)):
                yield target, dim, limit


def limit_in(part: Any) -> Any:
    """The K of a slice `[-K:]` or `[:K]`; None for any other index."""
    if not isinstance(part, ast.Slice) or part.step is not None:
        return None
    if part.upper is None and isinstance(part.lower, ast.UnaryOp) and isinstance(part.lower.op, ast.USub):
        return part.lower.operand
    return part.upper if part.lower is None and not isinstance(part.upper, ast.UnaryOp) else None


def values(target: Any, stack: list[FrameType], file: str) -> Iterator[tuple[Any, Any]]:
    """The values that an assignment's target may have now, each with the object whose attribute it is."""
    if isinstance(target, ast.Name):
        for frame in stack:
            if frame.f_code.co_filename == file:
                yield None, looked_up(target, frame)
        return
    for it in objects(stack):
        for place in (vars(it), vars(it).get("_buffers")):
            found = dict.get(place, target.attr) if isinstance(place, dict) else None
            if found is not None:
                yield it, found


def objects(stack: list[FrameType]) -> list[Any]:
    """The objects that the variables of these frames refer to, and the modules in them."""
    found: dict[int, Any] = {}
    left = [it for frame in stack for it in frame.f_globals.values() if not isinstance(it, NO_OWNERS)]
    left += [it for frame in stack for it in frames.read(frame, lambda variables: list(variables.values()))]
    while left and len(found) < MOST:
        it = left.pop()
        if id(it) not in found and hasattr(type(it), "__dict__") and isinstance(getattr(it, "__dict__", None), dict):
            found[id(it)] = it
            modules = vars(it).get("_modules")
            left += list(modules.values()) if isinstance(modules, dict) else []
    return list(found.values())


def limit_of(limit: Any, owner: Any, stack: list[FrameType], file: str) -> int | None:
    """The value of a limit, which may be a name or an attribute of `self`; None if it is unknown."""
    if isinstance(limit, ast.Attribute) and isinstance(limit.value, ast.Name) and owner is not None:
        found = [getattr(owner, "__dict__", {}).get(limit.attr), getattr(type(owner), "__dict__", {}).get(limit.attr)]
    else:
        found = [value_of(limit, frame) for frame in stack if frame.f_code.co_filename == file]
    return next((it for it in found if type(it) is int and it >= 0), None)
