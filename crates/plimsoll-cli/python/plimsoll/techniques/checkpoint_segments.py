"""Checkpoints segments of the model's repeated blocks, or of its longest `nn.Sequential`: only the inputs of segments
stay in memory. The numbers are identical.

With √N segments of N blocks, about 2 √N inputs and results of blocks exist at the same time, whereas checkpointing
each block keeps N. The technique is like `torch.utils.checkpoint.checkpoint_sequential`, but works inside any model,
and also checkpoints the last segment, because the code after the segment needs memory as well.
"""

from __future__ import annotations

from typing import Any

from . import blocks, context, each, roots
from .checkpoint import Checkpoint

LEAST = 4  # the minimum number of blocks


class CheckpointSegments(Checkpoint):
    """Checkpoints segments of the blocks of each model."""

    name = "checkpoint-segments"
    none = f"the model has fewer than {LEAST} repeated blocks, and no nn.Sequential with that many modules"
    find = staticmethod(blocks.in_a_row)

    def __init__(self, value: int | None) -> None:
        super().__init__(None)
        self.segments = value
        self.number = 0  # the number of segments in all models

    def first(self, root: Any) -> None:
        self.check(root)
        if context.is_sharded(root):
            context.refuse(self.name, "FSDP2 shards the model")
        found = self.find(root)
        if len(found) >= LEAST:
            self.number += self.divide(root, found, self.segments)

    def report(self) -> dict[str, Any]:
        if not self.count:
            return dict(applied=False, detail=self.none if roots.kinds else context.untrained(), lines=[])
        option = "True" if self.segments is None else self.segments
        call = f"plimsoll.checkpoint_blocks(model, segments={option})"
        lines = [context.IMPORT, *each.model(call, [kind for kind, _ in self.lines], roots.kinds)]
        detail = f"{self.count} blocks in {self.number} segments"
        return dict(applied=True, detail=detail, lines=lines, blocks=self.of)
