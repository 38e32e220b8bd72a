"""Makes the recomputation of a block give the same results as its first computation. The recomputation sees the
state from before the first computation: the parameters (`torch.func.functional_call` replaces them for a call), the
buffers, the numbers and flags on its modules, and the random number generators of Python and NumPy. Changes that the
recomputation makes to this state are undone, so that a block that counts its calls does not count a call twice.
PyTorch's checkpointing itself restores PyTorch's generators.

The first calls to a class of blocks show which buffers and attributes the calls change. Several calls are needed,
because layers may be skipped at random. Normalization layers are excluded: their results do not depend on their running
statistics, so the recomputation leaves the statistics unchanged.
"""

from __future__ import annotations

import random
import sys
import weakref
from typing import Any

import torch

NORMS = torch.nn.modules.batchnorm._NormBase
SIMPLE = (bool, int, float, str, type(None))
MOST_BYTES = 16 << 20  # larger buffers, such as quantized weights, are not copied to detect changes
FIRST = 50  # calls that are watched for changes


class Changes:
    """The changes that calls to a class of blocks make: the names of buffers, and the places of attributes."""

    def __init__(self) -> None:
        self.buffers: set[str] = set()
        self.attributes: set[tuple[str, str]] = set()
        self.calls = 0


changes: weakref.WeakKeyDictionary[type, Changes] = weakref.WeakKeyDictionary()  # by class
places: weakref.WeakKeyDictionary[Any, Places] = weakref.WeakKeyDictionary()  # by block


def is_plain(block: Any, draws: bool) -> bool:
    """Whether a recomputation needs no state from the first computation."""
    known, found = changes.get(type(block)), places.get(block)
    if known is None or found is None or known.calls <= FIRST or known.attributes:
        return False
    return not draws and not found.norms and not found.buffers and found.has_its_parameters()


class Members:
    """The current parameters and buffers at these places. Inside a `with` statement, the places hold these parameters
    and buffers again.
    """

    def __init__(self, found: Any) -> None:
        self.kept = [(place, key, place.get(key)) for place, key in found]

    def __enter__(self) -> None:
        self.others = []
        for place, key, it in self.kept:
            other = place.get(key)
            if other is not it and not is_sharded(other):
                self.others.append((place, key, other))
                place[key] = it

    def __exit__(self, *failure: object) -> None:
        for place, key, other in self.others:
            place[key] = other


def members(module: Any) -> list[tuple[dict[str, Any], str]]:
    """The places of a module's parameters and buffers: [(dictionary, key)]."""
    return [(place, key) for it in module.modules() for place in (it._parameters, it._buffers) for key in place]


def is_sharded(tensor: Any) -> bool:
    """Whether FSDP2 manages a tensor. FSDP2 itself replaces sharded parameters with complete ones for a call, and
    changes them back.
    """
    return type(tensor).__name__ == "DTensor"


class Places:
    """A block's normalization layers with statistics, the places of its other buffers as [(name, dictionary, key)],
    and its own parameters.
    """

    def __init__(self, block: Any) -> None:
        modules = dict(block.named_modules())
        self.norms = [it for it in modules.values() if isinstance(it, NORMS) and it.track_running_stats]
        others = ((path, it) for path, it in modules.items() if not isinstance(it, NORMS))
        self.buffers = [
            (f"{path}.{key}" if path else key, it._buffers, key) for path, it in others for key in it._buffers
        ]
        self.members = members(block)
        parameters = ((it._parameters, key, value) for it in modules.values() for key, value in it._parameters.items())
        self.parameters = [(place, key, weakref.ref(value)) for place, key, value in parameters if value is not None]

    def has_its_parameters(self) -> bool:
        """Whether the block still has its original parameters."""
        return all(it() is place.get(key) for place, key, it in self.parameters)


class First:
    """The state of a block before its first computation. `end`, called after the computation, keeps the changed
    parts.
    """

    def __init__(self, block: Any, draws: bool) -> None:
        self.block, self.known = block, changes.setdefault(type(block), Changes())
        self.known.calls += 1
        self.is_learning, self.has_ended = self.known.calls <= FIRST, False
        if self.is_learning or block not in places:
            places[block] = Places(block)
        self.members = Members(places[block].members)
        self.kept = {name: (it, it._version, self.copy(name, it)) for name, it in own_buffers(block)}
        self.attributes = (
            simple(block) if self.is_learning else {place: attribute(block, *place) for place in self.known.attributes}
        )
        self.drawn = Generators() if draws else None

    def copy(self, name: str, buffer: Any) -> Any:
        """A copy of a buffer, if the block may change the buffer; otherwise None."""
        is_kept = name in self.known.buffers or (self.is_learning and buffer.nbytes <= MOST_BYTES)
        return buffer.clone() if is_kept else None

    def end(self) -> str | None:
        """Returns the name of a buffer whose value before the computation is unknown, or None."""
        changed = self.kept = self.changed_buffers()
        self.has_ended = True
        self.attributes = {
            place: value for place, value in self.attributes.items() if attribute(self.block, *place) != value
        }
        self.known.buffers.update(changed)
        self.known.attributes.update(self.attributes)
        if self.drawn is not None and self.drawn == Generators():
            self.drawn = None
        return next((name for name, value in changed.items() if value is None), None)

    def changed_buffers(self) -> dict[str, Any]:
        """The earlier values of the buffers that were changed so far: {name: value}. If the block itself computes a
        gradient, these values are needed before the block ends.
        """
        if self.has_ended:
            return self.kept
        now = {name: place.get(key) for name, place, key in places[self.block].buffers}
        changed = {}
        for name, (before, version, copy) in self.kept.items():
            if before._version != version:
                changed[name] = copy
            elif now[name] is not before:
                changed[name] = before
        return changed


class Again:
    """Recomputes a block. Inside a `with` statement, the block has its state from before the first computation."""

    def __init__(self, block: Any, first: Any) -> None:
        self.block, self.first = block, first

    def __enter__(self) -> None:
        self.first.members.__enter__()
        self.norms = [it for it in places[self.block].norms if it.training]
        self.statistics = [(it.momentum, it.num_batches_tracked) for it in self.norms]
        for norm in self.norms:
            norm.momentum = 0.0
            norm._buffers["num_batches_tracked"] = None
        self.now: list[tuple[Any, str, Any]] = []  # (a dictionary, a key, its value)
        changed = self.first.changed_buffers()
        for name, place, key in places[self.block].buffers if changed else ():
            if changed.get(name) is not None:
                self.put(place, key, changed[name].clone())
        for (path, name), value in self.first.attributes.items():
            self.put(vars(self.block.get_submodule(path)), name, value)
        if self.first.drawn is not None:
            self.drawn = Generators()
            restore(self.first.drawn)

    def put(self, place: Any, key: Any, value: Any) -> None:
        """Puts a value in a place, and remembers the previous value."""
        self.now.append((place, key, place.get(key)))
        place[key] = value

    def __exit__(self, *failure: object) -> None:
        for norm, (momentum, tracked) in zip(self.norms, self.statistics):
            norm.momentum = momentum
            norm._buffers["num_batches_tracked"] = tracked
        for place, key, value in self.now:
            place[key] = value
        self.first.members.__exit__()
        if self.first.drawn is not None:
            restore(self.drawn)


def own_buffers(block: Any) -> list[tuple[str, Any]]:
    """The buffers of a block, except those of normalization layers: [(name, buffer)]."""
    found = ((name, place.get(key)) for name, place, key in places[block].buffers)
    return [(name, it) for name, it in found if it is not None and not it.is_inference()]


def simple(block: Any) -> dict[tuple[str, str], Any]:
    """The numbers, flags and strings on a block's modules: {(path, name): value}."""
    return {
        (path, name): value
        for path, it in block.named_modules()
        for name, value in vars(it).items()
        if type(value) in SIMPLE
    }


def attribute(block: Any, path: str, name: str) -> Any:
    """The current value of an attribute; None if the block has no such module."""
    try:
        return vars(block.get_submodule(path)).get(name)
    except AttributeError:
        return None


def versions(block: Any) -> list[tuple[str, Any, int]]:
    """The buffers of a block, with the version counter of each: [(name, buffer, version)]."""
    places[block] = Places(block)
    return [(name, it, it._version) for name, it in own_buffers(block)]


def changed_since(block: Any, before: list[tuple[str, Any, int]]) -> str | None:
    """The name of a buffer whose version differs from `before`, or None."""
    now: dict[str, Any] = dict(own_buffers(block))
    changed = (name for name, it, version in before if it._version != version or now.get(name) is not it)
    return next(changed, None)


class Generators:
    """The state of the random generators of Python and NumPy."""

    def __init__(self) -> None:
        self.python = random.getstate()
        numpy: Any = sys.modules.get("numpy.random")
        self.numpy: Any = numpy and numpy.get_state()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Generators):
            return NotImplemented
        if (self.numpy is None) != (other.numpy is None) or self.python != other.python:
            return False
        return self.numpy is None or all(
            bool((a == b).all()) if hasattr(a, "all") else a == b for a, b in zip(self.numpy, other.numpy)
        )


def restore(state: Generators) -> None:
    """Restores a state of the generators."""
    random.setstate(state.python)
    if state.numpy is not None:
        sys.modules["numpy.random"].set_state(state.numpy)
