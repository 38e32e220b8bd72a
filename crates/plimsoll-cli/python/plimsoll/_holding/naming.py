"""Describes a chain of objects: an expression as it would be written in the program, and where the expression's first
name is defined.
"""

from __future__ import annotations

import os
import sys
import types
from types import CodeType, FrameType, FunctionType, TracebackType
from typing import Any

from .climb import Chain, Local
from .objects import (
    GENERATORS,
    MANY,
    SIMPLE,
    attributes,
    class_name,
    elements,
    frame_of,
    is_a,
    kind_of,
    locals_of,
    slots,
)

LONGEST = 120  # the maximum number of characters of an expression


class Part:
    """An expression that starts at a variable, a class, or an object without a name."""

    def __init__(self, kind: str, start: str, where: str) -> None:
        self.kind, self.where = kind, where
        self.words = [start]
        self.owner: tuple[Any, int] | None = None  # the innermost object with an attribute; its index in `words`
        self.many: tuple[Any, int] | None = None  # the last container with an element; its index in `words`

    def attribute(self, owner: Any, name: str) -> None:
        """Adds `.name` of an object to the expression."""
        self.owner, self.many = (owner, len(self.words)), None
        self.words.append(f".{name}")

    def element(self, many: Any, word: str) -> None:
        """Adds `[key]` of a container to the expression."""
        self.many = self.many or (many, len(self.words))
        self.words.append(word)

    def text(self, content: str = "") -> str:
        """The text, for example `self.history` of `Trainer` (list of 3 tensors), reached as `trainer.history`, a global
        of train.py.
        """
        words = self.words[: self.many[1]] if self.many else self.words
        whole, where = cut("".join(words)), self.where and f", {self.where}"
        content = content and f" ({content})"
        if not whole:
            return f"{self.where}{content}"
        if self.owner is None or self.kind == "class attribute":
            return f"`{whole}`{content}{where}"
        owner, at = self.owner
        own = f"`{cut('self' + ''.join(words[at:]))}` of `{kind_of(owner)}`{content}"
        return f"{own}, reached as `{whole}`{where}" if words[0] else f"{own}{where}"


def cut(expression: str) -> str:
    """The expression, without its middle if it is too long."""
    return expression if len(expression) <= LONGEST else f"{expression[: LONGEST // 2]}…{expression[-LONGEST // 2 :]}"


def parts(chain: Chain) -> list[Part]:
    """The expressions of a chain, the innermost first: for example `kept` of a closure, then the owner of the function."""
    objects = chain.objects
    found = [first(chain)]
    at = len(objects) - 1
    if isinstance(chain.root, str) and at:
        # The topmost object is the module's dictionary, which `first` has already named.
        at -= 1
    while at > 0:
        at = down(objects, at, found)
    return found[::-1]


def first(chain: Chain) -> Part:
    """The start of the outermost expression."""
    top, root = chain.objects[-1], chain.root
    if isinstance(root, Local):
        place = f"a local of {function(root.function, root.file, root.line)}"
        if root.thread is not None:
            return Part("thread", root.name, f"{place} in the thread `{root.thread}`")
        return Part("local", root.name, place)
    if isinstance(root, str):
        below = chain.objects[-2] if len(chain.objects) > 1 else None
        name = next((key for key, it in list(top.items()) if it is below and type(key) is str), "…")
        return Part("global", name, f"a global of {module(root)}")
    if is_a(top, types.ModuleType):
        return Part("global", "", "a module")
    if is_a(top, type):
        return Part("class attribute", class_name(top), "an attribute of the class")
    if chain.is_garbage:
        return Part("cycle", "", "a reference cycle that only gc.collect() frees")
    if attributes(top) is not None:
        return Part("attribute", "", "")
    return Part("unknown", "", f"an object of type `{kind_of(top)}`")


def down(objects: list[Any], at: int, found: list[Part]) -> int:
    """Adds the step from an object to the next object below it, or to the object after that. Returns the index of the
    object that was reached.
    """
    owner, child, part = objects[at], objects[at - 1], found[-1]
    if type(owner) is FunctionType:
        return of_function(objects, at, found)
    if type(owner) is FrameType:
        found.append(
            Part("local", local(owner, child), f"a local of {code(owner.f_code, owner.f_code.co_firstlineno)}")
        )
    elif type(owner) in GENERATORS:
        frame = frame_of(owner)
        if frame is not None:
            kind = "generator" if type(owner) is types.GeneratorType else "coroutine"
            place = code(frame.f_code, frame.f_code.co_firstlineno)
            found.append(Part("generator", local(frame, child), f"a local of the {kind} {place}"))
    elif kind_of(owner) == "_lru_cache_wrapper":
        part.where = f"whose results lru_cache keeps, {part.where}"
    elif type(owner) is TracebackType:
        return of_traceback(objects, at, found)
    elif is_a(owner, BaseException) and type(child) is TracebackType:
        return of_traceback(objects, at - 1, found, kind_of(owner))
    elif attributes(owner) is child or is_a(owner, type) and type(child) is dict:
        return of_attributes(objects, at, part)
    elif is_a(owner, *MANY):
        key = next((key for key, it in elements(owner) if it is child), None)
        part.element(owner, f"[{key!r}]" if key is not None and type(key) in SIMPLE else "[…]")
    elif type(owner) is types.MethodType:
        part.attribute(owner, "__self__")
    else:
        named = attributes(owner) or {}
        name = next((key for key, it in [*named.items(), *slots(owner)] if it is child and type(key) is str), "")
        if name:
            part.attribute(owner, name)
    return at - 1


def of_attributes(objects: list[Any], at: int, part: Part) -> int:
    """Adds an attribute of an object, if the object's `__dict__` is next in the chain; for a module, a submodule,
    parameter or buffer.
    """
    owner, variables = objects[at], objects[at - 1]
    if at < 2:
        return at - 1
    below = objects[at - 2]
    name = next((key for key, it in list(variables.items()) if it is below and type(key) is str), "…")
    if name in ("_modules", "_parameters", "_buffers") and at > 2 and is_a(below, dict):
        inner = next((key for key, it in list(dict.items(below)) if it is objects[at - 3] and type(key) is str), "…")
        if inner.isdecimal():
            part.words.append(f"[{inner}]")
        else:
            part.attribute(owner, inner)
        return at - 3
    part.attribute(owner, name)
    return at - 2


def of_function(objects: list[Any], at: int, found: list[Part]) -> int:
    """Adds the step from a function to a variable in its closure, a default argument, or an attribute."""
    owner, child = objects[at], objects[at - 1]
    place = code(owner.__code__, owner.__code__.co_firstlineno, qualified(owner))
    below = objects[at - 2] if at > 1 else None
    if child is owner.__closure__ and at > 2:
        names = zip(owner.__code__.co_freevars, child)
        name = next((name for name, cell in names if cell is below), "…")
        found.append(Part("closure", name, f"which {place} closes over"))
        return at - 3
    if (child is owner.__defaults__ or child is owner.__kwdefaults__) and at > 1:
        count = owner.__code__.co_argcount
        names = owner.__code__.co_varnames[:count][-len(child) :]
        pairs = child.items() if type(child) is dict else zip(names, child)
        name = next((name for name, it in pairs if it is below), "…")
        found.append(Part("default argument", name, f"a default argument of {place}"))
        return at - 2
    if child is owner.__dict__:
        found.append(Part("function attribute", owner.__name__, f"an attribute of {place}"))
        return of_attributes(objects, at, found[-1])
    return at - 1


def qualified(function: FunctionType) -> str:
    """The qualified name of a function."""
    return function.__qualname__.replace("<locals>.", "")


def of_traceback(objects: list[Any], at: int, found: list[Part], error: str | None = None) -> int:
    """Adds the step from a traceback down to a variable in one of its frames."""
    while at > 0 and type(objects[at]) is TracebackType:
        at -= 1
    if type(objects[at]) is not FrameType or at == 0:
        return at
    frame = objects[at]
    while at > 1 and type(objects[at - 1]) is FrameType:  # a frame refers to its caller's frame
        at -= 1
        frame = objects[at]
    place = f"a local of {code(frame.f_code, frame.f_lineno)}"
    what = f"the traceback of `{error}`" if error else "a traceback"
    found.append(Part("traceback", local(frame, objects[at - 1]), f"{place} in {what}"))
    return at - 1


def local(frame: FrameType, value: Any) -> str:
    """The name of the variable of a frame that has this value."""
    return next((name for name, it in locals_of(frame) if it is value), "…")


def code(of: CodeType, line: int, name: str | None = None) -> str:
    """The text for a function at a line, for example `step` (train.py:7)."""
    return function(name or of.co_name, of.co_filename, line)


def function(name: str, file: str, line: int) -> str:
    """The text for a function, from its name, file and line."""
    return f"`{name}` ({os.path.basename(file)}:{line})"


def module(name: str) -> str:
    """A module's name; for the program itself, the name of its file."""
    file = (attributes(sys.modules[name]) or {}).get("__file__") if name == "__main__" and name in sys.modules else None
    return os.path.basename(file) if type(file) is str else f"the module {name}"
