"""What a run without values cannot show, and how many bytes it may add: rows for the first lines of the answer."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from .. import protocol


class Warnings:
    """Things that this process uses and whose memory depends on values: L-BFGS, and the number of CUDA graphs."""

    def __init__(self, torch: Any, is_library: Callable[[str], bool]) -> None:
        self.torch, self.is_library = torch, is_library
        # L-BFGS: the line that made it.
        self.optimizers: weakref.WeakKeyDictionary[Any, tuple[str, int] | None] = weakref.WeakKeyDictionary()
        self.captures = 0  # CUDA graphs
        graph = torch.cuda.CUDAGraph
        begin = graph.capture_begin

        @functools.wraps(begin)
        def capture_begin(*args: Any, **kwargs: Any) -> Any:
            self.captures += 1
            return begin(*args, **kwargs)

        graph.capture_begin = capture_begin

    def made(self, optimizer: Any, frame: FrameType | None) -> None:
        """Notes an optimizer whose history depends on values."""
        if isinstance(optimizer, self.torch.optim.LBFGS):
            while frame is not None and self.is_library(frame.f_code.co_filename):
                frame = frame.f_back
            self.optimizers[optimizer] = frame and (frame.f_code.co_filename, frame.f_lineno)

    def rows(self) -> list[protocol.Warning]:
        """Rows for the report."""
        found: list[protocol.Warning] = []
        for optimizer, place in list(self.optimizers.items()):
            try:
                found += [protocol.Warning(place=place, what=what, bytes=size) for what, size in history(optimizer)]
            except Exception as why:
                print(f"plimsoll: cannot see the history of L-BFGS: {why!r}", file=sys.stderr)
        return found


def history(optimizer: Any) -> Iterator[tuple[str, int]]:
    """L-BFGS keeps two vectors for each of its latest iterations; how many iterations a step makes depends on
    values.
    """
    for group in optimizer.param_groups:
        size = sum(it.numel() * it.element_size() for it in group["params"] if it.is_cuda)
        state = optimizer.state[group["params"][0]] if group["params"] else {}
        kept = len(state.get("old_dirs") or ())
        most = group["history_size"]
        if size and kept < most:
            what = f"the history of L-BFGS: here {kept} of {most} pairs of vectors are kept"
            yield what, 2 * size * (most - kept)
