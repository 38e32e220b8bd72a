"""Python's frames: whether they run code of the user's program, and their variables. No code of the program is
called.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, TypeVar

Found = TypeVar("Found")

# Parts of the paths of files that do not belong to the program.
LIBRARIES = ("site-packages", "dist-packages", "<frozen", os.path.dirname(os.__file__))


def is_library(path: str) -> bool:
    """Whether a file belongs to an installed package, the standard library, or Plimsoll."""
    return any(place in path for place in LIBRARIES)


def of_program(frame: FrameType | None) -> Iterator[FrameType]:
    """The program's frames, from this one outwards."""
    while frame is not None:
        if not is_library(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def program_line(frame: FrameType | None) -> tuple[str, int] | None:
    """The file and line of the program's innermost frame; None if there is none."""
    found = next(of_program(frame), None)
    return found and (found.f_code.co_filename, found.f_lineno)


def is_function(frame: FrameType) -> bool:
    """Whether a frame has local variables, unlike the frame of a module or a class body."""
    return bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED)


def read(frame: FrameType, reader: Callable[[Any], Found]) -> Found:
    """Returns what `reader` returns for the variables of a frame.

    Python before 3.13 creates a dictionary for the variables of a function's frame, which would keep the tensors alive
    as long as the frame. So it is emptied, unless the program also has it, from `locals()`.
    """
    variables = frame.f_locals
    found = reader(variables)
    # There are three references: the frame, this function and the argument.
    if is_function(frame) and type(variables) is dict and sys.getrefcount(variables) <= 3:
        variables.clear()
    return found
