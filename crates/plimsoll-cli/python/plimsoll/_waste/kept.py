"""For `run`: finds the sums of losses that keep graphs when memory grows or runs out, with the line to write instead,
which keeps no graph.
"""

from __future__ import annotations

import os
from types import FrameType
from typing import Any

from .. import frames, sizes
from .._holding.live import Tensors
from .further import Further

LEAST_PART = 10  # graphs that keep less than this part (1/10) of the allocated bytes are not reported


class Graphs:
    """The sums whose graphs are large, as found by the latest call to `look`."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.further: Further | None = None
        self.lines: list[str] = []

    def look(self, frame: FrameType | None, level: int) -> None:
        """Examines the variables on the stack. `level` is the number of allocated bytes. A failure here must not end
        the program.
        """
        try:
            if self.further is None:
                self.further = Further(Tensors(self.torch))
            stack = [(it, it.f_lineno) for it in frames.of_program(frame)]
            with self.further.known.quiet():
                rows = self.further.graphs(stack, level // LEAST_PART)
            self.lines = [
                f"`{it['name']}` ({os.path.basename(it['file'])}:{it['line']}) keeps the graph of each loss,"
                f" {sizes.shown(it['each'])} each; write `{it['text']}` instead"
                for it in rows
            ]
        except Exception:
            self.lines = []
