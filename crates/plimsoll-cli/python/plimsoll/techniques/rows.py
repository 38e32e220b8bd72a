"""Selects the rows of a batch that one rank computes, and gathers the rows of all ranks. Outside the model, all ranks
have the same tensors and the same gradients. Inside, each rank has its own rows, and gradients are multiplied by the
number of ranks, because `fully_shard` averages over ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import distributed


class Rows:
    """The division of a batch: rank `rank` computes `sizes[rank]` rows."""

    def __init__(self, sizes: list[int], rank: int, group: Any) -> None:
        self.sizes, self.rank, self.group = sizes, rank, group
        self.begin = sum(sizes[:rank])

    def own(self, tensor: Any) -> Any:
        """The rows of this rank."""
        return tensor.narrow(0, self.begin, self.sizes[self.rank])

    def all(self, tensor: Any) -> Any:
        """The rows of all ranks. Each rank sends as many rows as the largest rank has."""
        most = max(self.sizes)
        sent = tensor.contiguous()
        if sent.size(0) < most:
            sent = torch.cat([sent, sent.new_zeros(most - sent.size(0), *sent.shape[1:])])
        is_bool = sent.dtype == torch.bool
        sent = sent.view(torch.uint8) if is_bool else sent
        got = sent.new_empty(most * len(self.sizes), *sent.shape[1:])
        gather = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
        gather(got, sent, group=self.group)
        got = got.view(torch.bool) if is_bool else got
        if min(self.sizes) == most:
            return got
        return torch.cat([got.narrow(0, nth * most, size) for nth, size in enumerate(self.sizes)])


class Own(torch.autograd.Function):
    """Selects this rank's rows of the complete batch."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, rows: Rows) -> Any:
        ctx.rows = rows
        return rows.own(tensor).clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> tuple[Any, Any]:
        return All.apply(gradient, ctx.rows) / len(ctx.rows.sizes), None


class All(torch.autograd.Function):
    """Gathers the rows of all ranks."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, rows: Rows) -> Any:
        ctx.rows = rows
        return rows.all(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> tuple[Any, Any]:
        return Own.apply(gradient, ctx.rows) * len(ctx.rows.sizes), None


class Sum(torch.autograd.Function):
    """Adds up the ranks' losses. Each rank's loss gets the gradient of the sum, multiplied by the number of ranks."""

    @staticmethod
    def forward(ctx: Any, value: Any, rows: Rows) -> Any:
        ctx.ranks = len(rows.sizes)
        total = value.detach().clone()
        distributed.all_reduce(total, group=rows.group)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> tuple[Any, Any]:
        return gradient * ctx.ranks, None


class Lazy(torch.Tensor):
    """All ranks' rows of a tensor that a model returns in addition to its loss. The ranks exchange these rows when the
    program uses the tensor. All ranks run the same program, so they all exchange the rows at the same point.
    """

    @staticmethod
    def __new__(cls, tensor: Any, rows: Rows) -> Any:
        size = (sum(rows.sizes), *tensor.shape[1:])
        options = dict(dtype=tensor.dtype, device=tensor.device, requires_grad=False)
        return torch.Tensor._make_wrapper_subclass(cls, size, **options)

    def __init__(self, tensor: Any, rows: Rows) -> None:
        self.tensor, self.rows, self.whole = tensor, rows, None

    def compute(self) -> Any:
        """The rows of all ranks."""
        if self.whole is None:
            self.whole = All.apply(self.tensor, self.rows)
            self.tensor = None
        return self.whole

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        getter = getattr(getattr(func, "__self__", None), "__name__", "")
        name = getattr(func, "__name__", "")
        if (name == "__get__" and getter in GETTERS) or name in METADATA:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        replaced: Callable[..., Any] = lambda it: it.compute() if isinstance(it, Lazy) else it
        args, kwargs = torch.utils._pytree.tree_map(replaced, (args, kwargs or {}))
        return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        replaced: Callable[..., Any] = lambda it: it.compute() if isinstance(it, Lazy) else it
        args, kwargs = torch.utils._pytree.tree_map(replaced, (args, kwargs or {}))
        return func(*args, **kwargs)


GETTERS = {"shape", "dtype", "device", "ndim", "layout", "is_cuda", "is_cpu"}
METADATA = {"size", "dim", "numel", "nelement", "is_floating_point", "__len__", "__hash__", "get_device"}
