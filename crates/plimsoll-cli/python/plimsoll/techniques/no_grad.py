"""If the program reads no gradient, runs its outermost module calls under `torch.no_grad()`, so nothing is saved for a
backward pass that never runs. The numbers are identical.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from . import context
from .inference import Inference


class NoGrad(Inference):
    """Calls models under `torch.no_grad()`."""

    name = "no-grad"
    idle = "the program keeps no graph"

    def __init__(self, value: int | None) -> None:
        super().__init__(value)
        self.places: dict[str, int] = {}  # the number of calls, by line of the program

    def around(self, root: Any, following: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not torch.is_grad_enabled() or not keeps_graph(root, (args, kwargs)):
            return following(*args, **kwargs)
        self.calls += 1
        place = context.program_line() or "the program"
        self.places[place] = self.places.get(place, 0) + 1
        with torch.no_grad():
            return following(*args, **kwargs)

    def lines(self) -> list[str]:
        return [f"with torch.no_grad():  # around {place}" for place in self.places]


def keeps_graph(root: Any, given: Any) -> bool:
    """Whether a call to a module makes an autograd graph if gradients are enabled."""
    tensors = [*root.parameters(), *(it for it in tree_leaves(given) if isinstance(it, torch.Tensor))]
    return any(it.requires_grad for it in tensors)
