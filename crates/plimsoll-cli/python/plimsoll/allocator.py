"""PyTorch's allocator: which it is, the bytes that are allocated now, and how it rounds requests."""

from __future__ import annotations

import os
from typing import Any

LEAST_GROWTH = 16 << 10  # bytes per step; less growth does not matter
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
    """Currently allocated bytes of a device."""
    try:
        return int(torch._C._cuda_memoryStats(device)["allocated_bytes"]["all"]["current"])
    except Exception:  # the function is private, and may be missing
        return int(torch.cuda.memory_allocated(device))


def levels(torch: Any) -> list[int]:
    """Currently allocated bytes of each device."""
    return [allocated(torch, it) for it in range(torch.cuda.device_count())]


def rounded(bytes: int) -> int:
    """The bytes that a request occupies after rounding."""
    return -(-bytes // ROUNDING) * ROUNDING
