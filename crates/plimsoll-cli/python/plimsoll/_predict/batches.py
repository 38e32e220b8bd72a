"""Examines the batches of the training loader that follow the last step, to find out whether one of them is larger than
all batches of the steps.

These batches are loaded but not used for training, except that one more step runs with the largest batch. If loading is
slow, only the first of them are loaded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from .. import protocol

SECONDS = 0.4  # the time limit for loading batches
MORE = 1.02  # a batch with this many times the elements of the largest so far is worth a step


class Batches:
    """The batches that one loop over the training loader gets."""

    def __init__(self, torch: Any, iterator: Any, loader: Any) -> None:
        self.torch, self.iterator = torch, iterator
        try:
            self.total: int | None = len(loader)
        except Exception:
            self.total = None  # the dataset has no length
        self.sizes: set[int] = set()  # elements of the batches so far
        self.made = 0
        self.is_searched = self.is_complete = False

    def saw(self, batch: Any) -> None:
        """Records a batch that the loader made."""
        self.made += 1
        self.sizes.add(self.elements(batch))

    def elements(self, batch: Any, depth: int = 0) -> int:
        """The number of elements of all tensors in a batch."""
        if isinstance(batch, self.torch.Tensor):
            return int(batch.numel())
        if isinstance(batch, Mapping):
            batch = list(batch.values())
        parts = (
            batch
            if isinstance(batch, (list, tuple))
            else list(vars(batch).values())
            if hasattr(batch, "__dict__")
            else []
        )
        return sum(self.elements(it, depth + 1) for it in parts) if depth < 4 else 0

    def larger(self, following: Callable[[Any], Any]) -> Any:
        """The largest of the following batches, if it is larger than all earlier batches; otherwise None."""
        if self.is_searched:
            return None
        self.is_searched = True
        until, most, found = time.monotonic() + SECONDS, max(self.sizes, default=0) * MORE, None
        while time.monotonic() < until:
            try:
                batch = following(self.iterator)
            except StopIteration:
                self.is_complete = True
                break
            self.saw(batch)
            size = self.elements(batch)
            if size > most:
                most, found = size, batch
        return found

    def row(self) -> protocol.Batches | None:
        """A row for the report, if a larger batch may still come."""
        if not self.is_searched or self.is_complete or len(self.sizes) < 2:
            return None
        return protocol.Batches(made=self.made, total=self.total)
