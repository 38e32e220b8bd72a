"""Finds sums and lists of losses that keep the graph of every step: `total += loss`, `losses.append(loss)`. A sum counts
only if no value that is computed from the sum reaches a backward pass. The program's code is never run.
"""

from __future__ import annotations

import ast
import linecache
from typing import Any, NamedTuple

from .._holding.live import Tensors, attribute
from .._predict.source import Source
from .flows import Flow
from .insertion import Insertion, instead
from .names import Names
from .program import Program

NODES = 20_000  # the maximum number of a graph's nodes to visit


class Sum(NamedTuple):
    """A statement that adds to a variable or an attribute."""

    target: Any  # a name or an attribute, with or without a subscript
    statement: Any
    added: Any
    source: Source

    @property
    def base(self) -> Any:
        """The target without its subscript."""
        return self.target.value if isinstance(self.target, ast.Subscript) else self.target

    def element(self, value: Any) -> Any:
        """The sum or list itself, given the value of `base`: an element of it if the target has a subscript."""
        if isinstance(self.target, ast.Subscript) and isinstance(self.target.slice, ast.Constant):
            return value.get(self.target.slice.value) if type(value) is dict else None
        return value

    def edited(self) -> tuple[Insertion, str] | None:
        """Where the statement ends, and the replacement, which detaches the added value. None if the statement shares
        lines with other statements.
        """
        lines = linecache.getlines(self.source.file)
        there = instead(Names(self.source.scope(self.statement)), self.statement, lines)
        text = ast.get_source_segment("".join(lines), self.statement)
        added = ast.get_source_segment("".join(lines), self.added)
        if there is None or text is None or added is None or "\n" in text or not text.endswith((added, f"{added})")):
            return None
        is_simple = isinstance(self.added, (ast.Name, ast.Attribute, ast.Call, ast.Subscript))
        detached = f"{added}.detach()" if is_simple else f"({added}).detach()"
        at = text.rindex(added)
        return there, text[:at] + detached + text[at + len(added) :]


def sums(program: Program) -> list[Sum]:
    """The sums of the program that no backward pass uses."""
    found = [it for source in program.sources for node in ast.walk(source.tree) for it in one(node, source)]
    return [it for it in found if not reaches_backward(program, it)]


def reaches_backward(program: Program, it: Sum) -> bool:
    """Whether a sum may reach a backward pass."""
    target = it.base
    if isinstance(target, ast.Attribute):
        return Flow(program).reaches_backward(None, None, target.attr)
    scope = it.source.scope(target)
    is_global = any(
        isinstance(node, (ast.Global, ast.Nonlocal)) and target.id in node.names for node in ast.walk(it.source.tree)
    )
    return Flow(program).reaches_backward(it.source.tree if is_global else scope, it.source, target.id)


def one(node: Any, source: Source) -> list[Sum]:
    """The sum to which a statement adds, as a list of one. Empty if the node adds to no sum."""
    target: Any = None
    added: Any = None
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        target, added = node.target, node.value
    elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.value, ast.BinOp):
        target = node.targets[0]
        if isinstance(node.value.op, ast.Add) and ast.unparse(node.value.left) == ast.unparse(target):
            added = node.value.right
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and len(node.value.args) == 1:
        called = node.value.func
        if isinstance(called, ast.Attribute) and called.attr == "append":
            target, added = called.value, node.value.args[0]
    base = target.value if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant) else target
    is_known = isinstance(base, ast.Name) or isinstance(base, ast.Attribute) and isinstance(base.value, ast.Name)
    return [Sum(target, node, added, source)] if added is not None and is_known else []


def graph_of(known: Tensors, value: Any) -> tuple[int, int]:
    """The GPU memory kept by the graphs of a sum or a list of tensors, and the number of values in the sum or list."""
    tensors = value if type(value) is list else [value]
    nodes = [known.get(it, "grad_fn") for it in tensors if known.is_tensor(it)]
    nodes = [it for it in nodes if it is not None]
    count = len(nodes) if type(value) is list else terms(nodes)
    storages: dict[int, int] = {}
    leaves: set[int] = set()
    seen: set[int] = set()
    kept = []  # so that the addresses of nodes are not reused
    while nodes and len(seen) < NODES:
        node = nodes.pop()
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        kept.append(node)
        leaf = attribute(node, "variable")
        if leaf is not None and known.is_tensor(leaf):
            leaves.add(known.storage(leaf)[0])
        saved = [it for it in known.saved_by(node) if known.is_tensor(it) and known.get(it, "is_cuda")]
        storages.update(known.storage(it) for it in saved)
        nodes += [it for it, _ in attribute(node, "next_functions") or ()]
    return sum(size for at, size in storages.items() if at not in leaves), count


def terms(nodes: list[Any]) -> int:
    """The number of additions at the end of a graph."""
    count, node = 0, nodes[0] if nodes else None
    while node is not None and type(node).__name__ == "AddBackward0" and count < NODES:
        count += 1
        node = next((it for it, _ in attribute(node, "next_functions") or () if it is not None), None)
    return count
