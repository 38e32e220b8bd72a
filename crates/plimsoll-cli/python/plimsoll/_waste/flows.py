"""Finds out whether a value of the program may reach a backward pass, by searching the source for everything that is
computed from this value. If it is unknown how a value is used, it counts as reaching a backward pass. The program's
code is never run.
"""

from __future__ import annotations

import ast
from typing import Any

from .._predict.names import HOLDS, METADATA, PURE, SHOWS
from .._predict.source import Source, last_name
from .names import arguments
from .program import Program

# Functions and methods whose results are numbers, or tensors without a graph.
ENDS = SHOWS | set("float int bool str item tolist numpy detach keys".split())
# Functions and methods that compute a value or a container from their arguments.
KEEPS = PURE | set(
    "mean stack cat square pow exp log zip enumerate asarray tensor as_tensor range values items get".split()
)
KEEPS |= {"to", "cpu", "cuda", "double", "half", "float", "view", "reshape", "squeeze", "unsqueeze", "flatten"}
NUMBERS = {"item", "tolist", "numpy", "detach"}
METHODS = HOLDS | set("clear zero_grad popleft".split())
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
VALUES: tuple[Any, ...] = (
    ast.BinOp,
    ast.UnaryOp,
    ast.BoolOp,
    ast.IfExp,
    ast.Subscript,
    ast.Tuple,
    ast.List,
    ast.Dict,
    ast.Starred,
)
VALUES += (ast.ListComp, ast.GeneratorExp, ast.DictComp)
MOST = 300  # the maximum number of names to follow


class Flow:
    """Everything that is computed from one name."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.left: list[tuple[Any, Source | None, str]] = []
        self.seen: set[tuple[int, str]] = set()
        self.functions: set[int] = set()
        self.is_open = False  # whether a followed value may reach a backward pass

    def reaches_backward(self, scope: Any, source: Source | None, name: str) -> bool:
        """Whether a variable of a scope, or an attribute of any object if there is no scope, may reach a backward pass."""
        self.add(scope, source, name)
        while self.left and not self.is_open and len(self.seen) < MOST:
            scope, source, name = self.left.pop()
            for node, of in self.loads(scope, source, name):
                self.climb(node, of)
        return self.is_open or bool(self.left)

    def add(self, scope: Any, source: Source | None, name: str) -> None:
        """Also follows this name."""
        if (id(scope), name) not in self.seen:
            self.seen.add((id(scope), name))
            self.left.append((scope, source, name))

    def loads(self, scope: Any, source: Source | None, name: str) -> list[tuple[Any, Source]]:
        """The places that read a name."""
        if scope is None or source is None:
            uses = self.program.uses.get(name, [])
            return [(it.node, it.source) for it in uses if isinstance(it.node.ctx, ast.Load)]
        nodes = (it for it in ast.walk(scope) if isinstance(it, ast.Name) and it.id == name)
        return [(it, source) for it in nodes if isinstance(it.ctx, ast.Load)]

    def climb(self, node: Any, source: Source) -> None:
        """Follows the value of an expression to its uses."""
        while not self.is_open:
            parent = source.parents.get(node)
            if isinstance(parent, ast.Attribute):
                if parent.attr in METADATA | METHODS:
                    return
                if parent.attr in ENDS - KEEPS or parent.attr in NUMBERS:
                    return
                self.is_open |= parent.attr not in KEEPS
            elif isinstance(parent, (ast.Call, ast.keyword)):
                call = source.above(parent, ast.Call)
                if node is not call.func and not self.passes(call, node, source):
                    return
                parent = call
            elif isinstance(parent, ast.comprehension):
                if node is parent.iter:
                    self.assign(parent.target, source)
                return
            elif isinstance(parent, (ast.For, ast.AsyncFor)):
                return self.assign(parent.target, source)
            elif isinstance(parent, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
                targets = parent.targets if isinstance(parent, ast.Assign) else [parent.target]
                for target in targets:
                    self.assign(target, source)
                return
            elif isinstance(parent, ast.Return):
                return self.returned(source.above(parent, *FUNCTIONS, ast.Lambda))
            elif isinstance(parent, (ast.Expr, ast.If, ast.While, ast.Assert, ast.FormattedValue, ast.Compare)):
                return
            elif not isinstance(parent, VALUES):
                self.is_open = True
            node = parent

    def assign(self, target: Any, source: Source) -> None:
        """Called if a value is assigned to a target."""
        if isinstance(target, ast.Attribute):
            self.add(None, None, target.attr)
        elif isinstance(target, ast.Name):
            self.add(source.scope(target), source, target.id)
        elif isinstance(target, (ast.Subscript, ast.Starred)):
            self.assign(target.value, source)
        elif isinstance(target, (ast.Tuple, ast.List)):
            for it in target.elts:
                self.assign(it, source)
        else:
            self.is_open = True

    def passes(self, call: ast.Call, node: Any, source: Source) -> bool:
        """Whether the result of a call is computed from this argument."""
        name = last_name(call.func)
        if name in HOLDS and isinstance(call.func, ast.Attribute):
            self.assign(call.func.value, source)
            return False
        if name in KEEPS | ENDS:
            return name in KEEPS
        own = [(it, of) for of in self.program.sources for it in ast.walk(of.tree) if is_named(it, name)]
        for function, of in own:
            for argument in arguments(function):
                self.add(function, of, argument.arg)
        self.is_open |= not own
        return False

    def returned(self, function: Any) -> None:
        """Called if a function returns the value: follows the value to the calls of the function. If only libraries
        call the function, the value may reach a backward pass.
        """
        if id(function) in self.functions:
            return
        self.functions.add(id(function))
        name = getattr(function, "name", None)
        calls = [(it, of) for of in self.program.sources for it in ast.walk(of.tree) if is_call(it, name)]
        self.is_open |= not calls
        for call, of in calls:
            self.climb(call, of)


def is_named(node: Any, name: str) -> bool:
    """Whether this node defines the function with this name."""
    return isinstance(node, FUNCTIONS) and node.name == name


def is_call(node: Any, name: str | None) -> bool:
    """Whether this node calls the function with this name."""
    return isinstance(node, ast.Call) and last_name(node.func) == name
