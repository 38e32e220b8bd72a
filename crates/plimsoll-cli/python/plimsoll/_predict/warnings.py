"""Warns about memory that depends on unknown values, with the bytes that these values may add. The first lines of the
report show these warnings.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Iterator
from types import FrameType
from typing import Any

from .. import frames, protocol
from .reads import Reads


class Warnings:
    """Features of PyTorch that this process uses and whose memory depends on values: L-BFGS, and the number of
    CUDA graphs.
    """

    def __init__(self, torch: Any, reads: Reads) -> None:
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        self.torch, self.reads = torch, reads
        # For each L-BFGS: the line that created it, and tensors in place of the vectors that it would keep if values
        # were real.
        self.optimizers: weakref.WeakKeyDictionary[Any, tuple[str, int] | None] = weakref.WeakKeyDictionary()
        self.held: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()
        self.captures = 0  # the number of captured CUDA graphs
        register_optimizer_step_pre_hook(self.step_begins)
        graph = torch.cuda.CUDAGraph
        begin = graph.capture_begin

        @functools.wraps(begin)
        def capture_begin(*args: Any, **kwargs: Any) -> Any:
            self.captures += 1
            return begin(*args, **kwargs)

        graph.capture_begin = capture_begin

    def made(self, optimizer: Any, frame: FrameType | None) -> None:
        """Records an optimizer whose history depends on values."""
        if isinstance(optimizer, self.torch.optim.LBFGS):
            self.optimizers[optimizer] = frames.program_line(frame)

    def step_begins(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """If --assume sets the number of history pairs for the line that created an L-BFGS optimizer, allocates the
        vectors of the pairs that are missing here.
        """
        if optimizer not in self.optimizers:
            return
        given = self.reads.given(self.optimizers[optimizer])
        if given is None:
            return
        held = self.held.setdefault(optimizer, [])
        for group, size, kept in histories(optimizer):
            most = group["history_size"]
            pairs = {"max": most, "half": most // 2}[given] if isinstance(given, str) else min(int(given), most)
            missing = 2 * max(pairs - kept, 0)
            del held[missing:]
            first = group["params"][0]
            while len(held) < missing:
                held.append(self.torch.empty(size // first.element_size(), dtype=first.dtype, device=first.device))

    def rows(self, steps: int | None) -> list[protocol.Warning]:
        """Rows for the report of a program that runs `steps` steps; None if the number is unknown."""
        found: list[protocol.Warning] = []
        for optimizer, place in list(self.optimizers.items()):
            try:
                held = len(self.held.get(optimizer, ())) // 2
                found += [
                    protocol.Warning(place=place, what=what, most=most, bytes=size)
                    for what, most, size in missing(optimizer, held, steps)
                ]
            except Exception as why:
                print(f"plimsoll: cannot see the history of L-BFGS: {why!r}", file=sys.stderr)
        return found


def histories(optimizer: Any) -> Iterator[tuple[dict[str, Any], int, int]]:
    """For each L-BFGS on a GPU: the group of its parameters, the bytes of a vector, and the pairs of vectors that it keeps."""
    for group in optimizer.param_groups:
        size = sum(it.numel() * it.element_size() for it in group["params"] if it.is_cuda)
        if size:
            yield group, size, len(optimizer.state[group["params"][0]].get("old_dirs") or ())


def missing(optimizer: Any, held: int, steps: int | None) -> Iterator[tuple[str, int, int]]:
    """L-BFGS keeps two vectors for each of its latest iterations except the first, and values determine how many
    iterations a step makes. For each L-BFGS, yields a sentence about this, the most pairs of vectors that it may keep,
    and the bytes of the pairs that are missing. `held` pairs are already allocated in place of real pairs.
    """
    for group, size, kept in histories(optimizer):
        most: int = group["history_size"]
        if steps:
            most = min(most, steps * group["max_iter"] - 1)
        if kept + held < most:
            what = f"the history of L-BFGS: here {kept + held} of up to {most} pairs of vectors are kept"
            yield what, most, 2 * size * (most - kept - held)
