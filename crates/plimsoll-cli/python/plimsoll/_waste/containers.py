"""Finds lists and dictionaries to which the program only adds: attributes and global and local variables whose contents
it never reads. The program's code is never run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any, NamedTuple

from .._predict.source import Source, last_name
from .names import CLOSED, DYNAMIC, arguments, declared
from .program import Program

ADDS = set("append appendleft extend add update insert".split())
EMPTY = set("list dict set deque OrderedDict defaultdict".split())  # calls that make an empty container
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)


class Unread(NamedTuple):
    """A container to which one statement adds and that no code reads."""

    name: str
    source: Source
    scope: Any  # the scope of a variable; None for an attribute
    kind: str  # the class to which an attribute belongs
    statement: Any  # the statement that adds to the container
    added: Any  # the expression that the statement adds
    line: int  # the line that creates the container

    @property
    def own(self) -> str:
        """The attribute, as it is written in the statement."""
        nodes = (it for it in ast.walk(self.statement) if isinstance(it, ast.Attribute) and it.attr == self.name)
        return ast.unparse(next(nodes))

    @property
    def text(self) -> str:
        """The code that replaces the statement: the added expression if it contains a call, otherwise `pass`."""
        calls = any(isinstance(it, (ast.Call, ast.Await, ast.NamedExpr)) for it in ast.walk(self.added))
        return (ast.get_source_segment("".join(self.lines), self.added) or "pass") if calls else "pass"

    @property
    def lines(self) -> list[str]:
        """The lines of the source file."""
        import linecache

        return linecache.getlines(self.source.file)


def unread(program: Program) -> list[Unread]:
    """The containers to which the program only adds."""
    return [*of_attributes(program), *of_variables(program)] if program.is_known else []


def of_attributes(program: Program) -> Iterator[Unread]:
    """The attributes (`self.NAME`) to which the program only adds."""
    for name, uses in program.uses.items():
        if name in program.defined or program.is_text(name):
            continue
        found = only_added([(it.source, it.node) for it in uses])
        if found is None:
            continue
        source, node, statement, added, line = found
        kind = source.above(statement, ast.ClassDef)
        scope = source.scope(node)
        first = next(iter(arguments(scope)), None)
        is_self = first is not None and isinstance(node.value, ast.Name) and first.arg == node.value.id
        if kind is not None and not kind.decorator_list and is_self:
            yield Unread(name, source, None, kind.name, statement, added, line)


def of_variables(program: Program) -> Iterator[Unread]:
    """The variables of functions and of the main program to which the program only adds."""
    for source in program.sources:
        names: dict[str, list[ast.Name]] = {}
        hidden: set[str] = set()
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Name):
                names.setdefault(node.id, []).append(node)
            hidden.update(declared(node))
            if isinstance(node, (ast.arg, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                hidden.add(node.arg if isinstance(node, ast.arg) else node.name)
        if DYNAMIC & names.keys():
            continue
        for name, nodes in names.items():
            scopes = {id(source.scope(it)): source.scope(it) for it in nodes}
            is_shared = name in hidden or name in program.uses or program.is_text(name)
            if is_shared or program.is_imported(name):
                continue
            for scope in scopes.values():
                is_main = isinstance(scope, ast.Module)
                here = nodes if is_main else [it for it in nodes if is_inside(source, it, scope)]
                if not isinstance(scope, SCOPES) or any(source.scope(it) is not scope for it in here if not is_main):
                    continue
                if any(is_closed(source, it) for it in here):
                    continue
                found = only_added([(source, it) for it in here])
                if found is not None:
                    _, _, statement, added, line = found
                    yield Unread(name, source, scope, "", statement, added, line)


def is_inside(source: Source, node: Any, scope: Any) -> bool:
    """Whether a node is in a function, or in a function nested inside it."""
    while node is not None and node is not scope:
        node = source.parents.get(node)
    return node is not None


def is_closed(source: Source, node: Any) -> bool:
    """Whether a mention is in the body of a class, in a lambda, or in a generator expression."""
    return not isinstance(source.above(source.parents.get(node), *CLOSED, ast.Module), SCOPES)


def only_added(uses: list[tuple[Source, Any]]) -> tuple[Source, Any, Any, Any, int] | None:
    """Finds the only place that adds to a container. Returns the source, the mention of the container, the statement,
    the added expression, and the line that creates the container; None if the container is used in any other way.
    """
    adds, made = [], []
    for source, node in uses:
        added = addition(source, node)
        if added is not None:
            adds.append((source, node, source.statement(node), added))
        elif is_made(source, node):
            made.append(node.lineno)
        else:
            return None
    return (*adds[0], min(made)) if len(adds) == 1 and made else None


def addition(source: Source, node: Any) -> Any:
    """The expression that a statement adds to the container that `node` mentions; None if the statement does not add to
    this container.
    """
    parent = source.parents.get(node)
    above = source.parents.get(parent) if parent is not None else None
    if (
        isinstance(parent, ast.Attribute)
        and parent.attr in ADDS
        and isinstance(above, ast.Call)
        and above.func is parent
    ):
        is_whole = isinstance(source.parents.get(above), ast.Expr)
        return above.args[-1] if is_whole and above.args and not above.keywords else None
    if isinstance(parent, ast.Subscript) and parent.value is node and isinstance(above, ast.Assign):
        return above.value if above.targets == [parent] else None
    return None


def is_made(source: Source, node: Any) -> bool:
    """Whether the statement around this mention of a name assigns an empty container to the name."""
    parent = source.parents.get(node)
    if not isinstance(parent, (ast.Assign, ast.AnnAssign)) or not isinstance(node.ctx, ast.Store):
        return False
    if isinstance(parent, ast.Assign) and parent.targets != [node]:
        return False
    value = parent.value
    if isinstance(value, ast.Call):
        return last_name(value.func) in EMPTY
    return isinstance(value, (ast.List, ast.Dict)) and not any(
        isinstance(it, ast.expr) for it in ast.iter_child_nodes(value)
    )
