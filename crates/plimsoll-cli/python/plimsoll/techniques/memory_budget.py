# The share of activations that a compiled model keeps: the others are computed again in the backward pass, as PyTorch's compiler
# chooses them (`torch._functorch.config.activation_memory_budget`). For programs that use torch.compile. Rounding may differ.

import sys

PERCENT = 50


class MemoryBudget:
    name = "memory-budget"

    def __init__(self, value):
        self.percent = PERCENT if value is None else min(value, 100)

    def begin(self):
        import torch._functorch.config as config

        config.activation_memory_budget = self.percent / 100

    def report(self):
        counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
        differentiated = sys.modules.get("torch._functorch.partitioners") is not None
        applied = bool(counters and counters["stats"]["unique_graphs"]) and differentiated
        detail = f"{self.percent} % of the activations" if applied else "the program does not compile its training step"
        lines = [
            "import torch._functorch.config  # before the model is compiled",
            f"torch._functorch.config.activation_memory_budget = {self.percent / 100:g}",
        ]
        return dict(applied=applied, detail=detail, lines=lines if applied else [])
