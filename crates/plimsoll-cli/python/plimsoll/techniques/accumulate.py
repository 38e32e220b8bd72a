"""Accumulates gradients inside the outermost module call: each part of the batch runs forward and then backward
immediately, if the call returns the loss. Rounding differs, and dropout draws other masks.

The gradients of the parts are added up in buffers. When the program calls `backward`, the sums are multiplied by the
gradient of the loss and added to the parameters' gradients.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

from . import checkpoint, context, each, parts, roots


class Finished(torch.autograd.Function):
    """The loss of the complete batch. Its backward pass only passes on gradients that are already known."""

    @staticmethod
    def forward(ctx: Any, anchor: Any, loss: Any, held: Any) -> Any:
        ctx.held = held
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> tuple[Any, Any, Any]:
        held, ctx.held = ctx.held, None
        if held is None:
            raise RuntimeError("plimsoll: accumulate: the program runs the backward pass twice")
        for parameter, known in held:
            known.mul_(gradient.to(known.dtype))
            parameter.grad = known if parameter.grad is None else parameter.grad.add_(known)
        return torch.zeros_like(gradient), None, None


class Accumulate:
    """Accumulates the gradients of a batch over its parts."""

    name = "accumulate"

    def __init__(self, value: int) -> None:
        self.number, self.count, self.small = value, 0, None
        # The classes of the models that the technique acted on.
        self.kinds: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()

    def first(self, root: Any) -> None:
        parts.check(self.name, root)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            context.refuse(self.name, "DDP averages gradients during the backward pass")

    def around(self, root: Any, following: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        checkpoint.without_cache(root, kwargs)
        cut = parts.Parts(self.name, self.number, args, kwargs)
        if len(cut.sizes) < 2:
            self.small = cut.batch
            return following(*args, **kwargs)
        if any(isinstance(it, torch.Tensor) and it.requires_grad for it in cut.leaves):
            context.refuse(self.name, "the model's input needs a gradient")
        parameters = [it for it in root.parameters() if it.requires_grad]
        sums: dict[int, Any] = {}
        results: list[Any] = []
        weights: list[Any] = []
        buffers = parts.Buffers(self.name, root)
        with parts.Reduction(self.name, cut.sizes) as reduction:
            for nth, (its_args, its_kwargs) in enumerate(cut):
                result = following(*its_args, **its_kwargs)
                buffers.check()
                if not parts.has_loss(result):
                    context.refuse(self.name, "the model returns no loss (use split instead)")
                known = reduction.weights(cut.sizes[: nth + 1], True)
                weight = None if known is None else known[-1]
                weights.append(weight)
                self.run_backward(result, weight, parameters, sums)
                results.append(tree_map(detached, result))
                del result
        if weights[0] is not None:
            total = sum(weights[1:], weights[0])
            for known in sums.values():
                known.div_(total)
        self.count += 1
        self.kinds[root] = type(root).__name__
        held = [(it, sums[nth]) for nth, it in enumerate(parameters) if nth in sums]
        whole = cut.together(results, None if weights[0] is None else weights, parts.joined)
        anchor = torch.zeros((), device=held[0][0].device, requires_grad=True) if held else None
        finish: Callable[..., Any] = lambda it: Finished.apply(anchor, it, held) if is_loss(it) else it
        return tree_map(finish, whole)

    def run_backward(self, result: Any, weight: Any, parameters: Any, sums: Any) -> None:
        """Runs the backward pass of one part, and adds the gradients to `sums`."""
        losses = [it for it in tree_flatten(result)[0] if is_loss(it) and it.requires_grad]
        if len(losses) > 1:
            context.refuse(self.name, "the model returns several losses")
        loss = losses[0] if weight is None else losses[0] * weight
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        places = set()
        for nth, gradient in enumerate(gradients):
            if gradient is None:
                continue
            if nth in sums:
                sums[nth].add_(gradient)
                continue
            # Two parameters may share one gradient, and an expanded tensor cannot be added to.
            is_own = gradient.data_ptr() not in places and 0 not in gradient.stride()
            places.add(gradient.data_ptr())
            sums[nth] = gradient if is_own else gradient.clone(memory_format=torch.contiguous_format)

    def report(self) -> dict[str, Any]:
        if not self.count:
            return dict(applied=False, detail=parts.idle(self.small), lines=[])
        lines = [
            context.IMPORT,
            *each.model(f"plimsoll.accumulate(model, {self.number})", list(self.kinds.values()), roots.kinds),
        ]
        return dict(applied=True, detail=f"{self.number} parts", lines=lines)


def is_loss(value: Any) -> bool:
    """Whether a value in the model's result is a loss."""
    return isinstance(value, torch.Tensor) and value.dim() == 0 and value.is_floating_point()


def detached(value: Any) -> Any:
    """A tensor without its graph; other values unchanged."""
    return value.detach() if isinstance(value, torch.Tensor) else value
