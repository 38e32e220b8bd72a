"""The program's code after the training loop, and whether it may need memory, for example for another training run, a
large tensor or an evaluation.
"""

from __future__ import annotations

import ast
import linecache
from types import FrameType
from typing import Any

from .. import frames, protocol
from .heavy import Heavy
from .lengths import around
from .source import SCOPES, Source, block_of, own_nodes, scope_of

MOST = 20  # the maximum number of places to list


def after(frame: FrameType | None, heavy: Heavy) -> list[protocol.Place]:
    """The statements after the loops around a step that may need memory: first those of the innermost function, then
    those of its callers.
    """
    found: list[protocol.Place] = []
    stack = list(frames.of_program(frame))
    # The statements that follow the step in a function called by the loop run in each iteration, so they do not count.
    first = next((at for at, own in enumerate(stack) if around(own)), 0)
    for own in stack[first:]:
        file = own.f_code.co_filename
        for statement in behind(own):
            heavy.known.clear()
            if not isinstance(statement, SCOPES) and heavy.are([statement], own):
                text = linecache.getline(file, statement.lineno).strip()[:160]
                found.append(protocol.Place(file=file, line=statement.lineno, text=text))
    return found[:MOST]


def behind(frame: FrameType) -> list[Any]:
    """The statements of a frame's function that follow its outermost loop, or its current statement if there is no loop around it."""
    source = Source.of(frame.f_code, frame.f_globals)
    scope = source and scope_of(source.tree, frame.f_code)
    if source is None or scope is None:
        return []
    node = next(iter(around(frame)[::-1]), None) or current(scope, frame.f_lineno)
    found: list[Any] = []
    while node is not None and node is not scope:
        block, parent = block_of(source.parents, node)
        found += block[block.index(node) + 1 :] if block is not None else []
        node = parent
    return found


def current(scope: Any, line: int) -> Any:
    """The innermost statement of a function at this line."""
    inside = [it for it in own_nodes(scope) if isinstance(it, ast.stmt) and it.lineno <= line <= (it.end_lineno or 0)]
    return max(inside, key=lambda it: (it.lineno, -(it.end_lineno or 0)), default=None)
