"""Computes a linear layer and the cross-entropy of its result in chunks of rows, so that the logits of the
complete batch are never materialized. Rounding differs, because the gradient of the weight is a sum over
chunks.

A linear layer with many outputs returns `LazyLogits`. If something other than a loss uses a layer's logits, that
layer is not chunked from then on; if no loss uses any logits, the technique is rejected.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable
from torch.utils.weak import WeakIdKeyDictionary

from . import context, each, lazy_logits, observers, roots
from .lazy_logits import LazyLogits

LEAST_CLASSES = 1024
LEAST_ELEMENTS = 1 << 20  # smaller logits are not chunked
CHUNK_BYTES = 128 << 20  # the size of a chunk's logits in f32

technique: Any = None  # the active instance
otherwise = WeakIdKeyDictionary()  # weights of layers whose result was used by other code, and the name of that use
cross_entropy = F.cross_entropy


class ChunkedLoss:
    """Computes the last linear layer and the loss of its result in chunks."""

    name = "chunked-loss"

    def __init__(self, value: int | None) -> None:
        self.rows, self.count, self.classes, self.weight = value, 0, 0, None
        self.is_functional = False

    def begin(self) -> None:
        global technique
        technique = self
        observers.listeners["backward"].append(self.backward)
        original = F.linear

        @functools.wraps(original)
        def linear(input: Any, weight: Any, bias: Any = None) -> Any:
            if torch.is_grad_enabled() and self.suits(input, weight) and not is_checkpointed():
                return lazy(input, weight, bias)
            return original(input, weight, bias)

        F.linear = linear
        for place, name in (
            (torch, "matmul"),
            (torch, "mm"),
            (torch.Tensor, "matmul"),
            (torch.Tensor, "mm"),
            (torch.Tensor, "__matmul__"),
        ):
            setattr(place, name, self.product(getattr(place, name)))

    def product(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a function that multiplies matrices, for products with a parameter that are written without a layer: `h
        @ w.t()`.
        """

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if len(args) == 2 and not kwargs and torch.is_grad_enabled() and not torch.compiler.is_compiling():
                weight, owner = as_weight(args[1])
                if owner is not None and self.suits(args[0], weight, owner) and not is_checkpointed():
                    self.is_functional = True
                    return lazy(args[0], weight, None, owner)
            return original(*args, **kwargs)

        return call

    def first(self, root: Any) -> None:
        why = context.wrapped_class(root)
        if why is None and context.is_sharded(root):
            why = "FSDP2's hooks need the logits"
        if why is not None:
            context.refuse(self.name, why)

    def suits(self, input: Any, weight: Any, owner: Any = None) -> bool:
        """Whether a linear layer with this input and weight is large enough, and its result is not known to be used by
        anything other than a loss.
        """
        if type(input) is not torch.Tensor or type(weight) not in (torch.Tensor, torch.nn.Parameter):
            return False
        if weight.dim() != 2 or weight.shape[0] < LEAST_CLASSES or input.dim() < 2 or torch.compiler.is_compiling():
            return False
        elements = input.numel() // max(input.shape[-1], 1) * weight.shape[0]
        if self.rows is None and elements < LEAST_ELEMENTS:
            return False
        if owner is not None and input.dtype != weight.dtype and not torch.is_autocast_enabled(input.device.type):
            return False
        return (weight if owner is None else owner) not in otherwise and input.is_floating_point()

    def backward(self) -> None:
        if not self.count:
            used = max(otherwise.items(), key=lambda it: it[0].shape[0], default=None)
            why = "no linear layer with many outputs feeds a cross-entropy"
            if used is not None:
                weight, (name, line) = used
                why += f"; the result of the one with {weight.shape[0]:,} outputs is used by {name}{at(line)}"
            context.refuse(self.name, why)

    def report(self) -> dict[str, Any]:
        rows = "" if self.rows is None else f", rows={self.rows}"
        if self.is_functional and not self.owners():
            # The product is in the program's own code, which has no model to name.
            return dict(applied=bool(self.count), detail=f"{self.classes:,} classes", lines=[])
        lines = [context.IMPORT, *each.model(f"plimsoll.chunked_loss(model{rows})", self.owners(), roots.kinds)]
        return dict(applied=bool(self.count), detail=f"{self.classes:,} classes", lines=lines)

    def owners(self) -> list[Any]:
        """The classes of the models that contain the chunked layer."""
        has: Callable[..., Any] = lambda root: any(it is self.weight for it in root.parameters())
        return [type(root).__name__ for root in roots.seen if has(root)]


def is_checkpointed() -> bool:
    """Whether the running code will be recomputed later. In a checkpointed block, results that are computed lazily
    would save their tensors in a different order.
    """
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return hooks is not None and getattr(hooks[0], "__module__", "") == "torch.utils.checkpoint"


def at(line: str | None) -> str:
    """` at LINE`, or nothing."""
    return f" at {line}" if line else ""


def as_weight(other: Any) -> Any:
    """The weight of a linear layer, given its transposed matrix, and the parameter of which it is a view."""
    nothing = None, None
    if type(other) not in (torch.Tensor, torch.nn.Parameter) or other.dim() != 2 or not other.requires_grad:
        return nothing
    if other.is_leaf:
        return (other.t(), other) if other.shape[1] >= LEAST_CLASSES else nothing
    base = other._base
    is_view = (
        base is not None and base.is_leaf and base.shape == other.shape[::-1] and base.stride() == other.stride()[::-1]
    )
    return (base, base) if is_view else nothing


def lazy(input: Any, weight: Any, bias: Any, owner: Any = None) -> Any:
    """The layer's result, computed only when it is needed."""
    kind = input.device.type
    compute = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    return LazyLogits(
        input, weight, bias, compute or input.dtype, compute=compute, owner=weight if owner is None else owner
    )


def used_otherwise(it: Any, name: str) -> None:
    """Called when something other than a loss uses the logits: from now on, this layer is not chunked."""
    weight = it.options["owner"]
    if technique.count and technique.weight is weight:
        line = context.program_line()
        context.refuse(technique.name, f"the logits are also used by {name}{at(line)}")
    if weight not in otherwise:
        otherwise[weight] = (name, context.program_line())


def loss(name: str, *args: Any, **kwargs: Any) -> Any:
    """Computes the loss of lazy logits in chunks. Returns NotImplemented if this is impossible."""
    bound = inspect.signature(inspect.unwrap(getattr(F, name))).bind(*args, **kwargs)
    bound.apply_defaults()
    given = bound.arguments
    it, target = given["input"], given["target"]
    is_plain = given["weight"] is None and given["size_average"] is None and given["reduce"] is None
    if not isinstance(it, LazyLogits) or isinstance(target, LazyLogits) or not is_plain:
        return NotImplemented
    if it.options["logged"] != (name == "nll_loss") or target.is_floating_point() or it.dim() < 2:
        return NotImplemented
    if given["reduction"] not in ("mean", "sum") or (it.dim() > 2 and not it.options["moved"]):
        return NotImplemented
    if it.options["owner"] in otherwise:
        return NotImplemented
    input, weight, bias = it.parts
    technique.weight = it.options["owner"]
    is_wide = torch.is_autocast_enabled(input.device.type)
    options = dict(
        compute=it.options["compute"] or input.dtype,
        dtype=torch.float32 if is_wide else it.dtype,
        ignore_index=given["ignore_index"],
        label_smoothing=given.get("label_smoothing", 0.0),
        reduction=given["reduction"],
        rows=technique.rows or max(CHUNK_BYTES // (4 * weight.shape[0]), 1),
    )
    technique.count += 1
    technique.classes = weight.shape[0]
    return Chunked.apply(input.reshape(-1, input.shape[-1]), weight, bias, target.reshape(-1), options)


# The loss functions accept lazy logits, and compute them in chunks.
lazy_logits.HANDLERS.update({name: functools.partial(loss, name) for name in ("cross_entropy", "nll_loss")})
lazy_logits.OTHER_USES.append(used_otherwise)


class Chunked(torch.autograd.Function):
    """Computes the loss in chunks. The forward pass also computes the gradients as if the gradient of the loss were 1;
    the backward pass multiplies them by that gradient.
    """

    @staticmethod
    def forward(ctx: Any, input: Any, weight: Any, bias: Any, target: Any, options: dict[str, Any]) -> Any:
        with torch.autocast(input.device.type, enabled=False):
            total, held = run(input, weight, bias, target, options, ctx.needs_input_grad)
        scale = None
        if options["reduction"] == "mean":
            scale = (target != options["ignore_index"]).sum()
            total = total / scale
        ctx.save_for_backward(*held, scale)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Any) -> tuple[Any, ...]:
        *held, scale = ctx.saved_tensors
        if scale is not None:
            gradient = gradient / scale
        return *(it if it is None else it.mul_(gradient.to(it.dtype)) for it in held), None, None


def run(input: Any, weight: Any, bias: Any, target: Any, options: dict[str, Any], needs: Any) -> tuple[Any, Any]:
    """The sum of the losses, and the gradients of input, weight and bias."""
    compute = options["compute"]
    w, b = weight.to(compute), None if bias is None else bias.to(compute)
    to_input = torch.empty_like(input) if needs[0] else None
    to_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device) if needs[1] else None
    to_bias = torch.zeros(bias.shape, dtype=torch.float32, device=bias.device) if needs[2] else None
    total = torch.zeros((), dtype=torch.float32, device=input.device)
    for begin in range(0, input.shape[0], options["rows"]):
        rows = slice(begin, begin + options["rows"])
        part = input[rows].to(compute)
        logits = lazy_logits.linear(part, w, b)
        value, slope = differentiated(logits, target[rows], options)
        del logits
        total += value
        if to_input is not None:
            torch.mm(slope, w, out=to_input[rows]) if to_input.dtype == compute else to_input[rows].copy_(slope @ w)
        if to_weight is not None:
            to_weight.addmm_(slope.t(), part) if compute == torch.float32 else to_weight.add_(slope.t() @ part)
        if to_bias is not None:
            to_bias.add_(slope.sum(0))
        del slope, part
    narrow: Callable[..., Any] = lambda it, like: it if it is None else it.to(like.dtype)
    return total.to(options["dtype"]), (to_input, narrow(to_weight, weight), narrow(to_bias, bias))


def differentiated(logits: Any, target: Any, options: dict[str, Any]) -> tuple[Any, Any]:
    """The loss of a chunk, and the gradient of its logits."""
    with torch.enable_grad():
        leaf = logits.detach().requires_grad_()
        more = dict(ignore_index=options["ignore_index"], label_smoothing=options["label_smoothing"])
        value = inspect.unwrap(cross_entropy)(leaf.to(options["dtype"]), target, reduction="sum", **more)
    return value.detach(), torch.autograd.grad(value, leaf)[0]
