"""Reads the program's source, for dataflow.py: the expressions at a frame's current instruction, the scopes of names,
and values of variables. The program's code is never run.
"""

from __future__ import annotations

import ast
import dis
import linecache
import types
from collections.abc import Iterator, Mapping
from types import CodeType, FrameType
from typing import Any, ClassVar

from .. import frames
from .names import READERS

SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


class Sink:
    """A line where a value decides something; `kind` is `size` or `branch`."""

    def __init__(self, kind: str, file: str, line: int) -> None:
        self.kind, self.file, self.line = kind, file, line


class Source:
    """The syntax tree of a file, with the parent of each node."""

    known: ClassVar[dict[str, Source | None]] = {}

    def __init__(self, tree: ast.Module, file: str) -> None:
        self.tree, self.file, self.parents = tree, file, {}
        for node in ast.walk(tree):
            for child in ast.iter_child_nodes(node):
                self.parents[child] = node

    @classmethod
    def of(cls, code: CodeType, module: dict[str, Any]) -> Source | None:
        """The source of a code object; None if there is none."""
        return cls.at(code.co_filename, module)

    @classmethod
    def at(cls, file: str, module: dict[str, Any]) -> Source | None:
        """The source of a file; None if there is none."""
        if file not in cls.known:
            text = "".join(linecache.getlines(file, module))
            try:
                cls.known[file] = cls(ast.parse(text), file) if text else None
            except (SyntaxError, ValueError, RecursionError):
                cls.known[file] = None
        return cls.known[file]

    def above(self, node: Any, *kinds: Any) -> Any:
        """The innermost node of these kinds that contains `node`; may be `node` itself."""
        while node is not None and not isinstance(node, kinds):
            node = self.parents.get(node)
        return node

    def scope(self, node: Any) -> Any:
        """The function or the module whose variables a node uses."""
        return self.above(self.parents.get(node), ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.Module)

    def statement(self, node: Any) -> Any:
        """The statement that contains a node."""
        return self.above(node, ast.stmt)


class Site:
    """The instruction that a frame is executing, and its expressions in the source, if known."""

    def __init__(self, frame: FrameType) -> None:
        self.code, self.frame = frame.f_code, frame
        self.source = Source.of(frame.f_code, frame.f_globals)
        self.name = dis.opname[frame.f_code.co_code[frame.f_lasti]] if frame.f_lasti >= 0 else ""
        self.line = frame.f_lineno
        self.nodes = self.find() if self.source else []

    def find(self) -> list[Any]:
        """The expressions to which the instruction belongs."""
        place = None
        if hasattr(self.code, "co_positions"):
            for at, place in enumerate(self.code.co_positions()):
                if at == self.frame.f_lasti // 2:
                    break
        inside = list(self.covering(self.known_source().tree))
        if place is not None and None not in place:
            line, end, column, end_column = place
            fits = [
                node
                for node in inside
                if isinstance(node, ast.expr)
                and (node.end_lineno, node.end_col_offset) == (end, end_column)
                and (node.lineno, node.col_offset) <= (line, column)
            ]
            if fits:
                return [max(fits, key=lambda node: (node.lineno, node.col_offset))]
        # Before Python 3.11, only the line is known: the result is all calls on this line that read a value, or else
        # all tests and subscripts on it.
        calls = [node for node in inside if isinstance(node, ast.Call) and last_name(node.func) in READERS]
        tests = [node.test for node in inside if isinstance(node, (ast.If, ast.While)) and node.lineno == self.line]
        return tests if tests and is_jump(self.name) else calls

    def known_source(self) -> Source:
        """The source. Call this only if `find` has found expressions: otherwise, there may be no source."""
        assert self.source is not None
        return self.source

    def covering(self, node: Any) -> Iterator[Any]:
        """The nodes inside a node whose lines include the frame's line."""
        for child in ast.iter_child_nodes(node):
            if not hasattr(child, "lineno"):
                yield from self.covering(child)
                continue
            first = min([child.lineno, *(it.lineno for it in getattr(child, "decorator_list", ()))])
            if first <= self.line <= (getattr(child, "end_lineno", None) or 0):
                if child.lineno <= self.line:
                    yield child
                yield from self.covering(child)


def block_of(parents: Mapping[Any, Any], statement: Any) -> tuple[list[Any] | None, Any]:
    """The list of statements that contains `statement`, and the node whose body is this list. None for both if there is
    no such list.
    """
    parent = parents.get(statement)
    for _, field in ast.iter_fields(parent) if parent is not None else ():
        if isinstance(field, list) and any(it is statement for it in field):
            return field, parent
    return None, None


def is_jump(name: str) -> bool:
    """Whether the instruction with this name tests a value."""
    return "JUMP_IF" in name or name in ("TO_BOOL", "UNARY_NOT")


def last_name(function: Any) -> str:
    """The last name of an expression, such as `item` of `loss.item`; empty if the expression has no name."""
    return getattr(function, "attr", None) or getattr(function, "id", None) or ""


def key_or_name(node: Any) -> Any:
    """The name in a node: of a variable, an attribute or a key."""
    return node.value if isinstance(node, ast.Constant) else last_name(node)


def reaches(source: Source, scope: Any, name: str, statement: Any, load: Any) -> bool:
    """Whether a load can see the value that a statement assigned: at least one path between them has no other assignment."""

    def binds(it: Any) -> bool:
        targets = it.targets if isinstance(it, ast.Assign) else [it.target] if isinstance(it, ast.AnnAssign) else []
        names = [part for target in targets for part in ast.walk(target)]
        return any(isinstance(part, ast.Name) and part.id == name and isinstance(part.ctx, ast.Store) for part in names)

    if isinstance(statement, ast.comprehension):  # its variable exists only in the expression around it
        return any(it is load for it in ast.walk(source.parents[statement]))
    last: Any = None
    node = source.statement(load)
    while last is None and node is not None and node is not scope:
        parent: Any = source.parents.get(node)
        for _, block in ast.iter_fields(parent):
            if isinstance(block, list) and node in block:
                before = [it for it in block[: block.index(node)] if isinstance(it, ast.stmt) and binds(it)]
                last = before[-1] if before else None
        node = parent
    if last is None or last is statement:
        return True
    if last.lineno < statement.lineno <= load.lineno:
        return True
    loop = source.above(load, ast.For, ast.While, ast.AsyncFor)
    while loop is not None:
        inside = set(ast.walk(loop))
        if statement in inside:
            return last not in inside and load.lineno <= statement.lineno
        loop = source.above(source.parents.get(loop), ast.For, ast.While, ast.AsyncFor)
    return False


def hides(source: Source, inner: Any, outer: Any, name: str) -> bool:
    """Whether a function between these scopes has its own variable of this name."""
    while inner is not None and inner is not outer:
        nodes = [it for it in ast.walk(inner) if source.scope(it) is inner]
        stores = any(isinstance(it, ast.Name) and it.id == name and isinstance(it.ctx, ast.Store) for it in nodes)
        is_argument = any(isinstance(it, ast.arg) and it.arg == name for it in nodes)
        is_outer = any(isinstance(it, (ast.Global, ast.Nonlocal)) and name in it.names for it in nodes)
        if (stores or is_argument) and not is_outer:
            return True
        inner = source.scope(inner)
    return False


def looked_up(expression: Any, frame: FrameType) -> Any:
    """The value of a name or of a chain of attributes, looked up without running the program's code."""
    import inspect

    if isinstance(expression, ast.Name):
        name = expression.id
        return frames.read(frame, lambda variables: variables.get(name, frame.f_globals.get(name)))
    if isinstance(expression, ast.Attribute):
        value = looked_up(expression.value, frame)
        if value is None:
            return None
        modules = getattr(value, "__dict__", {}).get("_modules") if not isinstance(value, type) else None
        if isinstance(modules, dict) and expression.attr in modules:
            return modules[expression.attr]
        found = inspect.getattr_static(value, expression.attr, None)
        if isinstance(found, types.FunctionType) and not isinstance(value, (type, types.ModuleType)):
            return types.MethodType(found, value)
        return getattr(found, "__func__", found)
    return None


def scope_of(tree: ast.Module, code: CodeType) -> Any:
    """The function of a code object, or the module; None if it is not found, for example for a comprehension."""
    if code.co_name == "<module>":
        return tree
    starts = ((it, [it, *getattr(it, "decorator_list", [])]) for it in ast.walk(tree) if isinstance(it, SCOPES))
    found = (it for it, parts in starts if min(part.lineno for part in parts) == code.co_firstlineno)
    return next((it for it in found if getattr(it, "name", "<lambda>") == code.co_name), None)


def own_nodes(scope: Any) -> Iterator[Any]:
    """The nodes of a function or a module, without those of nested functions."""
    left = list(ast.iter_child_nodes(scope))
    while left:
        node = left.pop()
        if not isinstance(node, SCOPES):
            yield node
            left += ast.iter_child_nodes(node)
