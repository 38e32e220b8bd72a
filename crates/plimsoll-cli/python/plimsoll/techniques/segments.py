"""Treats consecutive blocks of a model as segments. Among the tensors that a segment's blocks save for the backward
pass, only the inputs from outside the segment are kept. When the backward pass first needs a tensor of the segment,
all its blocks are recomputed, in order.

The model itself calls each block. If an argument of a block is an unchanged result of an earlier block of the segment,
it is recomputed. All other arguments are kept, so the model may do anything between its blocks.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import get_device_states, set_device_states

from . import again

MARK = "_plimsoll_segment"  # attribute of a block: the numbers of its segment and of the block
KINDS = ("cuda", "cpu")


class Inputs(torch.autograd.Function):
    """Saves tensors as an operator does, so that saved-tensor hooks and the check for in-place changes apply."""

    @staticmethod
    def forward(ctx: Any, handle: Any, *tensors: Any) -> Any:
        ctx.save_for_backward(*tensors)
        return torch.empty(0)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise AssertionError("nothing is computed from it")


class Done(Exception):
    """Raised when all saved tensors are restored, so that the rest of the last block does not run."""


class Saved:
    """A tensor that a block saved. It is empty until the segment is recomputed."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.tensor: Any = None

    def take(self) -> Any:
        """Returns the tensor, and drops it here: only one operation needs it."""
        if self.tensor is None:
            self.segment.compute()
        if self.tensor is None:
            raise RuntimeError("a block of the model saved fewer tensors when it was recomputed")
        tensor, self.tensor = self.tensor, None
        return tensor


class Surroundings:
    """The state of PyTorch's generators and of autocast when a block is called."""

    def __init__(self, tensors: list[Any]) -> None:
        self.host = torch.get_rng_state()
        self.devices, self.states = get_device_states(*tensors)
        self.autocast = [(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in KINDS]
        self.caches = torch.is_autocast_cache_enabled()

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        """Restores the state for the recomputation."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng(self.devices))
            torch.set_rng_state(self.host)
            set_device_states(self.devices, self.states)
            for kind, is_enabled, dtype in self.autocast:
                stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=is_enabled, cache_enabled=self.caches))
            yield


class Call:
    """One call to a block in a segment."""

    def __init__(self, block: Any, function: Callable[..., Any], state: Any) -> None:
        self.block, self.function, self.state = block, function, state
        self.saved: list[weakref.ref[Saved]] = []  # in the order of saving
        self.leaves: list[Any] = []  # the arguments, with tensors replaced by their index in `kept` or in the results
        self.structure: Any = None
        self.kept: Any = None  # a tensor whose autograd node keeps the inputs from outside the segment
        self.surroundings: Any = None

    def first(self, segment: Segment, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs the first computation."""
        leaves, self.structure = tree_flatten((args, kwargs))
        kept: list[Any] = []
        for leaf in leaves:
            place: Made | Kept | None = segment.made(leaf)
            if place is None and isinstance(leaf, torch.Tensor):
                place = Kept(len(kept), leaf.requires_grad)
                kept.append(leaf.detach())  # without its graph, which may keep this segment alive
            self.leaves.append(leaf if place is None else place)
        self.kept = Inputs.apply(torch.empty(0, requires_grad=True), *kept)
        self.surroundings = Surroundings([it for it in leaves if isinstance(it, torch.Tensor)])

        def pack(tensor: Any) -> Saved:
            holder = Saved(segment)
            self.saved.append(weakref.ref(holder))
            return holder

        with torch.autograd.graph.saved_tensors_hooks(pack, Saved.take):
            return self.function(self.block, *args, **kwargs)

    def again(self, results: list[list[Any]], is_last: bool) -> Any:
        """Runs the recomputation, which restores the saved tensors."""
        kept = self.kept.grad_fn.saved_tensors

        def found(leaf: Any) -> Any:
            if isinstance(leaf, Kept):
                return kept[leaf.place].detach().requires_grad_(leaf.requires_grad)
            if isinstance(leaf, Made):
                result = results[leaf.call][leaf.place]
                return result.detach().requires_grad_(result.requires_grad)
            return leaf

        args, kwargs = tree_unflatten([found(it) for it in self.leaves], self.structure)
        count = 0

        def pack(tensor: Any) -> Any:
            nonlocal count
            holder = self.saved[count]() if count < len(self.saved) else None
            tensor = tensor.detach() if tensor.requires_grad else tensor
            if holder is not None:
                holder.tensor = tensor
            count += 1
            if is_last and count == len(self.saved):
                raise Done
            return tensor

        hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
        with self.surroundings.again(), again.Again(self.block, self.state), torch.enable_grad(), hooks:
            return self.function(self.block, *args, **kwargs)


class Kept:
    """An argument that is kept: its index among the arguments that its call keeps."""

    def __init__(self, place: int, requires_grad: bool) -> None:
        self.place, self.requires_grad = place, requires_grad


class Made:
    """An argument that is recomputed: the call in the segment, and the index in its result."""

    def __init__(self, call: int, place: int) -> None:
        self.call, self.place = call, place


class Segment:
    """The block calls of one segment in one forward pass. Their saved tensors keep it alive."""

    def __init__(self) -> None:
        self.number, self.block = -1, -1  # the number of the segment, and of its last block
        self.calls: list[Call] = []
        self.results: dict[int, tuple[weakref.ref[Any], int, Made]] = {}  # by id: the tensor, its version, its origin

    def made(self, leaf: Any) -> Made | None:
        """Where an argument was computed in this segment; None if it was not."""
        if not isinstance(leaf, torch.Tensor) or id(leaf) not in self.results:
            return None
        result, version, place = self.results[id(leaf)]
        return place if leaf._version == version and result() is leaf else None

    def call(
        self, block: Any, function: Callable[..., Any], state: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Calls a block whose saved tensors are recomputed later."""
        call = Call(block, function, state)
        result = call.first(self, args, kwargs)
        for place, leaf in enumerate(tree_flatten(result)[0]):
            if isinstance(leaf, torch.Tensor):
                self.results[id(leaf)] = weakref.ref(leaf), leaf._version, Made(len(self.calls), place)
        self.calls.append(call)
        return result

    def compute(self) -> None:
        """Recomputes all blocks of the segment."""
        results: list[list[Any]] = []
        last = max(nth for nth, call in enumerate(self.calls) if call.saved)
        with contextlib.suppress(Done):
            for nth, call in enumerate(self.calls[: last + 1]):
                results.append(tree_flatten(call.again(results, nth == last))[0])


def marked(block: Any) -> bool:
    """Whether a block is in a segment."""
    return MARK in block.__dict__


def mark(blocks: list[Any], number: int) -> None:
    """Divides these blocks into `number` segments."""
    for nth, block in enumerate(blocks):
        block.__dict__[MARK] = nth * number // len(blocks), nth


def of(block: Any, last: weakref.ref[Segment] | None) -> Segment:
    """The segment for this call to a block: `last` if the block comes next in that segment, otherwise a new segment."""
    segment = last() if last is not None else None
    number, nth = block.__dict__[MARK]
    if segment is None or segment.number != number or segment.block >= nth:
        segment = Segment()
    segment.number, segment.block = number, nth
    return segment
