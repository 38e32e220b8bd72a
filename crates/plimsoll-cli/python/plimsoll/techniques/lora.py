"""LoRA: freezes the model, and trains a product of two small matrices that is added to the result of each linear layer
in the repeated blocks (in the whole model, if it has no blocks). Changes which parameters are trained.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from . import blocks, context, observers, trained

RANK = 8
SCALE = 2.0  # alpha / rank, as in the usual settings (alpha = 2 * rank)


class Lora:
    """Low-rank adapters."""

    name = "lora"

    def __init__(self, value: int | None) -> None:
        self.number = value or RANK
        self.details: list[str] = []
        self.lines: list[str] = []

    def first(self, root: Any) -> None:
        trained.check(self.name, root)
        found = linear_layers(root)
        if not found:
            context.refuse(self.name, "the model has no linear layer (torch.nn.Linear)")
        own = [it for it in root.parameters() if it.requires_grad]
        frozen = trained.freeze(own)
        added = [parameter for _, layer in found for parameter in self.add(layer)]
        known = {id(it) for it in own}
        for optimizer in list(observers.optimizers):
            groups = (it for it in optimizer.param_groups if any(id(one) in known for one in it["params"]))
            group = next(groups, None)
            if group is not None:
                group["params"] += added
        self.details.append(f"rank {self.number} on {len(found)} linear layers: {trained.percent(root, frozen)}")
        names = sorted({path.rpartition(".")[2] for path, _ in found})
        target = repr(names) if not any(it.isdecimal() for it in names) else '"all-linear"'
        self.lines += [
            "from peft import LoraConfig, get_peft_model  # pip install peft",
            f"config = LoraConfig(r={self.number}, lora_alpha={round(SCALE * self.number)}, target_modules={target})",
            "model = get_peft_model(model, config)  # before the optimizer is made",
        ]

    def add(self, layer: Any) -> list[Any]:
        """Adds an adapter to a layer. Returns the adapter's parameters."""
        weight, original = layer.weight, layer.forward
        size_out, size_in = weight.shape if isinstance(layer, torch.nn.Linear) else weight.shape[::-1]
        down = torch.nn.Parameter(weight.new_empty(self.number, size_in))
        up = torch.nn.Parameter(weight.new_zeros(size_out, self.number))
        torch.nn.init.kaiming_uniform_(down, a=math.sqrt(5))
        layer.register_parameter("lora_down", down)
        layer.register_parameter("lora_up", up)
        layer.forward = adapted(original, down, up)
        return [down, up]

    def report(self) -> dict[str, Any]:
        if not self.details:
            return dict(applied=False, detail=context.untrained(), lines=[])
        return dict(applied=True, detail="; ".join(self.details), lines=self.lines)


def adapted(original: Callable[..., Any], down: Any, up: Any) -> Callable[..., Any]:
    """The forward function of a layer with an adapter."""

    def forward(input: Any) -> Any:
        return original(input) + functional.linear(functional.linear(input, down), up) * SCALE

    return forward


def linear_layers(root: Any) -> list[tuple[str, Any]]:
    """The linear layers of the repeated blocks; without blocks, those of the model. The output layer of
    `MultiheadAttention` is left out: the module does not call this layer, but reads its weight.
    """
    found = [
        (path, it)
        for path, it in root.named_modules()
        if type(it) is torch.nn.Linear or (type(it).__name__ == "Conv1D" and it.weight.dim() == 2)
    ]
    inside = {it for _, block in blocks.find(root) for it in block.modules()}
    return [(path, it) for path, it in found if it in inside] or found
