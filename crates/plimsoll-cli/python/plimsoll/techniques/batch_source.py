"""Finds the numbers in the program's source that set the batch size where the program makes its batches, as in
`torch.randn(64, 3, 224, 224)` or `torch.randn(B, 1024)` with `B = 64`. A version of the program with smaller batches
has other numbers there. The program's code is never run.
"""

from __future__ import annotations

import ast
from types import FrameType
from typing import Any, NamedTuple

from .._predict.lengths import pairs
from .._predict.source import Site, Source, own_nodes, scope_of
from ..frames import is_library, of_program

DEPTH = 3  # arguments are followed through this many callers
MOST = 8  # the most numbers to change


class Number(NamedTuple):
    """A number in the source: its line, and where in this line it begins and ends, in bytes of UTF-8."""

    file: str
    line: int
    begin: int
    end: int


class Unknown(Exception):
    """The size is not a number in the program's source. The text says what it is instead."""


def numbers(frame: FrameType, rows: int) -> Number | str:
    """Return the number that sets the rows of the tensor that the frame is creating; if there is none, a text says why."""
    try:
        site = Site(frame)
        calls = [it for it in site.nodes if isinstance(it, ast.Call)]
        if site.source is None or len(calls) != 1:
            raise Unknown("the source of the line that makes the batch is not found")
        return of(size(calls[0]), list(of_program(frame)), rows)
    except Unknown as why:
        return str(why)
    except Exception:  # misread source must not fail the program
        return "the line that makes the batch cannot be read"


def size(call: ast.Call) -> Any:
    """The expression of the first dimension in a call that makes a tensor."""
    given = [*call.args, *(it.value for it in call.keywords if it.arg == "size")]
    shapes = [it for it in given if isinstance(it, (ast.Tuple, ast.List)) and it.elts]
    found = shapes[0].elts[0] if shapes else given[0] if given else None
    if found is None:
        raise Unknown("the line that makes the batch has no size")
    return found


def of(node: Any, stack: list[FrameType], rows: int, depth: int = 0) -> Number:
    """The number from which an expression in the first of these frames gets its value."""
    frame = stack[0]
    source = Source.of(frame.f_code, frame.f_globals)
    if isinstance(node, ast.Constant) and type(node.value) is int:
        if node.value != rows or source is None or node.lineno != node.end_lineno:
            raise Unknown(f"the batch size is not the number {node.value}")
        return Number(source.file, node.lineno, node.col_offset, node.end_col_offset or 0)
    if not isinstance(node, ast.Name) or source is None:
        raise Unknown(f"its size is `{ast.unparse(node)}`, not a number or a variable")
    scope = scope_of(source.tree, frame.f_code)
    parameters = scope.args if isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) else None
    own = assigned(list(own_nodes(scope)), node.id) if scope is not None else []
    if parameters is not None and any(it.arg == node.id for it in [*parameters.args, *parameters.kwonlyargs]):
        if own or depth >= DEPTH:
            raise Unknown(f"`{node.id}` is assigned more than once")
        return of(*argument(parameters, node.id, stack), rows, depth + 1)
    own = own or assigned(list(own_nodes(source.tree)), node.id)
    if len(own) != 1:
        raise Unknown(f"`{node.id}` is assigned {'more than once' if own else 'elsewhere'}")
    if not isinstance(own[0], (ast.Constant, ast.Name)) or depth >= DEPTH:
        raise Unknown(f"`{node.id}` is `{ast.unparse(own[0])}`, not a number")
    return of(own[0], stack, rows, depth + 1)


def assigned(nodes: list[Any], name: str) -> list[Any]:
    """The values that statements assign to a name. Any other kind of assignment counts twice."""
    found = []
    for it in nodes:
        if isinstance(it, ast.Assign):
            found += [v for target in it.targets for to, v in pairs(target, it.value) if is_name(to, name)]
        elif isinstance(it, ast.AnnAssign) and it.value is not None and is_name(it.target, name):
            found.append(it.value)
    stores = sum(is_name(it, name) and isinstance(it.ctx, ast.Store) for it in nodes)
    return found if len(found) == stores else [*found, *found, ast.Constant(None)]


def is_name(node: Any, name: str) -> bool:
    """Whether an expression is this name."""
    return isinstance(node, ast.Name) and node.id == name


def argument(parameters: ast.arguments, name: str, stack: list[FrameType]) -> tuple[Any, list[FrameType]]:
    """The expression that the caller passes for a parameter, and the frames from the caller's outwards. The default is in
    the function's own file.
    """
    if len(stack) < 2:
        raise Unknown(f"the caller that passes `{name}` is not found")
    calls = [it for it in Site(stack[1]).nodes if isinstance(it, ast.Call)]
    caller = stack[0].f_back
    if len(calls) != 1 or caller is not stack[1] or is_library(caller.f_code.co_filename):
        raise Unknown(f"the caller that passes `{name}` is not found")
    call = calls[0]
    if any(isinstance(it, ast.Starred) for it in call.args) or any(it.arg is None for it in call.keywords):
        raise Unknown(f"the caller that passes `{name}` is not found")
    names = [it.arg for it in parameters.args]
    # In a call of a method, the first parameter is the object.
    place = names.index(name) - (names[:1] == ["self"]) if name in names else len(call.args)
    given = [it.value for it in call.keywords if it.arg == name] + call.args[place : place + 1]
    if given:
        return given[0], stack[1:]
    defaults = dict(zip(names[len(names) - len(parameters.defaults) :], parameters.defaults))
    defaults.update({it.arg: v for it, v in zip(parameters.kwonlyargs, parameters.kw_defaults) if v is not None})
    if name not in defaults:
        raise Unknown(f"the caller that passes `{name}` is not found")
    return defaults[name], stack
