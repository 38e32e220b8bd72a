"""Finds out how the program uses a value that it read from the device: whether the value is only shown, or decides a
size or a branch.

The value must be an ordinary float, int or bool, so it cannot record its own use. This file follows it through the
source instead: from the expression that read it (the frame has its instruction, and since Python 3.11 that
instruction's columns) through names, attributes, containers, returns to the callers on the stack, and into the
program's own functions. Without source code, the instruction alone shows whether a branch follows.

A value decides something if it is the test of an `if` or a `while` (unless its arms only raise, print or count), the
bound of a slice, an index, an argument of `range`, or an argument that sets a tensor's size. An `assert` decides
nothing, because the program continues only if it holds. Divisions by the value and logarithms of it are found as well,
because the value must not be zero there. Nothing here imports torch.
"""

from __future__ import annotations

import ast
import sys
import types
from collections.abc import Callable
from types import FrameType
from typing import Any

from ..frames import is_library
from .names import FINITE, HOLDS, METADATA, PURE, READERS, SHOWS, SIZES
from .source import Sink, Site, Source, hides, is_jump, key_or_name, last_name, looked_up, reaches

DIVISIONS, LOGARITHMS = (ast.Div, ast.FloorDiv, ast.Mod), ("log", "log2", "log10")  # of `math`
DEPTH = 6  # a value is followed into nested calls to the program's functions up to this depth


def line_of(node: Any) -> int:
    """The first line of a node. A part of a comprehension or of a `with` has no line number, so the line of a node
    inside it counts.
    """
    return next((it.lineno for it in ast.walk(node) if hasattr(it, "lineno")), 0)


def use(frames: list[FrameType]) -> tuple[list[Sink], bool]:
    """Returns the places that use the value read in the innermost frame, and whether the value must not be zero. The frames are
    ordered from the innermost outwards.
    """
    flow = Flow(frames)
    return flow.run(), flow.divides


class Flow:
    """Follows a value from the expression that read it. `frames` are ordered from the innermost outwards."""

    def __init__(self, frames: list[FrameType]) -> None:
        self.frames = frames
        self.found: list[Sink] = []
        self.seen: set[tuple[Any, int | None]] = set()
        self.divides = False
        self.depth = 0

    def run(self) -> list[Sink]:
        """The lines where the value decides something."""
        site = Site(self.frames[0])
        if not site.nodes:
            if is_jump(site.name):
                self.add("branch", site.code.co_filename, site.line)
            elif "SUBSCR" in site.name or "SLICE" in site.name:
                self.add("size", site.code.co_filename, site.line)
            elif site.source is None:
                self.add("unknown", site.code.co_filename, site.line)
            return self.found
        for node in site.nodes:
            self.read(site.known_source(), node, 0)
        return self.found

    def add(self, kind: str, file: str, line: int) -> None:
        """Records a line where the value decides something, unless it is already recorded."""
        if all((it.kind, it.file, it.line) != (kind, file, line) for it in self.found):
            self.found.append(Sink(kind, file, line))

    def read(self, source: Source, node: Any, level: int | None) -> None:
        """Called for a node that read the value from the device."""
        if isinstance(node, ast.Call) and last_name(node.func) not in READERS:
            self.passed(source, node, level)
        elif isinstance(node, ast.Subscript):
            self.add("size", source.file, line_of(node))
        else:
            self.up(source, node, level)

    def up(self, source: Source, node: Any, level: int | None) -> None:
        """Called if this expression's value is the value that was read, or is computed from it. `level` is the index of
        the expression's frame in `frames`; None if the frame is not on the stack.
        """
        if (node, level) in self.seen:
            return
        self.seen.add((node, level))
        parent = source.parents.get(node)
        line = getattr(node, "lineno", 0)
        if isinstance(parent, (ast.If, ast.While, ast.IfExp)) and parent.test is node:
            self.tested(source, parent, level)
        elif isinstance(parent, ast.comprehension):
            if node is parent.iter:
                self.bound(source, parent.target, parent, level)
                self.up(source, source.parents[parent], level)
            else:
                self.add("branch", source.file, line)
        elif isinstance(parent, ast.Match):
            self.add("branch", source.file, line)
        elif isinstance(parent, ast.Compare):
            if not all(isinstance(op, (ast.Is, ast.IsNot)) for op in parent.ops):
                self.up(source, parent, level)
        elif isinstance(parent, ast.BinOp):
            other = parent.right if parent.left is node else parent.left
            self.divides |= parent.right is node and isinstance(parent.op, DIVISIONS) and not is_text(other)
            if isinstance(other, (ast.List, ast.Tuple)) and isinstance(parent.op, ast.Mult):
                self.add("size", source.file, line)
            elif not isinstance(other, (ast.JoinedStr,)) and not is_text(parent.left):
                self.up(source, parent, level)
        elif isinstance(parent, ast.Slice):
            self.add("size", source.file, line)
        elif isinstance(parent, ast.Subscript):
            self.indexed(source, parent, node, level)
        elif isinstance(parent, ast.Attribute):
            if parent.attr not in METADATA:
                self.up(source, parent, level)
        elif isinstance(parent, ast.Call):
            if parent.func is node:
                if last_name(node) in SIZES and last_name(node) not in PURE:
                    return  # a method of the value: its arguments are other values
                if last_name(node) not in SHOWS and last_name(node) not in HOLDS:
                    self.up(source, parent, level)
            else:
                self.passed(source, parent, level, node)
        elif isinstance(parent, ast.keyword):
            call = source.parents[parent]
            if isinstance(call, ast.Call):
                self.passed(source, call, level, parent)
        elif isinstance(parent, ast.Assign):
            for target in parent.targets:
                self.bound(source, target, parent, level)
        elif isinstance(parent, (ast.AugAssign, ast.AnnAssign)):
            self.divides |= isinstance(getattr(parent, "op", None), DIVISIONS)
            self.bound(source, parent.target, parent, level)
        elif isinstance(parent, ast.NamedExpr):
            self.bound(source, parent.target, parent, level)
            self.up(source, parent, level)
        elif isinstance(parent, (ast.For, ast.AsyncFor)) and parent.iter is node:
            self.bound(source, parent.target, parent, level)
        elif isinstance(parent, (ast.Return, ast.Yield, ast.YieldFrom)):
            self.returned(source, parent, level)
        elif isinstance(parent, ast.Lambda):
            self.returned(source, parent, level)
        elif isinstance(parent, ast.expr) and not isinstance(parent, (ast.JoinedStr, ast.FormattedValue)):
            self.up(source, parent, level)

    def tested(self, source: Source, parent: Any, level: int | None) -> None:
        """Called if the value is the test of an `if`, a `while` or a conditional expression."""
        if isinstance(parent, ast.IfExp):
            calls = [it for arm in (parent.body, parent.orelse) for it in ast.walk(arm) if isinstance(it, ast.Call)]
            is_other = any(last_name(it.func) not in PURE | SHOWS | READERS for it in calls)
            if is_other or self.uses_tensors([parent.body, parent.orelse], level):
                self.add("branch", source.file, line_of(parent))
            self.up(source, parent, level)
            return
        if isinstance(parent, ast.If) and any(key_or_name(it) in FINITE for it in ast.walk(parent.test)):
            return  # a check for finite values (also GradScaler's), which is assumed to pass
        arms = parent.body + parent.orelse
        counted = counts(arms) if isinstance(parent, ast.If) else None
        if counted is None or self.uses_tensors(arms, level):
            self.add("branch", source.file, line_of(parent))
        for target, statement in counted or ():
            self.bound(source, target, statement, level)

    def uses_tensors(self, arms: Any, level: int | None) -> bool:
        """Whether an arm uses tensors of the device, as far as the frame's variables show."""
        frame = self.frames[level] if level is not None and level < len(self.frames) else None
        left, torch = list(arms) if frame is not None else [], sys.modules.get("torch")
        while left and torch is not None:
            node = left.pop()
            if isinstance(node, (ast.Raise, ast.Assert)):
                continue
            if isinstance(node, ast.Call) and last_name(node.func) in READERS | SHOWS:
                continue
            if isinstance(node, ast.If):
                left += node.body + node.orelse
            elif isinstance(node, (ast.Name, ast.Attribute)):
                value = looked_up(node, frame) if frame is not None else None
                several = value[:4] if isinstance(value, (list, tuple)) else (value,)
                if any(isinstance(it, torch.Tensor) and it.is_cuda for it in several):
                    return True
            elif isinstance(node, ast.Assign):
                left.append(node.value)
            else:
                left += ast.iter_child_nodes(node)
        return False

    def indexed(self, source: Source, parent: Any, node: Any, level: int | None) -> None:
        """Called if the value is a container that is indexed, or the index."""
        if parent.value is node:
            self.up(source, parent, level)
        elif not isinstance(parent.ctx, ast.Store):
            self.add("size", source.file, line_of(parent))

    def bound(self, source: Source, target: Any, statement: Any, level: int | None) -> None:
        """Called if the value is assigned to a target."""
        if isinstance(target, (ast.Tuple, ast.List)):
            value: Any = getattr(statement, "value", None)
            for at, part in enumerate(target.elts):
                pairs = isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts)
                if not pairs or (value.elts[at], level) in self.seen:
                    self.bound(source, part, statement, level)
        elif isinstance(target, ast.Starred):
            self.bound(source, target.value, statement, level)
        elif isinstance(target, ast.Subscript):
            self.held(source, target.value, level)
        elif isinstance(target, ast.Name):
            self.named(source, target, statement, level)
        elif isinstance(target, ast.Attribute):
            self.held(source, target, level)

    def held(self, source: Source, place: Any, level: int | None) -> None:
        """Called if a container or an attribute stores the value: every load of it may return the value."""
        while isinstance(place, (ast.Subscript, ast.Call)):
            place = place.value if isinstance(place, ast.Subscript) else place.func
        if isinstance(place, ast.Name):
            self.named(source, place, None, level)
        elif isinstance(place, ast.Attribute):
            text = ast.dump(place.value)
            nodes: list[Any] = list(ast.walk(source.tree))
            for node in nodes:
                is_same = isinstance(node, ast.Attribute) and node.attr == place.attr and node is not place
                if is_same and isinstance(node.ctx, ast.Load) and ast.dump(node.value) == text:
                    self.up(source, node, level if source.scope(node) is source.scope(place) else None)

    def named(self, source: Source, name: Any, statement: Any, level: int | None) -> None:
        """Called if the value is assigned to a variable, by `statement` or (if None) by an unknown statement."""
        scope = source.scope(name)
        if isinstance(scope, ast.Lambda):
            return
        if any(isinstance(it, (ast.Global, ast.Nonlocal)) and name.id in it.names for it in ast.walk(scope)):
            scope, statement = source.tree, None
        self.loads(source, scope, name.id, statement, level)

    def loads(self, source: Source, scope: Any, name: Any, statement: Any, level: int | None) -> None:
        """Follows each load of a variable that the value can reach."""
        for node in ast.walk(scope):
            if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load):
                if hides(source, source.scope(node), scope, name):
                    continue  # another variable of this name, in a function
                if statement is None or reaches(source, scope, name, statement, node):
                    self.up(source, node, level if source.scope(node) is scope else None)

    def returned(self, source: Source, statement: Any, level: int | None) -> None:
        """Follows the value to the caller, if the caller's frame is on the stack."""
        if level is None or level + 1 >= len(self.frames):
            return
        site = Site(self.frames[level + 1])
        for node in site.nodes:
            itself = site.known_source()
            loop = itself.parents.get(node)
            if isinstance(loop, (ast.For, ast.AsyncFor)) and loop.iter is node:
                self.bound(itself, loop.target, loop, level + 1)
            elif isinstance(node, ast.Call) or "CALL" not in site.name:
                self.up(itself, node, level + 1)

    def passed(self, source: Source, call: ast.Call, level: int | None, argument: Any = None) -> None:
        """Called if the value is this argument of the call. None means that it may be any argument."""
        name = last_name(call.func)
        if name in LOGARITHMS and getattr(getattr(call.func, "value", None), "id", None) in ("math", "np", "numpy"):
            self.divides |= argument in call.args[:1]
        elif name in SHOWS:
            return
        called = self.function(call.func, level) if name not in PURE and argument is not None else None
        if name in HOLDS and isinstance(call.func, ast.Attribute):
            self.held(source, call.func.value, level)
            if called is None:
                return
        if name in SIZES:
            is_first = argument is not None and bool(call.args) and call.args[0] is argument
            if is_sized(name, call, argument, is_first):
                self.add("size", source.file, call.lineno)
                return
        if called is not None and self.depth < DEPTH:
            self.enter(called, call, argument)
        self.up(source, call, level)

    def function(self, expression: Any, level: int | None) -> tuple[types.FunctionType, int] | None:
        """The program's function that this expression names in the frame, and the number of its bound arguments. None
        if it names no function of the program.
        """
        if level is None or level >= len(self.frames):
            return None
        value = looked_up(expression, self.frames[level])
        forward = getattr(type(value), "forward", None) if hasattr(type(value), "_call_impl") else None
        if forward is not None:
            value = types.MethodType(forward, value)
        if isinstance(value, type):
            begin = getattr(value, "__init__", None)
            value = types.MethodType(begin, value) if isinstance(begin, types.FunctionType) else None
        bound = int(isinstance(value, types.MethodType))
        value = getattr(value, "__func__", value)
        value = getattr(value, "__wrapped__", value)
        if not isinstance(value, types.FunctionType) or is_library(value.__code__.co_filename):
            return None
        return value, bound

    def enter(self, called: Any, call: ast.Call, argument: Any) -> None:
        """Follows an argument into the program's own function."""
        value, bound = called
        source = Source.of(value.__code__, value.__globals__)
        if source is None:
            return
        code = value.__code__
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
        lines: Callable[..., Any] = lambda it: [it.lineno] + [decorator.lineno for decorator in it.decorator_list]
        its = [it for it in ast.walk(source.tree) if isinstance(it, kinds) and code.co_firstlineno in lines(it)]
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if isinstance(argument, ast.keyword):
            name = argument.arg
        else:
            at = bound + next((at for at, it in enumerate(call.args) if it is argument), 0)
            name = names[at] if at < code.co_argcount else None
        if its and name in names:
            self.depth += 1
            self.loads(source, its[0], name, None, None)
            self.depth -= 1


def bound_of(frame: FrameType, which: str) -> int | None:
    """The largest value of the slice bound that still has an effect: for `x[:, :n]`, the size of x in that dimension."""
    site = Site(frame)
    node = site.nodes[0] if len(site.nodes) == 1 else None
    if not isinstance(node, ast.Subscript):
        return None
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    value = looked_up(node.value, frame)
    size = getattr(value, "shape", None)
    bounds = [at for at, it in enumerate(parts) if isinstance(it, ast.Slice) and not is_number(it.upper, it.lower)]
    if size is None or len(bounds) != 1 or bounds[0] >= len(size):
        return None
    return int(size[bounds[0]]) if which == "max" else int(size[bounds[0]]) // 2


def is_number(*nodes: Any) -> bool:
    """Whether each of these slice bounds is a literal number or omitted."""
    return all(it is None or isinstance(it, (ast.Constant, ast.UnaryOp)) for it in nodes)


def is_text(node: Any) -> bool:
    """Whether the expression is a string."""
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)))


def is_sized(name: str, call: ast.Call, argument: Any, is_first: bool) -> bool:
    """Whether an argument of these functions is a size. For example, the second argument of `full` is a value, and the
    first argument of `pad` is a tensor.
    """
    if argument is None:
        return True
    keyword = argument.arg if isinstance(argument, ast.keyword) else None
    if keyword is not None:
        return keyword not in ("fill_value", "device", "dtype", "value", "p", "dim")
    is_function = isinstance(call.func, ast.Name) or last_name(getattr(call.func, "value", None)) in (
        "torch",
        "F",
        "functional",
        "nn",
        "np",
        "numpy",
        "rnn",
        "utils",
        "itertools",
    )
    if name in ("full", "new_full"):
        return is_first
    if name in ("topk", "pad", "interpolate", "split", "chunk", "narrow", "one_hot", "multinomial", "view", "reshape"):
        return not (is_function and is_first)
    return True


def counts(statements: Any) -> list[tuple[Any, ast.stmt]] | None:
    """The targets to which an arm assigns, if it only raises exceptions, shows values and counts; otherwise None."""
    targets = []
    for it in statements:
        if isinstance(it, (ast.Pass, ast.Raise, ast.Assert)):
            continue
        if isinstance(it, ast.Expr):
            value = it.value
            if isinstance(value, ast.Constant) or (isinstance(value, ast.Call) and last_name(value.func) in SHOWS):
                continue
            if isinstance(value, ast.Call) and last_name(value.func) in ("exit", "_exit", "append"):
                continue
            return None
        if isinstance(it, ast.If):
            inner = counts(it.body + it.orelse)
            if inner is None:
                return None
            targets += inner
            continue
        if not isinstance(it, (ast.Assign, ast.AugAssign)) or it.value is None:
            return None
        calls = [node for node in ast.walk(it.value) if isinstance(node, ast.Call)]
        if any(
            last_name(node.func) not in (READERS | {"round", "min", "max", "abs", "format", "str"}) for node in calls
        ):
            return None
        assigned: list[Any] = it.targets if isinstance(it, ast.Assign) else [it.target]
        targets += [(target, it) for target in assigned]
    return targets
