"""Decides which optimizer steps count. Steps of a training on the CPU that precedes the training on a GPU do not count;
steps of a wrapped optimizer count once.
"""

from __future__ import annotations

import time
from typing import Any

MOST_STEPS = 200  # the maximum number of steps on the CPU that do not count; further steps count
MOST_SECONDS = 10.0  # the same limit in seconds


class Hosted:
    """Recognizes steps that needed no GPU memory."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.steps = 0
        self.began = 0.0
        self.requests = 0  # the number of blocks that PyTorch had requested at the latest step

    def is_one(self, optimizer: Any) -> bool:
        """Whether this optimizer's step needed no GPU memory."""
        requests, before = self.asked(), self.requests
        self.requests = requests
        has_gpu = any(it.is_cuda for group in optimizer.param_groups for it in group["params"])
        if has_gpu or requests != before:
            return False
        self.began = self.began or time.monotonic()
        self.steps += 1
        return self.steps <= MOST_STEPS and time.monotonic() - self.began < MOST_SECONDS

    def asked(self) -> int:
        """The number of blocks on all GPUs that PyTorch has requested so far."""
        cuda = self.torch.cuda
        if not cuda.is_initialized():
            return 0
        return sum(cuda.memory_stats(it).get("allocation.all.allocated", 0) for it in range(cuda.device_count()))


def shares_parameters(one: Any, other: Any) -> bool:
    """Whether an optimizer wraps another optimizer, as in sharpness-aware minimization."""
    one, other = ({id(p) for group in getattr(it, "param_groups", ()) for p in group["params"]} for it in (one, other))
    return not one.isdisjoint(other)
