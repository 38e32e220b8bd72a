"""PyTorch's allocator: the currently allocated bytes, and how it rounds requests."""

from __future__ import annotations

from typing import Any

LEAST_GROWTH = 16 << 10  # bytes per step; less growth does not matter
ROUNDING = 512


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
