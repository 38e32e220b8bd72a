"""Types of floating-point tensors: shared by `bf16`, `half` and `bf16-weights`."""

from __future__ import annotations

from typing import Any

import torch

from . import context


def need_bf16(name: str, device: Any) -> None:
    """Refuses a technique on a GPU that cannot compute in bf16."""
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0):
        context.refuse(name, "this GPU has no bf16 instructions")


def converted(value: Any, of: Any, to: Any) -> Any:
    """A tensor of one of these types, converted; other values unchanged."""
    return value.to(to) if isinstance(value, torch.Tensor) and value.dtype in of else value
