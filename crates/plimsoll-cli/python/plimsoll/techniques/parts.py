"""Splits the arguments of a model's call along the batch, and joins the results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..frames import is_library
from . import again, context, observers

COUNTED = ("cross_entropy", "nll_loss")
COMPARES = "compares the rows of the batch with each other"


class Parts:
    """The arguments of a call, split into parts of the batch."""

    def __init__(self, name: str, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.name = name
        leaves, self.structure = tree_flatten((args, kwargs))
        tensors = [it for it in leaves if isinstance(it, torch.Tensor) and it.dim()]
        if not tensors:
            context.refuse(name, "the model is called without a tensor")
        self.batch = tensors[0].size(0)
        self.check_indices(tensors)
        self.leaves = leaves
        number = min(number, self.batch)
        self.sizes = [self.batch // number + (nth < self.batch % number) for nth in range(number)]

    def check_indices(self, tensors: Any) -> None:
        """Rejects indices that are passed together with a batch. For example, the node indices of a graph do not belong
        to one part of the batch, and would be out of range in a part.
        """
        for it in tensors:
            is_whole = not (it.is_floating_point() or it.is_complex() or it.dtype == torch.bool)
            if is_whole and it.size(0) not in (1, *tensors[0].shape):
                why = f"{it.size(0):,} integers are passed with a batch of {self.batch:,} rows, and may be indices into it"
                context.refuse(self.name, why)

    def __iter__(self) -> Iterator[Any]:
        begin = 0
        for size in self.sizes:
            cut: Callable[..., Any] = lambda it: it[begin : begin + size] if self.is_cut(it) else it
            yield tree_unflatten([cut(it) for it in self.leaves], self.structure)
            begin += size

    def is_cut(self, leaf: Any) -> bool:
        """Whether a tensor is split along its first dimension."""
        return isinstance(leaf, torch.Tensor) and leaf.dim() > 0 and leaf.size(0) == self.batch

    def together(self, results: Any, weights: Any, join: Callable[..., Any]) -> Any:
        """The complete result from the results of the parts; `join` combines the losses of the parts into one loss."""
        flat = [tree_flatten(it) for it in results]
        first, structure = flat[0]
        if any(len(leaves) != len(first) for leaves, _ in flat):
            context.refuse(self.name, "the model's results differ in structure between parts of the batch")
        columns = zip(*(leaves for leaves, _ in flat))
        return tree_unflatten([self.one(column, weights, join) for column in columns], structure)

    def one(self, values: Any, weights: Any, join: Callable[..., Any]) -> Any:
        """One tensor or other value of the complete result, from the values that the parts returned in its place."""
        value = values[0]
        if not isinstance(value, torch.Tensor):
            if value is None or isinstance(value, (bool, int, float, str)):
                return value
            context.refuse(self.name, f"the model returns a {type(value).__name__}, which cannot be concatenated")
        if value.dim() == 0:
            return join(values, weights)
        if any(it.size(0) != size for it, size in zip(values, self.sizes)):
            context.refuse(self.name, "the model returns a tensor whose first dimension is not the batch")
        if all(it.dim() == 2 and it.size(1) == size for it, size in zip(values, self.sizes)):
            context.refuse(self.name, f"the model {COMPARES}")
        return torch.cat(values)


class Buffers:
    """The buffers of a model whose batch is split. If the first part changes a buffer, every other part would change it
    again.
    """

    def __init__(self, name: str, root: Any) -> None:
        self.name, self.root = name, root
        self.before: list[tuple[str, Any, int]] | None = again.versions(root)

    def check(self) -> None:
        """Called after the first part: rejects a model that has changed a buffer."""
        if self.before is not None:
            changed = again.changed_since(self.root, self.before)
            if changed is not None:
                context.refuse(self.name, f"each part of the batch would change the model's buffer {changed}")
            self.before = None


class Reduction:
    """Records how losses inside the call are reduced, while the parts run."""

    def __init__(self, name: str, sizes: list[int]) -> None:
        self.name = name
        self.kinds: set[Any] = set()
        self.counts: list[Any] = []
        self.sizes = set(sizes)

    def __enter__(self) -> Any:
        observers.listeners["loss"].append(self.on_loss)
        return self

    def __exit__(self, *failure: object) -> None:
        observers.listeners["loss"].remove(self.on_loss)

    def on_loss(self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Called when the model calls a loss function."""
        import inspect

        bound = inspect.signature(function).bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        first = next(iter(given.values()), None)
        if (
            isinstance(first, torch.Tensor)
            and first.dim() == 2
            and first.size(0) == first.size(1)
            and first.size(0) in self.sizes
        ):
            # In a contrastive loss, the other rows of the batch are the other classes.
            context.refuse(self.name, f"the model's {name} {COMPARES}")
        self.kinds.add(given.get("reduction", "mean"))
        target = given.get("target", None)
        if name in COUNTED and given.get("reduction") == "mean" and isinstance(target, torch.Tensor):
            if given.get("weight") is None and not target.is_floating_point():
                self.counts.append((target != given.get("ignore_index", -100)).sum())

    def weights(self, sizes: list[int], has_loss: bool) -> Any:
        """The weight of each part in a loss; None if losses are sums."""
        if not has_loss:
            return sizes
        if self.kinds == {"sum"}:
            return None
        if self.kinds != {"mean"}:
            found = ", ".join(sorted(self.kinds)) or "no PyTorch loss function"
            context.refuse(
                self.name, f"the model returns a loss, and it is unknown how to add the losses of parts ({found})"
            )
        return self.counts if len(self.counts) == len(sizes) else sizes


def joined(values: Any, weights: Any) -> Any:
    """The loss of the complete batch, from the losses of its parts."""
    if weights is None:
        return sum(values[1:], values[0])
    total = sum(weights[1:], weights[0])
    return sum(value * (weight / total) for value, weight in zip(values, weights))


def check(name: str, root: Any) -> None:
    """Rejects a model that makes the parts of a batch depend on each other."""
    why = context.wrapped_class(root)
    if why is None and context.is_sharded(root):
        why = "FSDP2 shards the model"
    why = why or normed(root) or hooked(root)
    if why is not None:
        context.refuse(name, why)


def normed(root: Any) -> str | None:
    """The reason why the batch cannot be split, if the model has batch normalization; otherwise None."""
    norms = [path for path, it in root.named_modules() if isinstance(it, torch.nn.modules.batchnorm._BatchNorm)]
    return f"batch normalization depends on the whole batch ({norms[0]})" if norms else None


def hooked(root: Any) -> str | None:
    """The reason why the batch cannot be split, if the program has registered a hook on a module that would see parts
    of the batch; otherwise None.
    """
    for path, module in root.named_modules():
        for hook in [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]:
            hook = getattr(hook, "func", hook)  # for a functools.partial
            code = getattr(getattr(hook, "__func__", hook), "__code__", None) or getattr(
                type(hook).__call__, "__code__", None
            )
            if code is not None and not is_library(code.co_filename):
                where = f"{code.co_filename}:{code.co_firstlineno}"
                return f"the program's hook on {path or 'the model'} would see parts of the batch ({where})"
    return None


def idle(batch: int | None) -> str:
    """The reason why no call was split."""
    return context.untrained() if batch is None else f"the batch size is {batch}"


def has_loss(result: Any) -> bool:
    """Whether the result contains a loss."""
    leaves, _ = tree_flatten(result)
    return any(isinstance(it, torch.Tensor) and it.dim() == 0 and it.requires_grad for it in leaves)
