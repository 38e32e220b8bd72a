"""The result of a linear layer, computed lazily: `LazyLogits` contains the layer's input and weight.

Views that keep the last dimension are applied to the input instead. A loss uses the input and the weight
(chunked_loss.py). For any other use, the result is computed in the usual way, and the functions in `OTHER_USES` are
called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

linear = F.linear  # PyTorch's own, before the patch


class LazyLogits(torch.Tensor):
    """A tensor of logits that is computed only if something other than a loss uses it."""

    @staticmethod
    def __new__(cls, input: Any, weight: Any, bias: Any, dtype: Any, **more: Any) -> Any:
        size = (*input.shape[:-1], weight.shape[0])
        if more.get("moved"):
            size = (size[0], size[-1], *size[1:-1])
        return torch.Tensor._make_wrapper_subclass(cls, size, dtype=dtype, device=input.device, requires_grad=False)

    def __init__(
        self,
        input: Any,
        weight: Any,
        bias: Any,
        dtype: Any,
        compute: Callable[..., Any] | None = None,
        moved: bool = False,
        logged: bool = False,
        owner: Any = None,
    ) -> None:
        """compute: autocast's dtype, if it was on; moved: whether classes are dimension 1; logged: whether
        log_softmax was applied
        """
        self.parts = (input, weight, bias)
        self.options = dict(compute=compute, moved=moved, logged=logged, owner=owner)
        self.computed = None

    def like(self, input: Any = None, dtype: Any = None, **changes: Any) -> LazyLogits:
        """The result of the same layer with another input, dtype or option."""
        own, weight, bias = self.parts
        dtype = plain(lambda: self.dtype) if dtype is None else dtype
        return LazyLogits(own if input is None else input, weight, bias, dtype, **{**self.options, **changes})

    def compute(self) -> Any:
        """Computes the result, so that gradients can flow through it."""
        if self.computed is None:
            input, weight, bias = self.parts
            compute, dtype = self.options["compute"], plain(lambda: self.dtype)
            if compute is not None:
                with torch.autocast(input.device.type, dtype=compute):
                    value = linear(input, weight, bias)
            else:
                value = linear(input, weight, bias)
            value = value.to(dtype)
            if self.options["logged"]:
                value = F.log_softmax(value, -1)
            self.computed = value.movedim(-1, 1) if self.options["moved"] else value
        return self.computed

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "__get__":
            getter = getattr(getattr(func, "__self__", None), "__name__", "")
            if getter in GETTERS:
                return plain(lambda: func(*args, **kwargs))
            if getter == "requires_grad":
                return any(it is not None and it.requires_grad for it in args[0].parts)
        elif name in METADATA:
            return plain(lambda: func(*args, **kwargs))
        handler = HANDLERS.get(name)
        if handler is not None:
            result = handler(*args, **kwargs)
            if result is not NotImplemented:
                return result
        note(args, kwargs, name)
        compute: Callable[..., Any] = lambda it: torch.utils._pytree.tree_map(
            lambda one: one.compute() if isinstance(one, LazyLogits) else one, it
        )
        return getattr(func, "__wrapped__", func)(*compute(args), **compute(kwargs))

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> None:
        from . import context

        context.refuse("chunked-loss", f"the logits are used by an operator that autograd does not show ({func})")


def plain(call: Callable[[], Any]) -> Any:
    """The result of `call`, which runs without `__torch_function__`."""
    with torch._C.DisableTorchFunctionSubclass():
        return call()


def note(args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> None:
    """Called when something other than a loss uses the layer's result."""
    for it in torch.utils._pytree.tree_leaves((args, kwargs)):
        if isinstance(it, LazyLogits):
            for heard in OTHER_USES:
                heard(it, name)


GETTERS = set(
    "shape dtype device ndim layout is_cuda is_cpu is_leaf is_sparse is_quantized is_meta is_nested names".split()
)
METADATA = set(
    "size dim numel nelement element_size is_floating_point is_complex __len__ get_device ndimension is_inference"
    " is_same_size __hash__ is_signed".split()
)


def view(lazy: LazyLogits, *sizes: Any) -> Any:
    """Handles `view` and `reshape`, if the last dimension is kept."""
    size: Any = sizes[0] if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes
    if isinstance(size, torch.dtype) or lazy.options["moved"] or not all(isinstance(it, int) for it in size):
        return NotImplemented
    classes, known = lazy.parts[1].shape[0], 1
    for it in size:
        known *= it if it != -1 else 1
    total = lazy.numel()
    size = [total // known if it == -1 and known else it for it in size]
    if not size or size[-1] != classes:
        return NotImplemented
    return lazy.like(lazy.parts[0].reshape(*size[:-1], lazy.parts[0].shape[-1]))


def flatten(lazy: LazyLogits, start_dim: int = 0, end_dim: int = -1) -> Any:
    """Handles `flatten`, if the last dimension is kept."""
    dim = lazy.dim()
    start, end = start_dim % dim, end_dim % dim
    if lazy.options["moved"] or end >= dim - 1:
        return NotImplemented
    return lazy.like(lazy.parts[0].flatten(start, end))


def same(lazy: LazyLogits, *args: Any, **kwargs: Any) -> Any:
    """Handles functions that have no effect on logits."""
    return lazy.like()


def to_float(lazy: LazyLogits, *args: Any, **kwargs: Any) -> Any:
    """Handles `float()`."""
    return lazy.like(dtype=torch.float32)


def to(lazy: LazyLogits, *args: Any, **kwargs: Any) -> Any:
    """Handles `to`, if it changes only the floating-point type."""
    dtype = kwargs.pop("dtype", None)
    kwargs.pop("non_blocking", None), kwargs.pop("copy", None)
    device = kwargs.pop("device", None)
    for it in args:
        if isinstance(it, torch.dtype):
            dtype = it
        elif isinstance(it, (str, torch.device, int)) and not isinstance(it, bool):
            device = it
        elif isinstance(it, torch.Tensor):
            dtype, device = it.dtype, it.device
    if kwargs or (dtype is not None and not dtype.is_floating_point):
        return NotImplemented
    if device is not None:
        device = torch.device(device)
        own = lazy.device
        if device.type != own.type or (device.index is not None and device.index != own.index):
            return NotImplemented
    return lazy.like(dtype=dtype) if dtype is not None else lazy


def index(lazy: LazyLogits, index: Any) -> Any:
    """Handles indexing that keeps all classes."""
    if lazy.options["moved"]:
        return NotImplemented
    given = index if isinstance(index, tuple) else (index,)
    consumed = 0
    for it in given:
        if it is Ellipsis:
            continue
        if isinstance(it, torch.Tensor) and it.dtype == torch.bool:
            consumed += it.dim()
        elif it is not None:
            consumed += 1
    dim = lazy.dim()
    if consumed > dim:
        return NotImplemented
    if consumed == dim or (any(it is Ellipsis for it in given) and given[-1] is not Ellipsis):
        last = given[-1]
        if not (isinstance(last, slice) and last == slice(None)):
            # `logits[..., :-1, :]` ends with all classes; anything else picks some of them.
            return NotImplemented
    return lazy.like(lazy.parts[0][index])


def transpose(lazy: LazyLogits, one: Any, other: Any) -> Any:
    """Handles `transpose`, if it moves the classes to dimension 1, or back."""
    dim = lazy.dim()
    if dim != 3 or {one % dim, other % dim} != {1, 2}:
        return NotImplemented
    return lazy.like(moved=not lazy.options["moved"])


def permute(lazy: LazyLogits, *order: Any) -> Any:
    """Handles `permute`, if it moves the classes to dimension 1."""
    order = tuple(order[0]) if len(order) == 1 and not isinstance(order[0], int) else order
    dim = lazy.dim()
    if lazy.options["moved"] or tuple(it % dim for it in order) != (0, dim - 1, *range(1, dim - 1)):
        return NotImplemented
    return lazy.like(moved=True)


def detach(lazy: LazyLogits) -> Any:
    """The logits without gradients."""
    input, weight, bias = lazy.parts
    return LazyLogits(
        input.detach(), weight.detach(), bias if bias is None else bias.detach(), lazy.dtype, **lazy.options
    )


def log_softmax(lazy: LazyLogits, dim: int | None = None, _stacklevel: Any = 3, dtype: Any = None) -> Any:
    """Handles `log_softmax` over the classes."""
    classes = 1 if lazy.options["moved"] else lazy.dim() - 1
    if dim is None or lazy.options["logged"] or dim % lazy.dim() != classes:
        return NotImplemented
    is_autocast = torch.is_autocast_enabled(lazy.device.type)
    dtype = torch.float32 if dtype is None and is_autocast else dtype
    return lazy.like(dtype=dtype, logged=True)


def cat(tensors: Any, dim: int = 0) -> Any:
    """Handles `cat` of rows from the same layer."""
    first = tensors[0]
    # The owner comes first, so that options that contain tensors are compared only if it is the same.
    same_layer: Callable[..., Any] = lambda it: (
        it.options["owner"] is first.options["owner"] and it.options == first.options
    )
    if not all(isinstance(it, LazyLogits) and same_layer(it) for it in tensors):
        return NotImplemented
    if dim != 0 or first.options["moved"] or first.dim() < 2:
        return NotImplemented
    return first.like(torch.cat([it.parts[0] for it in tensors]))


HANDLERS: dict[str, Callable[..., Any]] = dict(
    view=view, reshape=view, flatten=flatten, contiguous=same, float=to_float, to=to, __getitem__=index,
    transpose=transpose, permute=permute, detach=detach, log_softmax=log_softmax, cat=cat,
)  # fmt: skip
# Functions that are called when a function other than a loss uses a layer's result, with the result and the function's
# name.
OTHER_USES: list[Callable[[LazyLogits, str], None]] = []
