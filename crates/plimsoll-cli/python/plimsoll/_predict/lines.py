"""Records which lines of the program ran, and in how many steps. The simulated GPU (plimsoll-standin, lines.rs) traces
the main thread.
"""

from __future__ import annotations

import ctypes
import os
import sys
from types import CodeType
from typing import NamedTuple

from ..frames import LIBRARIES


class Row(ctypes.Structure):
    """A line that ran, in the form in which plimsoll-standin writes it."""

    _fields_ = [
        (name, ctypes.c_uint64 if name == "code" else ctypes.c_uint32) for name in "code line steps last _".split()
    ]


class Ran(NamedTuple):
    """A line that ran: the number of steps in which it ran, and the last of them."""

    steps: int
    last: int


class Lines:
    """The lines that ran in this process. The lines are unknown if another tracer, such as a debugger's, was active."""

    def __init__(self) -> None:
        self.library = ctypes.PyDLL(None)
        if hasattr(self.library, "plimsoll_standin_ran"):
            self.library.plimsoll_standin_ran.restype = ctypes.c_uint64
        self.is_on = self.is_over = False
        os.register_at_fork(after_in_child=self.stop)  # a data loader's worker has no steps

    def start(self) -> None:
        """Traces this thread."""
        is_new = not self.is_on and not self.is_over  # if it starts again after a stop, earlier lines would be missing
        if is_new and sys.gettrace() is None and hasattr(self.library, "plimsoll_standin_trace"):
            self.is_on = bool(self.library.plimsoll_standin_trace("\n".join(LIBRARIES).encode()))

    def stop(self) -> None:
        """Stops tracing."""
        if self.is_on and sys.gettrace() is None:
            self.library.plimsoll_standin_trace(None)
        self.is_over = self.is_over or self.is_on
        self.is_on = False

    def is_known(self) -> bool:
        """Whether it is known which lines ran."""
        return self.is_on and sys.gettrace() is None

    def begin(self, step: int) -> None:
        """From now on, lines count towards this step."""
        if not self.library.plimsoll_standin_step(ctypes.c_uint32(step)):
            self.stop()  # a debugger was active in the meantime

    def ran(self, code: CodeType, line: int) -> Ran:
        """The number of steps in which a line ran, and the last of them."""
        both = int(self.library.plimsoll_standin_ran(ctypes.c_uint64(id(code)), ctypes.c_uint32(line)))
        return Ran(both >> 32, both & 0xFFFF_FFFF)

    def all(self) -> dict[CodeType, dict[int, Ran]]:
        """All lines that ran."""
        room = self.library.plimsoll_standin_lines(None, ctypes.c_size_t(0))
        rows = (Row * room)()
        self.library.plimsoll_standin_lines(rows, ctypes.c_size_t(room))
        found: dict[CodeType, dict[int, Ran]] = {}
        for row in rows:
            # plimsoll-standin holds a reference to each code object.
            code = ctypes.cast(row.code, ctypes.py_object).value
            found.setdefault(code, {})[row.line] = Ran(row.steps, row.last)
        return found
