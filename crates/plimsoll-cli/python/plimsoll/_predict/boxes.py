"""torchvision's `nms` (non-maximum suppression) keeps some of a model's boxes. Its kernel fills a mask, and PyTorch's
operators select by that mask. If the boxes and the scores are unknown, `nms` is assumed to keep all boxes, the most
that it can keep. If they are known, the host computes which boxes `nms` keeps.

The number of boxes that `nms` keeps is listed as a value that decides sizes, and `--assume` sets this number.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

from .shadow import Shadows


class Selection(NamedTuple):
    """The number of elements that the next selection by a mask will find, and whether this number is certain."""

    operator: str
    number: int
    is_sure: bool


def install(known: Shadows, state: Any) -> None:
    """Wraps `nms`. `state` tells the wrapper of `nonzero` (shadows.py) how many elements `nonzero` will find."""
    torch = known.torch
    try:
        operator, kernel = torch.ops.torchvision.nms.default, torch.library.get_kernel("torchvision::nms", "CUDA")
    except (RuntimeError, AttributeError, ValueError):
        return  # a torchvision without CUDA, or a PyTorch before 2.9
    library = torch.library.Library("torchvision", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library.impl("nms", keeping(known, state, operator, kernel.call_boxed), "CUDA", with_keyset=True)
    known.libraries.append(library)


def keeping(known: Shadows, state: Any, operator: Any, call: Callable[..., Any]) -> Callable[..., Any]:
    """The wrapper of `nms`."""

    def dispatched(keys: Any, boxes: Any, scores: Any, *rest: Any) -> Any:
        with known.quiet():
            kept, is_sure = kept_by(known, operator, boxes, scores, rest)
        before = getattr(state, "selection", None)
        state.selection = Selection("nms", kept.numel(), is_sure)
        try:
            result = call(keys, boxes, scores, *rest)
        finally:
            state.selection = before
        with known.quiet():
            if result.numel() == kept.numel():
                known.keep(result, kept, unsure=not is_sure)
            else:
                known.drop(result)
        return result

    return dispatched


def kept_by(known: Shadows, operator: Any, boxes: Any, scores: Any, rest: tuple[Any, ...]) -> tuple[Any, bool]:
    """The indices of the boxes that `nms` keeps, on the host, and whether they are certain."""
    found = known.on_host((boxes, scores, *rest), {})
    if found is not None and not found[4]:
        return known.run_on_host(operator, found[0], {}), True
    return known.torch.arange(boxes.size(0), device="cpu"), False
