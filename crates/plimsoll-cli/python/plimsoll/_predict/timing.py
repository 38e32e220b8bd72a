"""Runs the last steps of a run that counts operators without our hooks, so that they show the time that the host itself
needs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from . import settings

MOST_S = 5.0  # the time limit for these steps, in seconds


class Timing:
    """The steps without hooks. Values that the program reads are unknown in these steps, so an exception or a loop
    without end only ends the run.
    """

    def __init__(self, reads: Any, known: Any, stop: Callable[[str, int], None]) -> None:
        self.reads, self.known, self.stop = reads, known, stop
        self.is_on = False

    def begin(self) -> None:
        """Removes the wrappers around operators, and the hook for reads."""
        self.is_on = True
        self.reads.stop()
        if self.known is not None:
            self.known.uncover()
        timer = threading.Timer(MOST_S, self.stop, ("stopped", 0))
        timer.daemon = True
        timer.start()

    def stepped(self, steps: int) -> None:
        """Called when this many steps of the run are done."""
        if steps >= settings.STEPS:
            self.stop("stopped", 0)
