"""Compiles the model with torch.compile, and keeps only a part of the activations: the compiler chooses which
activations it recomputes in the backward pass. For programs that do not compile the model themselves (memory_budget.py
is for programs that do). Rounding differs, and dropout draws other masks.
"""

from __future__ import annotations

from typing import Any

import torch

from . import context, roots
from .memory_budget import MemoryBudget, has_compiled, setting


class Compile(MemoryBudget):
    """Compiles each model with torch.compile."""

    name = "compile"

    def __init__(self, value: int | None) -> None:
        super().__init__(value)
        self.count = 0

    def first(self, root: Any) -> None:
        why = "the program compiles its model itself (use memory-budget)" if context.wrapped_class(root) else None
        if why is None and context.is_sharded(root):
            why = "FSDP2 shards the model"
        if why is None and any(isinstance(it, torch.jit.ScriptModule) for it in root.modules()):
            why = "a part of the model is compiled by TorchScript"
        if why is not None:
            context.refuse(self.name, why)
        root.compile()
        self.count += 1

    def report(self) -> dict[str, Any]:
        if not self.count or not has_compiled():
            return dict(applied=False, detail=context.untrained(), lines=[])
        lines = [*setting(self.percent), "model.compile()"]
        if len(roots.kinds) > 1:
            lines[-1] += f"  # each of {', '.join(roots.kinds)}"
        return dict(applied=True, detail=f"with {self.percent} % of the activations", lines=lines)
