"""Checkpoints blocks of the model: their activations are recomputed in the backward pass. The numbers are
identical.

Blocks are marked on the instance and called through a patch of their class, because a closure on an instance would
break copies of the model. The recomputation does not change a block's state a second time (again.py).
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import checkpoint

from . import again, blocks, context, each, observers, roots, segments

PLAIN = (bool, int, float, str)
MARK = "_plimsoll_checkpoint"


class Nothing:
    """A context manager without effect, for the first computation."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *failure: object) -> None:
        pass


class Checkpoint:
    """Checkpoints the repeated blocks of each model."""

    name = "checkpoint"
    none = "the model has no repeated blocks"
    find = staticmethod(blocks.find)

    def __init__(self, value: int | None) -> None:
        self.most = value  # the number of blocks to checkpoint in each model; None: all
        self.of = self.count = 0
        self.lines: list[tuple[str, list[str]]] = []  # for each model: its class, and the code to add
        # Whether a block takes items from a list in its arguments. PyTorch's own checkpointing does not allow this.
        self.takes = False
        self.patched: set[type] = set()
        # For each model, whether a call drew random numbers from Python or NumPy.
        self.drew: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
        self.draws = True  # whether this call may draw: then each block saves the generators' states
        self.running = threading.local()  # `inside`: whether a block is running; `segment`: the last block's segment
        self.repeats = blocks.Repeats()

    def begin(self) -> None:
        observers.listeners["backward"].append(self.backward)

    def backward(self) -> None:
        if not self.count:
            context.refuse(self.name, self.none)

    def first(self, root: Any) -> None:
        self.check(root)
        found = self.find(root)
        self.mark(root, found if self.most is None else found[: self.most], len(found))
        if not found and self.find is blocks.find:
            self.repeats.add(root)
            for module in self.repeats.places:
                self.patch(type(module))

    def check(self, root: Any) -> None:
        """Rejects a model whose calls cannot be changed."""
        why = context.wrapped_class(root)
        if why is None and any(getattr(it, "gradient_checkpointing", False) for it in root.modules()):
            why = "the program checkpoints its model itself"
        if why is not None:
            context.refuse(self.name, why)

    def mark(self, root: Any, chosen: Any, of: Any) -> None:
        """Checkpoints these blocks: [(path, block)]."""
        for path, block in chosen:
            if isinstance(block, torch.jit.ScriptModule):
                context.refuse(self.name, f"{path} is compiled by TorchScript")
        for path, block in chosen:
            block.__dict__[MARK] = path
            self.patch(type(block))
        self.of += of
        self.count += len(chosen)
        if chosen:
            # A library's own call to turn on checkpointing applies to the innermost blocks.
            is_all = len(chosen) == of and (self.find is blocks.nested or not blocks.nested(root))
            self.lines.append((type(root).__name__, lines(root, [path for path, _ in chosen], is_all)))

    def divide(self, root: Any, found: Any, number: int | None) -> int:
        """Checkpoints these blocks in `number` segments, by default the square root of the number of blocks. Returns
        the number of segments.
        """
        number = min(number or round(len(found) ** 0.5), len(found))
        self.mark(root, found, len(found))
        segments.mark([block for _, block in found], number)
        return number

    def around(self, root: Any, following: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        without_cache(root, kwargs)
        self.repeats.begin()
        self.draws, before = self.drew.get(root, True), again.Generators()
        result = following(*args, **kwargs)
        drew = before != again.Generators()
        if drew and not self.draws:
            context.refuse(
                self.name, "the model draws random numbers from Python or NumPy, but did not in its first step"
            )
        self.drew[root] = drew or (self.draws and root in self.drew)
        return result

    def patch(self, kind: Any) -> None:
        """Checkpoints the calls to this class's marked modules."""
        if kind in self.patched:
            return
        self.patched.add(kind)
        original = kind.forward
        technique = self

        def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
            is_other = not self.training or not torch.is_grad_enabled() or torch.compiler.is_compiling()
            if (
                is_other
                or type(self).forward is not forward
                or not (MARK in self.__dict__ or technique.repeats_now(self))
            ):
                return original(self, *args, **kwargs)
            return technique.call(self, original, args, kwargs)

        forward.__wrapped__ = original  # type: ignore[attr-defined]
        kind.forward = forward

    def repeats_now(self, module: Any) -> bool:
        """Whether a module is called a second time in the current call to its model. From then on, the module counts as
        a block.
        """
        if self.is_inside() or not roots.is_inside() or not self.repeats.is_again(module):
            return False
        root, path = self.repeats.places.pop(module)
        for inner in module.modules():
            self.count -= inner.__dict__.pop(MARK, None) is not None
        self.mark(root(), [(path, module)], 1)
        return True

    def is_inside(self) -> bool:
        """Whether a block is running in this thread."""
        return bool(getattr(self.running, "inside", False))

    def call(self, block: Any, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls a block whose activations are recomputed in the backward pass."""
        if self.is_inside():
            return original(block, *args, **kwargs)
        if segments.marked(block):
            return self.in_segment(block, original, args, kwargs)
        if again.is_plain(block, self.draws) and are_plain(args, kwargs):
            plain = functools.partial(self.inside, original, block, **kwargs)
            return checkpoint(plain, *args, use_reentrant=False)
        leaves, structure = tree_flatten((args, kwargs))
        first = [(args, kwargs)]

        def run(*leaves: Any) -> Any:
            # A block may remove items from a list in its arguments. So the first computation gets the program's own
            # lists, and the recomputation gets copies of the lists from before it.
            args, kwargs = first.pop() if first else tree_unflatten(leaves, structure)
            return self.inside(original, block, *args, **kwargs)

        state = again.First(block, self.draws)
        result = checkpoint(
            run, *leaves, use_reentrant=False, context_fn=lambda: (Nothing(), again.Again(block, state))
        )
        if not self.takes and tree_flatten((args, kwargs))[1] != structure:
            self.takes = True
        self.end(block, state)
        return result

    def in_segment(
        self, block: Any, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Calls a block in a segment, which is recomputed as a unit."""
        segment = segments.of(block, getattr(self.running, "segment", None))
        self.running.segment = weakref.ref(segment)
        state = again.First(block, self.draws)
        result = segment.call(block, functools.partial(self.inside, original), state, args, kwargs)
        self.end(block, state)
        return result

    def end(self, block: Any, state: Any) -> None:
        """Called after the first computation: rejects a block if its state from before the computation is unknown."""
        name = state.end()
        if name is not None:
            context.refuse(
                self.name, f"{block.__dict__[MARK]} changes its buffer {name}, whose previous value is unknown"
            )

    def inside(self, original: Callable[..., Any], block: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Runs a block's own forward function."""
        self.running.inside = True
        try:
            return original(block, *args, **kwargs)
        finally:
            self.running.inside = False

    def report(self) -> dict[str, Any]:
        detail = f"{self.count} of {self.of} blocks" if self.of else self.none if roots.kinds else context.untrained()
        option = "" if self.most is None else f", first={self.most}"
        nested = ", nested=True" if self.find is blocks.nested else ""
        call = f"plimsoll.checkpoint_blocks(model{option}{nested})"
        own = [context.IMPORT, *each.model(call, [kind for kind, _ in self.lines], roots.kinds)]
        uses_own = self.takes or len(self.lines) > each.MOST
        return dict(applied=bool(self.count), detail=detail, lines=own if uses_own else self.native(), blocks=self.of)

    def native(self) -> list[Any]:
        """The code with PyTorch's or the library's own calls, for each model."""
        named = len(roots.kinds) > 1
        return [line for kind, lines in self.lines for line in ([f"# model: {kind}"] if named else []) + lines]


class CheckpointNested(Checkpoint):
    """Checkpoints the repeated blocks inside the repeated blocks of each model."""

    name = "checkpoint-nested"
    none = "the model has no repeated blocks inside its blocks"
    find = staticmethod(blocks.nested)


def are_plain(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the arguments contain no lists or dictionaries that a block could change, and no tensors outside `args`.
    PyTorch's checkpointing restores the generators of the devices of the tensors in `args`.
    """
    return all(isinstance(it, PLAIN) or it is None or isinstance(it, torch.Tensor) for it in args) and all(
        isinstance(it, PLAIN) or it is None for it in kwargs.values()
    )


def without_cache(root: Any, kwargs: dict[str, Any]) -> None:
    """Turns the generation cache off. Transformers models that generate text keep a cache, which recomputation would
    fill twice.
    """
    for module in root.modules():
        config: Any = getattr(module, "config", None)
        if getattr(config, "use_cache", False) is True:
            if module is root:
                kwargs["use_cache"] = False
            config.use_cache = False


def supports(module: Any) -> Any:
    """Whether this is a model of transformers that can checkpoint its own blocks."""
    return getattr(module, "supports_gradient_checkpointing", True)


def library_calls(root: Any, paths: list[str], name: str) -> Any:
    """The lines that call the method `name` on the root, or on several models in it. Empty if a block is not inside a
    model with this method.
    """
    models: dict[str, Any] = {}
    for path, it in root.named_modules():
        if hasattr(type(it), name) and supports(it) and not any(is_under(path, other) for other in models):
            models[path] = it
    if not all(any(is_under(path, model) for model in models) for path in paths):
        return []
    called = []
    for path, it in models.items():
        model = "model" if hasattr(root, name) else blocks.attribute(path)
        called.append(f"{model}.{name}({{'use_reentrant': False}})")
        if hasattr(getattr(it, "config", None), "use_cache"):
            called.append(f"{model}.config.use_cache = False")
    return list(dict.fromkeys(called))


def is_under(path: str, other: str) -> bool:
    """Whether a module is the module at the path `other`, or inside it."""
    return not other or path == other or path.startswith(f"{other}.")


def lines(root: Any, paths: list[str], is_all: bool) -> Any:
    """The code to add: the library's own calls, if they cover all blocks."""
    if is_all:
        for name in ("activation_checkpointing_enable", "gradient_checkpointing_enable"):
            calls = library_calls(root, paths, name)
            if calls:
                return calls
        if hasattr(type(root), "set_grad_checkpointing"):
            return ["model.set_grad_checkpointing()"]
    place = "torch.distributed.algorithms._checkpoint.checkpoint_wrapper"
    return [
        f"from {place} import apply_activation_checkpointing",
        f"blocks = set({blocks.expression(root, paths)})",
        "apply_activation_checkpointing(model, check_fn=lambda module: module in blocks)",
    ]
