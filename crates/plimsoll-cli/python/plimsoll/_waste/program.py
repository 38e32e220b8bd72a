"""Collects mentions of names in the source files of the program's own modules: the uses of each attribute, and code
that may read attributes other than by name. The program's code is never run.
"""

from __future__ import annotations

import ast
import re
import sys
import types
from typing import Any, NamedTuple

from .._holding.objects import attributes, is_a
from .._predict.source import Source, last_name
from ..frames import is_library

# Code that may read any attribute of an object.
BUILTINS = {"vars", "eval", "exec", "dir"}
OPEN = set(
    "__dict__ attrgetter methodcaller getmembers __getattr__ __getattribute__ __getstate__ __reduce__"
    " __reduce_ex__ asdict astuple pickle dill cloudpickle joblib shelve Process Pool spawn ProcessPoolExecutor".split()
)


class Use(NamedTuple):
    """A place where the program mentions an attribute."""

    node: ast.Attribute
    source: Source


class Program:
    """The modules of the program that are loaded now."""

    def __init__(self, modules: dict[str, str]) -> None:
        self.modules = modules  # the files, by module name
        sources = {file: Source.at(file, attributes(sys.modules[name]) or {}) for name, file in modules.items()}
        self.sources = [it for it in sources.values() if it is not None]
        self.uses: dict[str, list[Use]] = {}
        self.texts: list[str] = []  # string constants, except docstrings
        self.imported: set[str] = set()
        self.reads_main = False  # whether a module may read the variables of the main program
        self.defined: set[str] = set()  # the names that classes define: methods, properties, fields
        # Whether all reads of attributes are known.
        self.is_known = len(self.sources) == len(sources)
        for source in self.sources:
            for node in ast.walk(source.tree):
                self.note(source, node)

    def note(self, source: Source, node: Any) -> None:
        """Records the names that a node mentions."""
        if isinstance(node, ast.Attribute):
            self.uses.setdefault(node.attr, []).append(Use(node, source))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if not isinstance(source.parents.get(node), ast.Expr):
                self.texts.append(node.value)
        elif isinstance(node, ast.alias):
            self.imported.add(node.name)
            self.reads_main |= node.name == "__main__"
        elif isinstance(node, ast.ClassDef):
            self.defined.update(name for it in node.body for name in names_of(it))
        elif isinstance(node, ast.Call):
            self.is_known &= not is_open(node)
        elif type(node).__name__ == "MatchClass":
            self.defined.update(node.kwd_attrs)
        name = last_name(node) or getattr(node, "name", None)
        module = getattr(node, "module", None)
        if module == "__main__" or name in ("import_module", "__import__") or is_modules(node):
            self.reads_main = True
        is_builtin = isinstance(node, ast.Name) and node.id in BUILTINS
        self.is_known &= not is_builtin and name not in OPEN and module not in OPEN

    def is_text(self, name: str) -> bool:
        """Whether a string of the program may name an attribute."""
        part = re.compile(rf"^{re.escape(name)}$|\.{re.escape(name)}\b")
        return any(part.search(it) for it in self.texts)

    def is_imported(self, name: str) -> bool:
        """Whether a module may import this variable from another module."""
        return name in self.imported or self.reads_main


def loaded() -> dict[str, str]:
    """The names and files of the program's own modules that are loaded now."""
    found: dict[str, str] = {}
    for name, module in list(sys.modules.items()):
        own = attributes(module) if is_a(module, types.ModuleType) else None
        file = (own or {}).get("__file__")
        if type(name) is str and type(file) is str and file.endswith(".py") and not is_library(file):
            if not name.startswith(("plimsoll", "sitecustomize")):
                found[name] = file
    return found


def is_modules(node: ast.AST) -> bool:
    """Whether this node is `sys.modules`, which also contains the main program."""
    is_one = isinstance(node, ast.Attribute) and node.attr == "modules" and isinstance(node.value, ast.Name)
    return is_one and node.value.id == "sys"  # type: ignore[attr-defined]


def is_open(call: ast.Call) -> bool:
    """Whether a call may read any attribute of an object: `getattr` with a computed name, and `torch.save` of anything
    other than state dictionaries.
    """
    name = last_name(call.func)
    if name in ("getattr", "hasattr", "setattr", "delattr"):
        return len(call.args) < 2 or not isinstance(call.args[1], ast.Constant)
    return name == "save" and not (call.args and is_plain(call.args[0]))


def is_plain(value: ast.AST) -> bool:
    """Whether an expression consists only of constants and state dictionaries."""
    if isinstance(value, ast.Call):
        return last_name(value.func) == "state_dict"
    return not isinstance(value, ast.Name) and all(is_plain(it) for it in ast.iter_child_nodes(value))


def names_of(statement: Any) -> list[str]:
    """The names that a statement in a class body defines."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [statement.name]
    return [it.id for it in ast.walk(statement) if isinstance(it, ast.Name) and isinstance(it.ctx, ast.Store)]
