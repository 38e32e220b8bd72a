"""Finds a `break` or `return` that ends the training loop depending on values which the program reads from the device, such
as early stopping. Such values are unknown here, so the loop may end too early, and it is unknown when it really ends.

A value is followed from the lines that read it, through the variables that they set, and through tests that decide
whether other variables are set.
"""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator
from types import CodeType
from typing import Any

from .. import protocol
from .names import HOLDS, METADATA
from .source import Source, last_name, own_nodes, scope_of

FINITE = {"isnan", "isfinite", "isinf"}  # tests for errors, which do not occur in a working program
ENDS = (ast.Break, ast.Return)


def value_break(
    loops: list[tuple[Any, CodeType]], lines: Container[tuple[str, int]], functions: Container[str]
) -> tuple[protocol.Break | None, bool]:
    """The first statement that ends one of these loops (innermost first) depending on an unknown value, and whether it
    ends the outermost loop. The program read unknown values at `lines`, and in `functions`.
    """
    for at, (loop, code) in enumerate(loops):
        source = Source.of(code, {})
        scope = source and scope_of(source.tree, code)
        if source is None or scope is None:
            continue
        tests = Tests(source, list(own_nodes(scope)), lines, functions)
        found: Any = loop if isinstance(loop, ast.While) and tests.is_unknown(loop.test) else None
        for it in [] if found else [it for it in ast.walk(loop) if isinstance(it, ENDS)]:
            if ends(source, it, loop) and any(tests.is_unknown(test) for test in tests.around(it, loop)):
                found = it
                break
        if found is not None:
            text = ast.unparse(found.test) if isinstance(found, ast.While) else ast.unparse(found)
            row = protocol.Break(file=source.file, line=found.lineno, text=text, is_early=False)
            return row, at == len(loops) - 1
    return None, False


def ends(source: Source, statement: Any, loop: Any) -> bool:
    """Whether a statement ends this loop, not a loop or a function in it."""
    kinds = (ast.For, ast.While, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    if isinstance(statement, ast.Return):
        return source.scope(statement) is source.scope(loop)
    return source.above(statement, *kinds) is loop and statement not in [
        inner for it in loop.orelse for inner in ast.walk(it)
    ]


class Tests:
    """The variables of a function that depend on unknown values."""

    def __init__(
        self, source: Source, nodes: list[Any], lines: Container[tuple[str, int]], functions: Container[str]
    ) -> None:
        self.source, self.lines, self.functions = source, lines, functions
        self.names: set[str] = set()  # variables and attributes, as the source writes them
        before = -1
        while len(self.names) > before:
            before = len(self.names)
            for node in nodes:
                self.follow(node)

    def follow(self, node: Any) -> None:
        """Adds the variables that a statement sets, if its value or a test around it is unknown."""
        is_set = isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.NamedExpr)) and node.value is not None
        if is_set and (self.is_unknown(node.value) or any(map(self.is_unknown, self.around(node, None)))):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            parts = (part for it in targets for part in (it.elts if isinstance(it, ast.Tuple) else [it]))
            self.names |= {ast.unparse(it.value if isinstance(it, ast.Subscript) else it) for it in parts}
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
        ):
            # `stopper.step(loss)` may keep the value in `stopper`.
            if node.func.attr not in HOLDS and any(self.is_unknown(it) for it in node.args):
                self.names.add(node.func.value.id)

    def around(self, node: Any, loop: Any) -> list[Any]:
        """The tests of the `if` statements around a node, inside a loop."""
        found, node = [], self.source.parents.get(node)
        while node is not None and node is not loop:
            found += [node.test] if isinstance(node, ast.If) else []
            node = self.source.parents.get(node)
        return found

    def is_unknown(self, value: Any) -> bool:
        """Whether an expression depends on an unknown value."""
        parts = list(self.parts(value))
        is_check = any(isinstance(it, ast.Call) and last_name(it.func) in FINITE for it in parts)
        return any(self.is_source(it, is_check) for it in parts)

    def parts(self, value: Any) -> Iterator[Any]:
        """The nodes of an expression, without the arguments of functions whose results do not depend on values."""
        yield value
        name = last_name(value.func) if isinstance(value, ast.Call) else getattr(value, "attr", "")
        if name != "len" and name not in FINITE and not (isinstance(value, ast.Attribute) and name in METADATA):
            for it in ast.iter_child_nodes(value):
                yield from self.parts(it)

    def is_source(self, node: Any, is_check: bool) -> bool:
        """Whether a node reads an unknown value, or a variable that depends on one. With `is_check`, the values on the
        node's lines are read for a test of an error.
        """
        if isinstance(node, (ast.Name, ast.Attribute)) and ast.unparse(node) in self.names:
            return True
        if isinstance(node, ast.Call) and last_name(node.func) in self.functions:
            return True
        if is_check or not isinstance(node, (ast.Call, ast.Compare, ast.Name, ast.Subscript)):
            return False
        lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        return any((self.source.file, line) in self.lines for line in lines)
