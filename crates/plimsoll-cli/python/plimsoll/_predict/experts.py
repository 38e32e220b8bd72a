"""The routers of mixtures of experts choose by values that are not computed here. With zeros as values, all tokens
would go to the first expert, or to none. So experts are assumed to get equal shares of the tokens: row i goes to the
experts after those of row i - 1, cyclically. Values that depend on this assumption are marked (`even`). Only code whose
names mention experts counts, because a classifier's `argmax` and the `topk` of a metric also choose among a small
number.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from .shadow import Shadows

FEW = 512  # a choice among more than this is a choice of words from a vocabulary, not of experts
FEW_SINGLE = 128  # the same limit for a choice of one element, which classifiers also make
GENERATION = "transformers/generation/"
CALLERS = 12  # the number of frames whose code is searched for names of experts
EXPERTS = re.compile(
    r"expert|mixture|router|routing|rout(e|ed)(_|$)|(^|_)gat(e|es|ing)(_|$|[A-Z])|Gate$|moe(_|$)|(^|_)moe|MoE|Moe|MOE|Switch"
)

CHOSEN = "topk argmax argmin max.dim min.dim sort sort.stable argsort.stable multinomial"
SCATTERED = "scatter.src scatter.value scatter_.src scatter_.value"


def choosing(
    known: Shadows, follow: Callable[..., None], operator: Any, call: Callable[..., Any]
) -> Callable[..., Any]:
    """Wraps an operator that may choose experts: the wrapped operator returns the indices for equal shares."""
    name = operator._schema.name.removeprefix("aten::")
    is_single = name in ("argmax", "argmin", "max", "min")
    has_values = name in ("topk", "max", "min", "sort")

    def choose(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        tensor, dim = args[0], -1 if name == "multinomial" else argument(operator, "dim", args, kwargs)
        indices = result[1] if has_values else result
        if known.shadows and known.shadow(tensor) is not None and known.unsure(tensor) is None:
            follow(operator, args, kwargs, result, None, False)
        elif dim is not None and is_choice(tensor, dim, is_single) and known.is_small(indices):
            known.keep(indices, shares(known.torch, indices, tensor.size(dim), dim, is_single), even=True)
        elif name == "topk" and tensor.dim() and tensor.size(dim) <= FEW and known.is_small(indices):
            known.keep(indices, first(known.torch, indices, dim), unsure=True)

    def dispatched(keys: Any, *args: Any, **kwargs: Any) -> Any:
        result = call(keys, *args, **kwargs)
        try:
            with known.quiet():
                choose(args, kwargs, result)
        except Exception as why:
            known.failed(operator, why)
        return result

    return dispatched


def first(torch: Any, indices: Any, dim: int) -> Any:
    """The first indices of each row: those of the largest values are unknown, but they differ from each other. Among
    the words of a vocabulary, they might be a special word that ends a text.
    """
    return torch.arange(indices.size(dim), device="cpu").expand(indices.movedim(dim, -1).size()).movedim(-1, dim)


def is_choice(tensor: Any, dim: int, is_single: bool) -> bool:
    """Whether this is probably a choice of experts: a choice from a small number, for several rows, and not while text
    is generated.
    """
    if not tensor.is_floating_point() or tensor.dim() < 2:
        return False
    if not 1 < tensor.size(dim) <= (FEW_SINGLE if is_single else FEW):
        return False
    frame: FrameType | None = sys._getframe(1)
    left, speaks = CALLERS, False
    while frame is not None and left:
        if GENERATION in frame.f_code.co_filename:
            return False
        speaks = speaks or speaks_of_experts(frame.f_code)
        frame, left = frame.f_back, left - 1
    return speaks


def speaks_of_experts(code: CodeType, known: dict[CodeType, bool] = {}) -> bool:
    """Whether this code, outside PyTorch and these hooks, contains a name that is typical of a mixture of experts."""
    if code not in known:
        file = code.co_filename
        is_own = not file.startswith("<frozen") and "-packages/torch/" not in file
        names: tuple[str, ...] = (code.co_qualname if hasattr(code, "co_qualname") else code.co_name,)
        names += code.co_names + code.co_varnames + code.co_freevars
        known[code] = is_own and any(EXPERTS.search(part) for name in names for part in name.split("."))
    return known[code]


def shares(torch: Any, indices: Any, count: int, dim: int, is_single: bool) -> Any:
    """The indices for equal shares among `count` experts."""
    chosen = 1 if is_single else indices.size(dim)
    rows = torch.arange(indices.numel() // max(chosen, 1), device="cpu")[:, None]
    # A sort returns every index, so its rows differ in the first index.
    flat = (rows * (chosen if chosen < count else 1) + torch.arange(chosen, device="cpu")[None, :]) % count
    if is_single:
        return flat.view(indices.size())
    return flat.view(indices.movedim(dim, -1).size()).movedim(-1, dim)


def scattering(wrapped: Any) -> Callable[..., Any]:
    """Wraps an operator that scatters. Its result is known if the indices are known and the scattered values either
    replace all values of the tensor (the inverse of a permutation) or are the gates of chosen experts among zeros.
    """

    def scattering(known: Shadows, operator: Any, call: Callable[..., Any]) -> Callable[..., Any]:
        dispatched = wrapped(operator, call)

        def with_gates(keys: Any, *args: Any, **kwargs: Any) -> Any:
            result = dispatched(keys, *args, **kwargs)
            try:
                with known.quiet():
                    keep_scattered(known, args, kwargs, result, operator)
            except Exception as why:
                known.failed(operator, why)
            return result

        return with_gates

    return scattering


def keep_scattered(known: Shadows, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, operator: Any) -> None:
    """Keeps the values that a scatter writes, if the values and the indices are known."""
    torch, (tensor, dim, index) = known.torch, args[:3]
    if not known.shadows or known.shadow(result) is not None or not index.is_cuda:
        return
    chosen = known.shadow(index)
    if chosen is None:
        return
    entry = known.entry(index)
    is_in_place, even = operator._schema.name.endswith("_"), entry is not None and entry.even
    value, source = (argument(operator, name, args, kwargs) for name in ("value", "src"))
    if isinstance(source, torch.Tensor):
        value = known.shadow(source)
    if value is None and even:
        value = 1  # the gates of chosen experts: nonzero
    if value is None or not known.is_small(result, even):
        return
    empty = torch.zeros(result.size(), dtype=result.dtype, device="cpu")
    is_covered = empty.bool().scatter(dim, chosen, True).all()
    if is_covered or even:
        # The tensor's earlier values are overwritten, or assumed to be zero for the other experts.
        before = None if is_in_place else known.shadow(tensor)
        values = (empty if before is None else before).scatter(dim, chosen, value)
        known.keep(result, values, changed=is_in_place, even=even)


def argument(operator: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An argument by its name; None if the operator has no argument with that name."""
    for at, it in enumerate(operator._schema.arguments):
        if it.name == name:
            return kwargs.get(name, args[at] if at < len(args) else it.default_value)
    return None
