"""Finds where a line that frees a variable can be inserted: right after the last statement that uses the memory. The
program's code is never run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any, NamedTuple

from .. import protocol
from .._predict import source
from .names import Names, arguments, bound, stored

LOOPS = (ast.For, ast.AsyncFor, ast.While)
JUMPS = (ast.Return, ast.Raise, ast.Break, ast.Continue)
WITH = (ast.With, ast.AsyncWith)


class Insertion(NamedTuple):
    """A place for a new line: after this line, with the indentation of the statement there. If the statement's last
    line has another indentation, `aligned` is the line where the statement begins, else 0.
    """

    line: int
    indent: str
    aligned: int

    def waste(
        self, kind: str, name: str, file: str, line: int, size: int, text: str, *, each: int = 0, first: int = 0
    ) -> protocol.Waste:
        """A row for the report: the new line `text` frees `size` bytes. It replaces the lines from `first` on; with 0,
        none.
        """
        return protocol.Waste(
            kind=kind,
            name=name,
            file=file,
            line=line,
            bytes=size,
            each=each,
            after=self.line,
            replaces=self.line - first + 1 if first else 0,
            indent=self.indent,
            aligned=self.aligned,
            text=text,
        )


def after_last_use(names: Names, name: str, peak: ast.stmt, lines: list[str]) -> Insertion | None:
    """Finds where to insert `del name` if the name is dead at the statement of the peak. Returns None if no place is
    suitable. The place is after the last statement before the peak that mentions the name, in the block of the peak's
    statement or in an enclosing block. In a loop, the place may also be after the last statement that mentions the name
    and follows the peak.
    """
    statement: Any = peak
    while statement is not names.scope:
        block, parent = block_of(names, statement)
        if block is None:
            return None
        place = block.index(statement)
        parts = [block[:place]]
        if isinstance(parent, LOOPS) and block is parent.body:
            parts.append(block[place + 1 :])
        for part in parts:
            last = next((it for it in reversed(part) if mentions(it, name)), None)
            if last is not None:
                return of_statement(names, name, last, lines)
        statement = parent
    return None


def of_statement(names: Names, name: str, last: ast.stmt, lines: list[str]) -> Insertion | None:
    """The place after a statement, if the name is always assigned and dead there."""
    if name in names.after[last] or not is_bound(names, name, last):
        return None
    return behind(names, last, lines, name)


def behind(names: Names, statement: ast.stmt, lines: list[str], name: str | None = None) -> Insertion | None:
    """The place after a statement. Other statements may share this statement's line (`a(); b()`), but statements after
    it on the line must not mention `name`, the name that the new line deletes.
    """
    end = statement.end_lineno or statement.lineno
    here = of_line(names, statement)
    if end > len(lines) or not here or any(isinstance(it, JUMPS) or it.end_lineno != end for it in here):
        return None
    if any(name is None or mentions(it, name) for it in here[here.index(statement) + 1 :]):
        return None
    indent = lines[here[0].lineno - 1][: here[0].col_offset]
    tail = lines[end - 1].encode()[here[-1].end_col_offset or 0 :].decode(errors="replace").strip()
    if indent.strip() or (tail and not tail.startswith("#")):
        return None
    last = lines[end - 1]
    is_aligned = last[: len(last) - len(last.lstrip())] == indent
    return Insertion(end, indent, 0 if is_aligned else here[0].lineno)


def instead(names: Names, statement: ast.stmt, lines: list[str]) -> Insertion | None:
    """The place of a new line that replaces a statement, if no other statement shares its lines."""
    return behind(names, statement, lines) if len(of_line(names, statement)) == 1 else None


def of_line(names: Names, statement: ast.stmt) -> list[Any]:
    """The statements of a block that share the last line of one of them."""
    block, _ = block_of(names, statement)
    end = statement.end_lineno or statement.lineno
    return [it for it in block or () if it.lineno <= end <= (it.end_lineno or it.lineno)]


def block_of(names: Names, statement: ast.stmt) -> tuple[list[Any] | None, Any]:
    """The list of statements that contains `statement`, and the node whose body is this list. For an exception handler,
    the node is its `try`.
    """
    block, parent = source.block_of(names.parents, statement)
    if isinstance(parent, ast.ExceptHandler) or type(parent).__name__ == "match_case":
        parent = names.parents.get(parent)
    return block, parent


def mentions(node: ast.AST, name: str) -> bool:
    """Whether a statement reads or assigns a name."""
    return any(isinstance(it, ast.Name) and it.id == name for it in ast.walk(node))


def is_bound(names: Names, name: str, last: ast.stmt) -> bool:
    """Whether a name is always assigned after a statement."""
    return any(binds(it, name) for it in before(names, last)) or any(it.arg == name for it in arguments(names.scope))


def before(names: Names, statement: Any) -> Iterator[Any]:
    """The statements that always run before `statement`, and `statement` itself. Of a compound statement around it,
    only the assignments in its header count.
    """
    yield statement
    while statement is not names.scope and statement is not None:
        block, parent = block_of(names, statement)
        if block is None:
            return
        yield from block[: block.index(statement)]
        if isinstance(parent, (ast.For, ast.AsyncFor)) and block is parent.body:
            yield ast.Assign(targets=[parent.target], value=ast.Constant(value=None))
        if isinstance(parent, WITH):
            yield ast.With(items=parent.items, body=[])
        statement = parent


def binds(statement: Any, name: str) -> bool:
    """Whether a statement always assigns a name."""
    if isinstance(statement, WITH):
        items = (it.optional_vars for it in statement.items if it.optional_vars is not None)
        return any(name in stored(ast.walk(it)) for it in items) or any(binds(it, name) for it in statement.body)
    return name in bound(statement)


def assigned_at(names: Names, name: str, line: int) -> int:
    """The last line, up to `line`, that assigns `name`. If there is none, the last line that assigns it; for an
    argument, the line of the function.
    """
    lines = [it.lineno for it in ast.walk(names.scope) if isinstance(it, ast.Name) and it.id == name and is_store(it)]
    above = [it for it in lines if it <= line]
    return max(above) if above else max(lines, default=getattr(names.scope, "lineno", 1))


def is_store(node: ast.Name) -> bool:
    """Whether a name is assigned here."""
    return isinstance(node.ctx, ast.Store)
