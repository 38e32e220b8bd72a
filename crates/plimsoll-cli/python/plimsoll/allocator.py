"""PyTorch's allocator: which it is, the bytes that are allocated now, and how it rounds requests."""

from __future__ import annotations

import os
from typing import Any

LEAST_GROWTH = 16 << 10  # bytes a step, below which growth does not matter
ROUNDING = 512


def backend(torch: Any) -> str:
    """PyTorch's allocator backend; `none` without caching."""
    if os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING"):
        return "none"
    try:
        return str(torch.cuda.memory.get_allocator_backend())
    except AttributeError:  # an older PyTorch, which has only one
        return "native"


def allocated(torch: Any, device: int) -> int:
    """Allocated bytes of a device now."""
    try:
        return int(torch._C._cuda_memoryStats(device)["allocated_bytes"]["all"]["current"])
    except Exception:  # a private function
        return int(torch.cuda.memory_allocated(device))


def levels(torch: Any) -> list[int]:
    """Allocated bytes of each device now."""
    return [allocated(torch, it) for it in range(torch.cuda.device_count())]


def rounded(bytes: int) -> int:
    """The bytes that a request takes."""
    return -(-bytes // ROUNDING) * ROUNDING
