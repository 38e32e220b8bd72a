"""Sizes that change late in the training loop because they depend on the number of the step, such as `64 if step < 500 else
256`, `sizes[step // 100]`, or a function of the step. The expressions are computed from the source for the steps to
come; none of the program's code is called.
"""

from __future__ import annotations

import ast
import functools
import operator
import time
from collections.abc import Callable, Iterator
from types import FrameType, FunctionType
from typing import Any

from .. import frames
from .dataflow import Flow
from .lengths import around, counter, length_of_loop, value_of
from .names import SHOWS
from .source import Source, last_name, looked_up, scope_of

NEAR = 250  # all of this many next iterations are examined; then one in each 1/NEAR of the way
ENDLESS = 10**7  # the iterations of a loop of unknown length to look ahead
SECONDS = 0.3  # the time limit for this
CHANGES = 8  # the most changes of an expression that are noted
LATEST = 3  # an expression that changed in this many latest iterations is a ramp that the steps show
DEPTH = 3  # functions are followed into nested calls up to this depth
BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.In: lambda one, other: one in other,
    ast.NotIn: lambda one, other: one not in other,
}
CALLS: dict[str, Callable[..., Any]] = {"min": min, "max": max, "int": int, "abs": abs, "round": round, "len": len}
PLAIN = (int, float, bool, str, list, tuple, dict, range)


class Unknown(Exception):
    """An expression cannot be computed."""


class Ramp:
    """An expression that sets a size, and the steps, counted from 1, in which it first has another value."""

    def __init__(self, file: str, node: Any, changes: list[int]) -> None:
        self.file, self.line, self.text, self.changes = file, node.lineno, ast.unparse(node), changes

    def next(self, step: int) -> int | None:
        """The first change after this step; a ramp with CHANGES changes may change again later."""
        is_cut = len(self.changes) >= CHANGES and step >= self.changes[-1]
        return step + 1 if is_cut else next((it for it in self.changes if it > step), None)

    def reached(self, step: int) -> int:
        """How many changes there were up to this step."""
        return sum(it <= step for it in self.changes)


def ramps(stack: list[FrameType], step: int) -> list[Ramp]:
    """The ramps in the loops around a step that has just ended. `stack` are the program's frames."""
    found: dict[tuple[str, int, str], Ramp] = {}
    inner: int | None = 1  # the steps in an iteration of the loop
    until = time.monotonic() + SECONDS
    for at, frame in enumerate(stack):
        source = Source.of(frame.f_code, frame.f_globals)
        for loop in around(frame) if source is not None else ():
            names, done = counters(loop, frame), counter(loop, frame)
            length = length_of_loop(loop, frame)
            if source is not None and names and done and inner is not None:
                # With gradient accumulation, a step takes several iterations.
                each = inner if inner > 1 or done <= step else step / done
                for node in expressions(loop, names):
                    try:
                        later = list(changes(node, names, frame, done, length, until))
                    except Exception:
                        continue  # it cannot be computed
                    if later and sets_size(source, node, stack[at:]):
                        ramp = Ramp(source.file, node, [step_of(it, done, each, step) for it in later])
                        found.setdefault((ramp.file, ramp.line, ramp.text), ramp)
            inner = inner * length if inner is not None and length is not None else None
    return list(found.values())


def step_of(iteration: int, done: int, each: float, step: int) -> int:
    """The first step of an iteration, counted from 1, of a loop that has begun `done` iterations."""
    return int((iteration - 1) * each) + 1 if each > 1 else step + max(int((iteration - done) * each), 1)


def counters(loop: Any, frame: FrameType) -> dict[str, tuple[int, int]]:
    """The variables that count the iterations of a loop: their values now, and by how much they grow."""
    found: dict[str, tuple[int, int]] = {}
    if isinstance(loop, ast.For) and counter(loop, frame) is not None:
        target: Any = loop.target.elts[0] if isinstance(loop.target, ast.Tuple) else loop.target
        found[target.id] = looked_up(target, frame), 1
    for it in loop.body:
        if isinstance(it, ast.AugAssign) and isinstance(it.op, ast.Add) and isinstance(it.target, ast.Name):
            now, each = looked_up(it.target, frame), value_of(it.value, frame)
            if type(now) is int and type(each) is int:
                # At the end of a step, the variable may already have the value of the next.
                found[it.target.id] = now - each * (frame.f_lineno > it.lineno), each
    return found


def expressions(loop: Any, names: dict[str, tuple[int, int]]) -> Iterator[Any]:
    """The largest expressions in a loop that compute with these variables."""
    left: list[Any] = list(loop.body)
    while left:
        node = left.pop()
        if (
            isinstance(node, (ast.Compare, ast.JoinedStr))
            or isinstance(node, ast.Call)
            and last_name(node.func) in SHOWS
        ):
            continue
        is_kind = isinstance(node, (ast.BinOp, ast.IfExp, ast.Subscript)) or isinstance(node, ast.Call)
        if is_kind and any(isinstance(it, ast.Name) and it.id in names for it in ast.walk(node)):
            yield node
        left.extend(ast.iter_child_nodes(node))


def changes(
    node: Any, names: dict[str, tuple[int, int]], frame: FrameType, done: int, length: int | None, until: float
) -> Iterator[int]:
    """The iterations, counted from 1, in which an integer expression first has another value than before; none if it has
    changed in the latest iterations.
    """

    def at(iteration: int) -> Any:
        values = {name: now + each * (iteration - done) for name, (now, each) in names.items()}
        try:
            return Evaluation(values, frame, frame.f_globals).value(node)
        except LookupError:
            return None

    # An expression such as `schedule[step]` has a value only in some iterations.
    known = [(it, value) for it in range(1, done + 1) if (value := at(it)) is not None]
    now = known[-1][1] if known else None
    if any(type(value) is not int or value != now and it >= done - LATEST for it, value in known):
        return
    found, iteration, last = 0, done, length if length is not None else ENDLESS
    while iteration < last and found < CHANGES and time.monotonic() < until:
        before = iteration
        # Far ahead, not every iteration is examined.
        iteration = min(iteration + max((iteration - done) // NEAR, 1), last)
        then = at(iteration)
        if type(then) is int and then != now:
            while iteration - before > 1:
                middle = (before + iteration) // 2
                before, iteration = (before, middle) if at(middle) not in (now, None) else (middle, iteration)
            yield iteration
            now, found = at(iteration), found + 1


class Evaluation:
    """Computes expressions with the given values of some variables. Other variables have their values in the frame."""

    def __init__(self, values: dict[str, Any], frame: FrameType | None, module: dict[str, Any], depth: int = 0) -> None:
        self.values, self.frame, self.module, self.depth = values, frame, module, depth

    def value(self, node: Any) -> Any:
        """The value of an expression."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name) and node.id in self.values:
            return self.values[node.id]
        if isinstance(node, (ast.Name, ast.Attribute)):
            found = self.module.get(node.id) if self.frame is None and isinstance(node, ast.Name) else None
            return plain(value_of(node, self.frame) if self.frame is not None else found)
        if isinstance(node, ast.BinOp) and type(node.op) in BINARY:
            return plain(BINARY[type(node.op)](number(self.value(node.left)), number(self.value(node.right))))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.Not)):
            return -number(self.value(node.operand)) if isinstance(node.op, ast.USub) else not self.value(node.operand)
        if isinstance(node, ast.Compare) and all(type(op) in BINARY for op in node.ops):
            parts = [self.value(it) for it in (node.left, *node.comparators)]
            return all(BINARY[type(op)](*pair) for op, pair in zip(node.ops, zip(parts, parts[1:])))
        if isinstance(node, ast.BoolOp):
            parts = [bool(self.value(it)) for it in node.values]
            return all(parts) if isinstance(node.op, ast.And) else any(parts)
        if isinstance(node, ast.IfExp):
            return self.value(node.body if self.value(node.test) else node.orelse)
        if isinstance(node, (ast.List, ast.Tuple)):
            return [self.value(it) for it in node.elts]
        if isinstance(node, ast.Dict):
            return {self.value(key): self.value(it) for key, it in zip(node.keys, node.values)}
        if isinstance(node, ast.Subscript):
            return plain(plain(self.value(node.value))[self.value(node.slice)])
        if isinstance(node, ast.Call):
            return self.call(node)
        raise Unknown

    def call(self, node: ast.Call) -> Any:
        """The result of a builtin function, or of one of the program's that only computes."""
        name = last_name(node.func)
        arguments = [self.value(it) for it in node.args]
        if isinstance(node.func, ast.Name) and name in CALLS and not node.keywords:
            return plain(CALLS[name](*arguments))
        if not isinstance(node.func, ast.Name) or self.depth >= DEPTH:
            raise Unknown
        function = looked_up(node.func, self.frame) if self.frame is not None else self.module.get(name)
        if type(function) is not FunctionType or frames.is_library(function.__code__.co_filename):
            raise Unknown
        scope = definition(function)
        if scope is None or isinstance(scope, ast.Lambda):
            raise Unknown
        parameters = [it.arg for it in scope.args.args]
        defaults = function.__defaults__ or ()
        values = dict(zip(parameters[len(parameters) - len(defaults) :], defaults))
        values.update(zip(parameters, arguments))
        values.update({it.arg: self.value(it.value) for it in node.keywords if it.arg is not None})
        inside = Evaluation(values, None, function.__globals__, self.depth + 1)
        for result in inside.run(scope.body):
            return result
        raise Unknown

    def run(self, statements: list[Any]) -> Iterator[Any]:
        """Computes the statements of a function. Yields its result."""
        for it in statements:
            if isinstance(it, ast.Return) and it.value is not None:
                yield self.value(it.value)
                return
            if isinstance(it, ast.If):
                yield from self.run(it.body if self.value(it.test) else it.orelse)
            elif isinstance(it, ast.Assign) and len(it.targets) == 1 and isinstance(it.targets[0], ast.Name):
                self.values[it.targets[0].id] = self.value(it.value)
            elif not (isinstance(it, ast.Expr) and isinstance(it.value, ast.Constant)):
                raise Unknown


@functools.lru_cache(maxsize=64)
def definition(function: FunctionType) -> Any:
    """The definition of a function in the source; None if it is not found."""
    source = Source.of(function.__code__, function.__globals__)
    return None if source is None else scope_of(source.tree, function.__code__)


def plain(value: Any) -> Any:
    """The value, if computing with it runs no code of the program."""
    if type(value) not in PLAIN:
        raise Unknown
    return value


def number(value: Any) -> Any:
    """The value, if it is a number."""
    if type(value) not in (int, float, bool):
        raise Unknown
    return value


def sets_size(source: Source, node: Any, stack: list[FrameType]) -> bool:
    """Whether an expression in the first of these frames decides a size."""
    flow = Flow(stack)
    flow.up(source, node, 0)
    return any(it.kind == "size" for it in flow.found)
