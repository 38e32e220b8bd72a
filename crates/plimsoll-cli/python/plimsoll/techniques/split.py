"""Splits the batch inside the outermost module call: each part is checkpointed as a unit, and the results are
joined. Rounding differs, and dropout draws other masks.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import Any

from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import checkpoint

from . import again, context, each, parts, roots
from . import checkpoint as recomputing


class Split:
    """Runs the batch in parts inside the model."""

    name = "split"
    serves = True  # also applies without gradients; then no part is recomputed

    def __init__(self, value: int) -> None:
        self.number, self.count, self.small = value, 0, None
        # The classes of the models that the technique acted on.
        self.kinds: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()

    def first(self, root: Any) -> None:
        parts.check(self.name, root)

    def around(self, root: Any, following: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        recomputing.without_cache(root, kwargs)
        cut = parts.Parts(self.name, self.number, args, kwargs)
        if len(cut.sizes) < 2:
            self.small = cut.batch
            return following(*args, **kwargs)
        results, buffers = [], parts.Buffers(self.name, root)
        with parts.Reduction(self.name, cut.sizes) as reduction:
            for its_args, its_kwargs in cut:
                results.append(computed_again(root, following, its_args, its_kwargs))
                buffers.check()
        self.count += 1
        self.kinds[root] = type(root).__name__
        weights = reduction.weights(cut.sizes, parts.has_loss(results[0]))
        return cut.together(results, weights, parts.joined)

    def report(self) -> dict[str, Any]:
        if not self.count:
            return dict(applied=False, detail=parts.idle(self.small), lines=[])
        lines = [
            context.IMPORT,
            *each.model(f"plimsoll.split(model, {self.number})", list(self.kinds.values()), roots.kinds),
        ]
        return dict(applied=True, detail=f"{self.number} parts", lines=lines)


def computed_again(root: Any, following: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs one part, whose activations are recomputed in the backward pass, and returns its result."""
    leaves, structure = tree_flatten((args, kwargs))

    def run(*leaves: Any) -> Any:
        args, kwargs = tree_unflatten(leaves, structure)
        return following(*args, **kwargs)

    members = again.Members(again.members(root))
    return checkpoint(run, *leaves, use_reentrant=False, context_fn=lambda: (contextlib.nullcontext(), members))
