"""Finds the variables of a function that are not read again: a liveness analysis of its syntax tree. The program's
code is never run. A name is dead before a statement if every path from the statement assigns the name before it reads
it, or never reads it. Names mentioned in a nested function, a lambda, a generator expression or a class are never dead,
and neither are the names in a function that looks up names at run time.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

SHAPES = {"shape", "dtype", "ndim"}  # attributes that need none of the tensor's GPU memory
SIZES = {"size", "dim", "numel", "element_size", "stride", "is_floating_point"}  # methods that need none of it
DYNAMIC = {"locals", "globals", "vars", "eval", "exec", "dir"}
CLOSED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef, ast.GeneratorExp)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp)  # their targets are not variables of the function
ROUNDS = 20  # the maximum number of passes over a loop

Live = frozenset[str]
NONE: Live = frozenset()


class Exits(NamedTuple):
    """The names that are live where a statement may leave its block: after `break`, after `continue`, and in
    exception handlers.
    """

    broken: Live
    continued: Live
    raised: Live


class Names:
    """The variables of a function or a module, and which of them are live before and after each statement. With
    `by_content`, code that reads only the shape or dtype of a tensor does not count as reading the tensor's name.
    """

    def __init__(self, scope: Any, by_content: bool = False) -> None:
        self.scope, self.by_content = scope, by_content
        self.before: dict[ast.stmt, Live] = {}
        self.after: dict[ast.stmt, Live] = {}
        self.parents: dict[ast.AST, ast.AST] = {}
        for node in ast.walk(scope):
            for child in ast.iter_child_nodes(node):
                self.parents[child] = node
        self.closed = frozenset(self.find_closed())
        self.stored = frozenset(stored(own(scope))) | {it.arg for it in arguments(scope)}
        called = {it.func.id for it in own(scope) if isinstance(it, ast.Call) and isinstance(it.func, ast.Name)}
        self.is_known = not called & DYNAMIC
        self.block(scope.body, NONE, Exits(NONE, NONE, NONE))

    def find_closed(self) -> Iterator[str]:
        """The names that may be read outside this function's own statements, and the names that the function itself
        deletes.
        """
        for node in own(self.scope):
            if isinstance(node, CLOSED):
                yield from free(node)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Del):
                yield node.id
            else:
                yield from declared(node)

    def dead(self, statement: ast.stmt) -> Live:
        """The names that are dead before a statement, and so while it runs."""
        return self.stored - self.closed - self.before[statement] if self.is_known else NONE

    def block(self, statements: list[Any], after: Live, exits: Exits) -> Live:
        """The names that are live before these statements."""
        for statement in reversed(statements):
            after = self.statement(statement, after, exits)
        return after

    def statement(self, it: Any, after: Live, exits: Exits) -> Live:
        """The names that are live before a statement."""
        self.after[it] = after | exits.raised
        before = self.reads(it, after, exits) | exits.raised
        self.before[it] = before
        return before

    def reads(self, it: Any, after: Live, exits: Exits) -> Live:
        """The names that are live before a statement, without those that exception handlers read."""
        if isinstance(it, ast.If):
            return self.read(it.test) | self.block(it.body, after, exits) | self.block(it.orelse, after, exits)
        if isinstance(it, (ast.For, ast.AsyncFor, ast.While)):
            return self.loop(it, after, exits)
        if isinstance(it, (ast.With, ast.AsyncWith)):
            # A context manager may suppress an exception of the body, so execution may continue after it.
            inside = self.block(it.body, after, exits) | after
            return inside.union(*(self.read(item) for item in it.items))
        if isinstance(it, ast.Try) or type(it).__name__ == "TryStar":
            return self.guarded(it, after, exits)
        if type(it).__name__ == "Match":  # Python 3.9 does not have `match`
            arms = [self.read(it.subject) | after]
            for case in it.cases:
                guard = self.read(case.guard) if case.guard is not None else NONE
                arms.append(self.block(case.body, after, exits) | self.read(case.pattern) | guard)
            return NONE.union(*arms)
        if isinstance(it, ast.Break):
            return exits.broken
        if isinstance(it, ast.Continue):
            return exits.continued
        if isinstance(it, (ast.Return, ast.Raise)):
            return self.read(it)
        if isinstance(it, CLOSED):
            return after
        return (after - bound(it)) | self.read(it)

    def loop(self, it: Any, after: Live, exits: Exits) -> Live:
        """The names that are live before a loop."""
        end = self.block(it.orelse, after, exits)
        every = self.read(it.test) if isinstance(it, ast.While) else self.read(it.target)
        targets = NONE if isinstance(it, ast.While) else frozenset(stored(ast.walk(it.target)))
        head: Live = end | every
        for _ in range(ROUNDS):
            inside = self.block(it.body, head, Exits(after, head, exits.raised))
            more = head | (inside - targets) | every
            if more == head:
                break
            head = more
        return head if isinstance(it, ast.While) else head | self.read(it.iter)

    def guarded(self, it: Any, after: Live, exits: Exits) -> Live:
        """The names that are live before a `try`. Any of its statements may be the last to run before a handler or `finally`."""
        last = self.block(it.finalbody, after, exits)
        inner = Exits(exits.broken | last, exits.continued | last, exits.raised | last)
        caught = NONE
        for handler in it.handlers:
            kind = self.read(handler.type) if handler.type is not None else NONE
            caught |= kind | self.block(handler.body, last, inner)
        inner = inner._replace(raised=inner.raised | caught)
        return self.block(it.body, self.block(it.orelse, last, inner), inner)

    def read(self, node: ast.AST) -> Live:
        """The names that a node reads. The target of `+=` counts as read."""
        names = (it for it in ast.walk(node) if isinstance(it, ast.Name) and not isinstance(it.ctx, ast.Store))
        loads = {it.id for it in names if not (self.by_content and self.is_shape(it))}
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            loads.add(node.target.id)
        return frozenset(loads)

    def is_shape(self, name: ast.Name) -> bool:
        """Whether the code around this name uses only the shape or dtype of the name's tensor: `x.shape`, `x.size(0)`,
        `len(x)`.
        """
        parent = self.parents.get(name)
        if isinstance(parent, ast.Attribute):
            above = self.parents.get(parent)
            is_called = isinstance(above, ast.Call) and above.func is parent
            return parent.attr in SHAPES or is_called and parent.attr in SIZES
        is_len = isinstance(parent, ast.Call) and isinstance(parent.func, ast.Name) and parent.func.id == "len"
        return is_len and name is not parent.func  # type: ignore[union-attr]

    def at(self, line: int) -> ast.stmt | None:
        """The innermost statement at a line. A compound statement counts only for lines above its body."""
        found: ast.stmt | None = None
        for it in self.before:
            if it.lineno <= line <= (it.end_lineno or it.lineno):
                if found is None or (it.lineno, -(it.end_lineno or 0)) >= (found.lineno, -(found.end_lineno or 0)):
                    found = it
        return found


def own(scope: Any) -> Iterator[ast.AST]:
    """The nodes of a scope, without the nodes of the functions and classes in the scope."""
    left: list[ast.AST] = list(scope.body)
    while left:
        node = left.pop()
        yield node
        if not isinstance(node, CLOSED):
            left += ast.iter_child_nodes(node)


def free(scope: Any) -> set[str]:
    """The names of the surrounding scopes that a function, or other code with its own names, may use."""
    if not isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)):
        nodes = list(ast.walk(scope))
        return {it.id for it in nodes if isinstance(it, ast.Name)} | {it for part in nodes for it in declared(part)}
    nodes = list(own(scope))
    used = {it.id for it in nodes if isinstance(it, ast.Name)}
    used |= {it for part in nodes if isinstance(part, CLOSED) for it in free(part)}
    inner = {id(it) for part in nodes if isinstance(part, COMPREHENSIONS) for it in ast.walk(part)}
    local = set(stored(it for it in nodes if id(it) not in inner)) | {it.arg for it in arguments(scope)}
    outer = [*scope.decorator_list, scope.args, *([scope.returns] if scope.returns is not None else [])]
    used = used - local | {it for part in nodes for it in declared(part)}
    return used | {it.id for part in outer for it in ast.walk(part) if isinstance(it, ast.Name)}


def arguments(scope: Any) -> list[ast.arg]:
    """The arguments of a function."""
    its = getattr(scope, "args", None)
    if its is None:
        return []
    return [*its.posonlyargs, *its.args, *its.kwonlyargs, *(it for it in (its.vararg, its.kwarg) if it)]


def declared(node: ast.AST) -> list[str]:
    """The names that a `global` or `nonlocal` statement lists."""
    return node.names if isinstance(node, (ast.Global, ast.Nonlocal)) else []


def stored(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The names that these nodes assign."""
    return (it.id for it in nodes if isinstance(it, ast.Name) and isinstance(it.ctx, ast.Store))


def bound(statement: Any) -> Live:
    """The names that a simple statement always assigns."""
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    if isinstance(statement, ast.AnnAssign) and statement.value is None:
        return NONE
    parts: list[Any] = [it for it in targets if it is not None]
    found = set()
    while parts:
        part = parts.pop()
        if isinstance(part, ast.Name):
            found.add(part.id)
        elif isinstance(part, (ast.Tuple, ast.List)):
            parts += part.elts
        elif isinstance(part, ast.Starred):
            parts.append(part.value)
    return frozenset(found)
