"""Sets the fraction of activations that a compiled model keeps: PyTorch's compiler chooses which activations it
recomputes in the backward pass (`torch._functorch.config.activation_memory_budget`). For programs that use
torch.compile. Rounding may differ.
"""

from __future__ import annotations

import sys
from typing import Any

PERCENT = 50


class MemoryBudget:
    """Sets the memory budget of the program's own torch.compile."""

    name = "memory-budget"

    def __init__(self, value: int | None) -> None:
        self.percent = PERCENT if value is None else min(value, 100)

    def begin(self) -> None:
        import torch._functorch.config as config

        config.activation_memory_budget = self.percent / 100

    def report(self) -> dict[str, Any]:
        applied = has_compiled()
        detail = f"{self.percent} % of the activations" if applied else "the program does not compile its training step"
        return dict(applied=applied, detail=detail, lines=setting(self.percent) if applied else [])


def has_compiled() -> bool:
    """Whether a step with a backward pass was compiled."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    differentiated = sys.modules.get("torch._functorch.partitioners") is not None
    return bool(counters and counters["stats"]["unique_graphs"]) and differentiated


def setting(percent: int) -> list[str]:
    """The code that sets this percentage."""
    return [
        "import torch._functorch.config  # before the model is compiled",
        f"torch._functorch.config.activation_memory_budget = {percent / 100:g}",
    ]
