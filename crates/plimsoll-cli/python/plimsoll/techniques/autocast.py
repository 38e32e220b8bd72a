"""bf16 autocast around the outermost module call; results are converted to f32, as accelerate does. Changes the
numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map

from . import context
from .dtypes import converted, need_bf16


class Autocast:
    """bf16 autocast around a model."""

    name = "bf16"

    def __init__(self, value: int | None) -> None:
        self.applied = 0

    def around(self, root: Any, following: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        device = next((it.device for it in root.parameters()), torch.device("cpu"))
        kind = device.type
        need_bf16(self.name, device)
        if torch.is_autocast_enabled(kind):
            context.refuse(self.name, "the program uses autocast itself")
        with torch.autocast(kind, dtype=torch.bfloat16):
            result = following(*args, **kwargs)
        self.applied += 1
        return tree_map(lambda it: converted(it, (torch.bfloat16,), torch.float32), result)

    def report(self) -> dict[str, Any]:
        lines = ['with torch.autocast("cuda", dtype=torch.bfloat16):', "    output = model(...)  # and the loss"]
        return dict(applied=bool(self.applied), detail="" if self.applied else context.untrained(), lines=lines)
