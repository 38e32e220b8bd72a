"""Reads an object's class, attributes and locals without calling any code of the program, because the program may have
classes whose `__eq__`, `__repr__` or `__getattr__` fail, read the device, or never end.
"""

from __future__ import annotations

import collections
import types
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from ..frames import read

OWN = ("plimsoll", "plimsoll_injected")  # our package, in the wheel and injected
SIMPLE = (str, int, bool, float, type(None))  # classes whose repr is Python's own
GENERATORS = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)
DESCRIPTORS = (types.GetSetDescriptorType, types.MemberDescriptorType)
MANY: tuple[type, ...] = (list, tuple, dict, set, frozenset, collections.deque)

mro: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__
class_dict: Callable[[type], Any] = type.__dict__["__dict__"].__get__
class_name: Callable[[type], str] = type.__dict__["__qualname__"].__get__


def is_a(obj: Any, *kinds: type) -> bool:
    """Like `isinstance`, but does not call the object's `__class__`."""
    return any(base is kind for base in mro(type(obj)) for kind in kinds)


def kind_of(obj: Any) -> str:
    """The name of an object's class."""
    return class_name(type(obj)).replace("<locals>.", "")


def attributes(obj: Any) -> dict[str, Any] | None:
    """An object's `__dict__`, if it is a plain dictionary."""
    for base in mro(type(obj)):
        found = class_dict(base).get("__dict__")
        if type(found) in DESCRIPTORS:
            try:
                value = found.__get__(obj)
            except Exception:
                return None
            return value if type(value) is dict else None
        if found is not None:
            return None
    return None


def slots(obj: Any) -> Iterator[tuple[str, Any]]:
    """The values of an object's `__slots__`."""
    for base in mro(type(obj)):
        for name, found in list(class_dict(base).items()):
            if type(found) is types.MemberDescriptorType and type(name) is str:
                try:
                    yield name, found.__get__(obj)
                except Exception:  # an empty slot
                    continue


def elements(many: Any) -> Iterator[tuple[Any, Any]]:
    """The elements of a list, a dictionary, or another built-in container, with their keys or indices."""
    if is_a(many, dict):
        return iter(dict.items(many))
    kind: Any = next(base for base in MANY if is_a(many, base))
    is_ordered = kind in (list, tuple, collections.deque)
    return enumerate(kind.__iter__(many)) if is_ordered else ((None, it) for it in kind.__iter__(many))


def locals_of(frame: FrameType) -> list[tuple[str, Any]]:
    """The variables of a frame that have a name in the source."""
    found = read(frame, lambda variables: list(variables.items()))
    return [(name, value) for name, value in found if type(name) is str and not name.startswith(".")]


def frame_of(generator: Any) -> FrameType | None:
    """The frame of a generator or a coroutine that has not ended."""
    found: FrameType | None
    if type(generator) is types.GeneratorType:
        found = generator.gi_frame
    elif type(generator) is types.CoroutineType:
        found = generator.cr_frame
    else:
        found = generator.ag_frame
    return found


def name_of_globals(variables: dict[Any, Any]) -> str | None:
    """The name of the module whose variables these are; None for any other dictionary, whose keys may have their own `__eq__`."""
    if not all(type(it) is str for it in list(variables)) or "__builtins__" not in variables:
        return None
    name = variables.get("__name__")
    return name if type(name) is str else None


def is_ours(obj: Any) -> bool:
    """Whether an object belongs to us, because it is our frame or module, or its class is ours."""
    if type(obj) is FrameType:
        name = dict.get(obj.f_globals, "__name__")
    elif type(obj) is types.FunctionType:
        name = dict.get(obj.__globals__, "__name__")
    elif type(obj) is dict:
        name = name_of_globals(obj)
    elif type(obj) in GENERATORS:
        frame = frame_of(obj)
        return frame is not None and is_ours(frame)
    else:
        name = class_dict(type(obj)).get("__module__")
    return type(name) is str and name.partition(".")[0] in OWN
