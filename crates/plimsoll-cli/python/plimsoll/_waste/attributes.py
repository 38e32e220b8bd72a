"""Finds attributes of objects that the program assigns but does not read again, by name: an attribute is dead if only
one method reads it, and this method always assigns the attribute before it reads it. The program's code is never run.
"""

from __future__ import annotations

import ast
import copy
import linecache
from types import CodeType, FrameType
from typing import Any

from .._predict.source import Source, own_nodes, scope_of
from .insertion import Insertion, after_last_use, mentions, of_statement
from .names import Names, arguments
from .program import Program, Use

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# Base classes of libraries that do not read a subclass's own attributes.
SAFE = {"no_grad", "inference_mode", "enable_grad"}  # decorators that do not read the source of their function


class Attribute:
    """An attribute that only one method uses, and that is dead where the method begins."""

    def __init__(self, name: str, kind: str, scope: Any, base: str, source: Source) -> None:
        self.name, self.kind, self.scope, self.source = name, kind, scope, source
        self.text = f"{base}.{name}"
        self.lines = linecache.getlines(source.file)
        self.names = Names(renamed(scope, base, name))
        body = self.names.scope.body
        is_known = self.names.is_known and self.text not in self.names.closed
        self.is_dead = is_known and self.text not in self.names.before[body[0]]

    def insertion(self, stack: list[tuple[FrameType, int]]) -> Insertion | None:
        """The place for a new line that deletes the attribute; None if the attribute is read again, or no place is
        suitable.
        """
        for frame, line in stack:
            if is_code_of(frame.f_code, self.scope, self.source):
                statement = self.names.at(line)
                if statement is None or self.text not in self.names.dead(statement):
                    return None
                there = after_last_use(self.names, self.text, statement, self.lines)
                if there is not None:
                    return there
        last = next((it for it in reversed(self.names.scope.body) if mentions(it, self.text)), None)
        return of_statement(self.names, self.text, last, self.lines) if last is not None else None

    @property
    def line(self) -> int:
        """The line that assigns the attribute."""
        found = (it for it in ast.walk(self.names.scope) if isinstance(it, ast.Name) and it.id == self.text)
        return next((it.lineno for it in found if isinstance(it.ctx, ast.Store)), self.scope.lineno)


def dead(program: Program) -> list[Attribute]:
    """The attributes that one method of the program assigns and no other code reads."""
    if not program.is_known:
        return []
    found = [one(program, name, uses) for name, uses in program.uses.items()]
    return [it for it in found if it is not None and it.is_dead]


def one(program: Program, name: str, uses: list[Use]) -> Attribute | None:
    """The attribute with this name, if one method assigns it and no other code reads it."""
    values = [it for it in uses if isinstance(it.node.ctx, ast.Store) and not is_empty(it)]
    scopes = {id(it.source.scope(it.node)): (it.source.scope(it.node), it) for it in values}
    if len(scopes) != 1 or name in program.defined or program.is_text(name) or name.startswith("__"):
        return None
    scope, value = next(iter(scopes.values()))
    base = value.node.value
    kind = value.source.parents.get(scope)
    if not isinstance(scope, FUNCTIONS) or not isinstance(base, ast.Name) or not isinstance(kind, ast.ClassDef):
        return None
    first = next(iter(arguments(scope)), None)
    if (
        first is None
        or first.arg != base.id
        or kind.decorator_list
        or not set(map(decorator, scope.decorator_list)) <= SAFE
    ):
        return None
    names = [it for it in own_nodes(scope) if isinstance(it, ast.Name)]
    if any(it.id == base.id and not isinstance(it.ctx, ast.Load) for it in names) or is_recursive(scope):
        return None
    for node, source in uses:
        is_here = source.scope(node) is scope and isinstance(node.value, ast.Name) and node.value.id == base.id
        is_read = not isinstance(node.ctx, ast.Store) or isinstance(source.parents.get(node), ast.AugAssign)
        if is_read and not is_here:
            return None
    return Attribute(name, kind.name, scope, base.id, value.source)


def is_empty(use: Use) -> bool:
    """Whether an attribute is assigned a constant or an empty container, as in `__init__`."""
    parent = use.source.parents.get(use.node)
    value = getattr(parent, "value", None) if isinstance(parent, (ast.Assign, ast.AnnAssign)) else use.node
    if value is None or isinstance(value, ast.Constant):
        return True
    is_container = isinstance(value, (ast.List, ast.Dict))
    return is_container and not getattr(value, "elts", None) and not getattr(value, "keys", None)


def decorator(node: Any) -> str:
    """The name of a decorator."""
    called = node.func if isinstance(node, ast.Call) else node
    return getattr(called, "attr", None) or getattr(called, "id", None) or ""


def is_recursive(scope: Any) -> bool:
    """Whether a method may call itself, for the same object or for another object."""
    return any(isinstance(it, ast.Attribute) and it.attr == scope.name for it in own_nodes(scope))


def is_code_of(code: CodeType, scope: Any, source: Source) -> bool:
    """Whether a code object is the code of this method."""
    return code.co_filename == source.file and scope_of(source.tree, code) is scope


class Renamed(ast.NodeTransformer):
    """Turns an attribute in a syntax tree into a variable, so that the analysis of variables applies to it."""

    def __init__(self, base: str, name: str) -> None:
        self.base, self.name = base, name

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        """`self.x` becomes the variable named `self.x`."""
        if node.attr == self.name and isinstance(node.value, ast.Name) and node.value.id == self.base:
            return ast.copy_location(ast.Name(id=f"{self.base}.{self.name}", ctx=node.ctx), node)
        return self.generic_visit(node)


def renamed(scope: Any, base: str, name: str) -> Any:
    """A copy of a method in which an attribute is a variable."""
    return Renamed(base, name).visit(copy.deepcopy(scope))
