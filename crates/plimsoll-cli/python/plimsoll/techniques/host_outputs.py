"""Moves a model's results to the host immediately, for programs that collect them. Code that uses the results then runs
on the CPU, and rounds differently.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from . import context
from .inference import Inference


class HostOutputs(Inference):
    """Moves the results of models to the host."""

    name = "host-outputs"
    idle = "no module returned a tensor on a GPU"

    def around(self, root: Any, following: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = following(*args, **kwargs)
        if not any(isinstance(it, torch.Tensor) and it.is_cuda for it in tree_leaves(result)):
            return result
        self.calls += 1
        with context.unread():
            return tree_map(lambda it: it.cpu() if isinstance(it, torch.Tensor) else it, result)

    def lines(self) -> list[str]:
        return ["output = model(...).cpu()"]
