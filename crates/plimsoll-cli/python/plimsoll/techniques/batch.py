"""Changes the batch of an unmodified program, for the runs in which `plan` searches for the largest batch. It is not a
technique of `--with`.

The batch size is the first dimension of the first tensor passed to the first outermost module call. There are two ways
to change the batch size, which `plan` tries in this order:

- `tensors`: tensors with that many rows get more or fewer rows where the program creates them (`torch.randn` and
  others, outside constructors) or moves them to a GPU.
- `inputs`: the same, but for the arguments of outermost module calls and of `generate`. The targets of losses get as
  many rows as their inputs.

A run counts only if the model really got a batch of the requested size. The new rows are copies: on the simulated GPU
(plimsoll-standin), values do not matter.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from ..frames import is_library, of_program
from . import batch_source, context, observers

FACTORIES = "randn rand randint zeros ones empty full arange tensor as_tensor from_numpy normal randperm".split()
MOVES = "to cuda".split()
MOST = 3  # the maximum number of places to name


class Batch:
    """Gives the model a batch of a different size."""

    name = "batch"
    serves = True

    def __init__(self, value: dict[str, Any]) -> None:
        self.rows, self.of, self.way = value["rows"], value["of"], value["way"]  # if `rows` is 0, nothing changes
        self.seen: int | None = None  # the first model call's batch
        self.is_called = self.is_generating = False
        self.places: dict[int, list[str]] = {}  # by rows: where such tensors are made or moved
        # By rows: the numbers in the source that set them, or why there is none. By line, so that each is looked for once.
        self.numbers: dict[int, dict[Any, batch_source.Number | str]] = {}

    def begin(self) -> None:
        for name in FACTORIES:
            if hasattr(torch, name):
                setattr(torch, name, self.made(getattr(torch, name)))
        for name in MOVES:
            setattr(torch.Tensor, name, self.moved(getattr(torch.Tensor, name)))
        if self.way == "inputs":
            self.follow_losses()
        mixin = getattr(sys.modules.get("transformers.generation.utils"), "GenerationMixin", None)
        if mixin is not None:
            mixin.generate = self.generating(mixin.generate)

    def made(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a function that creates tensors. Only calls from the program's own lines are changed."""

        @functools.wraps(original)
        def make(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            frame = sys._getframe(1)
            if is_library(frame.f_code.co_filename) or is_constructing(frame):
                return result
            if not self.rows and isinstance(result, torch.Tensor) and result.dim() and not result.requires_grad:
                known, place = self.numbers.setdefault(result.size(0), {}), (frame.f_code, frame.f_lasti)
                if place not in known and len(known) < batch_source.MOST:
                    known[place] = batch_source.numbers(frame, result.size(0))
            return self.changed(result)

        return make

    def moved(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a method that moves a tensor."""

        @functools.wraps(original)
        def move(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(tensor, *args, **kwargs)
            is_data = tensor.is_cpu and not result.is_cpu and not observers.moving
            return self.changed(result) if is_data else result

        return move

    def changed(self, tensor: Any) -> Any:
        """A tensor with the requested number of rows, if it is a batch."""
        if not isinstance(tensor, torch.Tensor) or not tensor.dim() or tensor.requires_grad:
            return tensor
        if not self.rows:
            place = context.program_line()
            known = self.places.setdefault(tensor.size(0), [])
            if place is not None and place not in known and len(known) < MOST:
                known.append(place)
            return tensor
        return self.with_rows(tensor) if self.way == "tensors" else tensor

    def with_rows(self, value: Any) -> Any:
        """A batch with the requested number of rows; other values are returned unchanged."""
        if not isinstance(value, torch.Tensor) or isinstance(value, torch.nn.Parameter):
            return value
        if not value.dim() or value.size(0) != self.of or self.of == self.rows:
            return value
        if self.rows < self.of:
            return value[: self.rows].clone()
        whole, rest = divmod(self.rows, self.of)
        return torch.cat([value] * whole + ([value[:rest]] if rest else []))

    def around(self, root: Any, following: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.is_called = True
        if self.rows and self.way == "inputs" and not self.is_generating:
            args, kwargs = tree_map(self.with_rows, (args, kwargs))
        if self.seen is None:
            tensors = (it for it in tree_leaves((args, kwargs)) if isinstance(it, torch.Tensor) and it.dim())
            self.seen = next((it.size(0) for it in tensors), None)
        return following(*args, **kwargs)

    def generating(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps `generate` of transformers, which calls the model with tensors that it creates itself."""

        @functools.wraps(original)
        def generate(model: Any, *args: Any, **kwargs: Any) -> Any:
            if self.rows and self.way == "inputs":
                args, kwargs = tree_map(self.with_rows, (args, kwargs))
            self.is_generating = True
            try:
                return original(model, *args, **kwargs)
            finally:
                self.is_generating = False

        return generate

    def follow_losses(self) -> None:
        """Gives the target of a loss as many rows as its input, if the model's batch was changed."""
        place = torch.nn.functional
        for name in observers.LOSSES:
            original = getattr(place, name, None)
            if original is not None:
                setattr(place, name, self.following(original))

    def following(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def loss(input: Any, target: Any = None, *args: Any, **kwargs: Any) -> Any:
            if isinstance(input, torch.Tensor) and isinstance(target, torch.Tensor) and input.dim() and target.dim():
                rows = input.size(0)
                if rows != target.size(0) and rows * self.of == target.size(0) * self.rows:
                    times = -(-rows // target.size(0))
                    target = torch.cat([target] * times)[:rows]
            return original(input, target, *args, **kwargs) if target is not None else original(input, *args, **kwargs)

        return loss

    def report(self) -> dict[str, Any]:
        if self.seen is None:
            detail = "the model is called without a tensor" if self.is_called else "no module was called"
            return dict(applied=False, detail=detail, lines=[])
        places = self.places.get(self.seen, [])
        found = list(self.numbers.get(self.seen, {}).values())
        numbers = [it._asdict() for it in dict.fromkeys(it for it in found if not isinstance(it, str))]
        why = next((it for it in found if isinstance(it, str)), "" if found else "no line of the loop makes it")
        return dict(applied=True, detail="", lines=[], batch=self.seen, places=places, numbers=numbers, unknown=why)


def is_constructing(frame: Any) -> bool:
    """Whether the program is in a constructor, such as a module's, whose tensors are not batches."""
    return any(it.f_code.co_name == "__init__" for it in of_program(frame))
