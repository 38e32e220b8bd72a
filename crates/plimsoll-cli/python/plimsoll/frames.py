"""Python's frames: whether they run code of the program, and their variables. No code of the program is called."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, TypeVar

Found = TypeVar("Found")

# Parts of the paths of files that are not the program's.
LIBRARIES = ("site-packages", "dist-packages", "<frozen", os.path.dirname(os.__file__))


def is_library(path: str) -> bool:
    """Whether a file belongs to an installed package, the standard library, or us."""
    return any(place in path for place in LIBRARIES)


def of_program(frame: FrameType | None) -> Iterator[FrameType]:
    """The frames of the program from this one outwards."""
    while frame is not None:
        if not is_library(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def program_line(frame: FrameType | None) -> tuple[str, int] | None:
    """The file and the line of the innermost of them; None if there is none."""
    found = next(of_program(frame), None)
    return found and (found.f_code.co_filename, found.f_lineno)


def is_function(frame: FrameType) -> bool:
    """Whether a frame has variables of its own, unlike a module's or a class body's."""
    return bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED)


def read(frame: FrameType, reader: Callable[[Any], Found]) -> Found:
    """What `reader` returns for the variables of a frame.

    Python before 3.13 makes a dictionary for those of a function, which would keep the tensors alive as long as the frame: it
    is emptied, unless the program has it, too, from `locals()`.
    """
    variables = frame.f_locals
    found = reader(variables)
    # Else only the frame, this function and the argument refer to it.
    if is_function(frame) and type(variables) is dict and sys.getrefcount(variables) <= 3:
        variables.clear()
    return found
