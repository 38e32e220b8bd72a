"""Values that are unknown, but for which there is a better guess than zero, because an operator's bounds limit them, or
because the tensor had known values before it was changed through an unknown mask. For example, `clamp(min=1)` is at
least 1, a mask may select nothing, and a random index lies between its bounds.

Reading such a value counts as reading an unknown value: the read is listed, and `--assume` replaces the value. Without
`--assume`, the program gets the bound instead of zero, so a program that runs on a GPU does not fail here. Each byte of
a shadow (shadows.py) that belongs to such a value is marked in `unsure`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .shadow import Shadows

MOST_FLOATS = 1024  # the maximum number of elements of a floating-point result
# If unknown inputs are replaced by zeros, these operators return a possible value of the result.
BOUNDED = set(
    "clamp clamp.Tensor clamp_min clamp_min.Tensor maximum add.Tensor where.self cat hardtanh clamp_ clamp_min_".split()
)
OF_INTEGERS = (
    "aten::add",
    "aten::where",
    "aten::cat",
)  # only for integers, because floating-point results decide no size
RANDOM = "random_.from randperm.generator_out"
BY_INDEX = ("aten::index_put_", "aten::_index_put_impl_")
BY_MASK = BY_INDEX + ("aten::masked_fill_", "aten::index_fill_", "aten::scatter_add_", "aten::index_add_")


def is_bounded(operator: Any) -> bool:
    """Whether the operator's result is bounded although its inputs are unknown."""
    overload = operator._overloadname
    name = operator._schema.name.removeprefix("aten::")
    return (f"{name}.{overload}" if overload not in ("", "default") else name) in BOUNDED


def may_bound(operator: Any, tensor: Any) -> bool:
    """Whether a bound is computed for a result of this size and type."""
    is_few = tensor.numel() <= MOST_FLOATS and operator._schema.name not in OF_INTEGERS
    return is_few or not tensor.is_floating_point()


def with_zeros(known: Shadows, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments on the host, with zeros for unknown values."""
    torch = known.torch

    def one(it: Any) -> Any:
        if isinstance(it, torch.Tensor):
            value = known.shadow(it)
            return torch.zeros(it.size(), dtype=it.dtype, device="cpu") if value is None else value
        return [one(part) for part in it] if isinstance(it, (list, tuple)) else it

    return [one(it) for it in args], {name: one(it) for name, it in kwargs.items()}


def of_result(known: Shadows, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
    """Gives the result of an operator with unknown inputs the values that the result would have if the inputs were
    zero, unless these values are zero as well.
    """
    if not isinstance(result, known.torch.Tensor) or not may_bound(operator, result) or not known.is_small(result):
        return
    known_args, known_kwargs = with_zeros(known, args, kwargs)
    value = known.run_on_host(operator, known_args, known_kwargs)
    if bool(value.any()):
        unsure = of_parts(known, *args) if operator._schema.name == "aten::cat" else True
        known.keep(result, value, unsure=unsure)


def of_parts(known: Shadows, parts: Any, dim: int = 0) -> Any:
    """The mask of the unsure values of joined tensors."""
    torch, masks = known.torch, []
    for it in parts:
        value, unsure = known.shadow(it), known.unsure(it) if it.is_cuda else None
        mask = torch.full(it.size(), value is None, dtype=torch.bool, device="cpu")
        masks.append(mask if unsure is None else unsure)
    return torch.cat(masks, dim)


def of_change(known: Shadows, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
    """The values of a tensor after an operator that changes it with unknown arguments, and which of them are unsure.
    None if no value of the tensor is known.
    """
    torch, tensor, name = known.torch, args[0], operator._schema.name
    before = known.shadow(tensor)
    if before is None:
        if not is_bounded(operator) or not may_bound(operator, tensor):
            return None
        known_args, known_kwargs = with_zeros(known, args, kwargs)
        value = known.run_on_host(operator, known_args, known_kwargs)
        return (value, True) if bool(value.any()) else None
    unsure = known.unsure(tensor)
    unsure = torch.zeros(tensor.size(), dtype=torch.bool, device="cpu") if unsure is None else unsure.clone()
    if name == "aten::copy_":
        return None if tensor.is_floating_point() else (torch.zeros_like(before), True)
    if name in BY_INDEX and not (len(args) > 3 and args[3]):
        places = known.on_host((args[1],), {})
        if places is not None and not places[4]:
            # It is known which positions change, but not to which values.
            indices = tuple(slice(None) if it is None else it for it in places[0][0])
            values = before.clone()
            values[indices], unsure[indices] = 0, True
            return values, unsure
    return (before.clone(), True) if name in BY_MASK else None


def random(known: Shadows, operator: Any, call: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps an operator that draws integers. Random integers lie between their bounds; a random permutation has each
    index once.
    """
    is_permutation = operator._schema.name == "aten::randperm"

    def dispatched(keys: Any, *args: Any, **kwargs: Any) -> Any:
        result = call(keys, *args, **kwargs)
        try:
            with known.quiet():
                torch, lowest = known.torch, None if is_permutation else args[1]
                if known.is_small(result) and not result.is_floating_point() and (is_permutation or lowest):
                    if is_permutation:
                        value = torch.arange(result.numel(), dtype=result.dtype, device="cpu")
                    else:
                        value = torch.full(result.size(), lowest, dtype=result.dtype, device="cpu")
                    known.keep(result, value, changed=True, unsure=True)
                else:
                    known.drop(result)
        except Exception as why:
            known.failed(operator, why)
        return result

    return dispatched
