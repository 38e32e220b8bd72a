"""Code that `freeze` and `lora` share: it determines which part of a model is trained, and whether that can be changed."""

from __future__ import annotations

from typing import Any

import torch

from . import context


def check(name: str, root: Any) -> None:
    """Refuses a model whose trained part cannot be changed."""
    why = context.wrapped_class(root)
    if why is None and context.is_sharded(root):
        why = "FSDP2 shards the model"
    distributed = torch.distributed
    if why is None and distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        why = "the ranks exchange the gradients of all parameters: freeze them before DDP wraps the model"
    if why is not None:
        context.refuse(name, why)


def freeze(parameters: Any) -> int:
    """Freezes these parameters. Returns how many elements were trained before."""
    found = [it for it in parameters if it.requires_grad]
    for parameter in found:
        parameter.requires_grad_(False)
    return sum(it.numel() for it in found)


def percent(root: Any, frozen: int) -> str:
    """The fraction of a model's parameters that is still trained, in words."""
    left = sum(it.numel() for it in root.parameters() if it.requires_grad)
    return f"{100 * left / max(left + frozen, 1):.2g} % of the parameters are trained"
