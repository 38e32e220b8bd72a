"""PyTorch's allocator: the bytes that are allocated now, and how it rounds requests."""

from __future__ import annotations

from typing import Any

LEAST_GROWTH = 16 << 10  # bytes a step, below which growth does not matter
ROUNDING = 512


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
