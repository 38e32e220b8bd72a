"""bf16 autocast around the outermost module call; results are converted to f32, as accelerate does. Changes the
numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map

from . import context


class Autocast:
    """bf16 autocast around a model."""

    name = "bf16"

    def __init__(self, value: int | None) -> None:
        self.applied = 0

    def around(self, root: Any, following: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        device = next((it.device for it in root.parameters()), torch.device("cpu"))
        kind = device.type
        if kind == "cuda" and torch.cuda.get_device_capability(device) < (8, 0):
            context.refuse(self.name, "this GPU has no bf16 instructions")
        if torch.is_autocast_enabled(kind):
            context.refuse(self.name, "the program uses autocast itself")
        with torch.autocast(kind, dtype=torch.bfloat16):
            result = following(*args, **kwargs)
        self.applied += 1
        return tree_map(self.widened, result)

    def widened(self, value: Any) -> Any:
        """A bf16 tensor in f32; other values as they are."""
        is_narrow = isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16
        return value.float() if is_narrow else value

    def report(self) -> dict[str, Any]:
        lines = ['with torch.autocast("cuda", dtype=torch.bfloat16):', "    output = model(...)  # and the loss"]
        return dict(applied=bool(self.applied), detail="" if self.applied else context.untrained(), lines=lines)
