"""Finds the objects that only certain variables keep alive, so that deleting the variables would free them, and the
memory of their tensors. It uses reference counts, as the garbage collector does. The program's code is never run.
"""

from __future__ import annotations

import collections
import gc
import sys
import types
from typing import Any

from .._holding.live import Tensors
from .._holding.objects import is_a
from ..allocator import rounded

MOST = 5000  # the maximum number of objects to examine
SKIPPED = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.CodeType, types.FrameType)
ATOMS = (str, bytes, int, float, complex, bool, type(None))
# The number of references to an argument of `Sole.is_hidden` if only `Sole.bytes` has the object. Before Python 3.11,
# there is another reference on the caller's stack.
HIDDEN_REFERENCES = 3 if sys.version_info >= (3, 11) else 4
OWN_REFERENCES = 2  # to an object in `Sole.objects`: from the dictionary, and from the call to `getrefcount`


class Sole:
    """The objects that can be reached from some variables, by the variables' keys."""

    def __init__(self, known: Tensors) -> None:
        self.known, self.torch = known, known.torch
        self.objects: dict[int, Any] = {}  # by address
        self.edges: dict[int, list[int]] = {}
        self.roots: dict[Any, int] = {}

    def add(self, key: Any, value: Any) -> None:
        """Adds a variable. Its value may keep GPU memory."""
        if type(value) in ATOMS or is_a(value, *SKIPPED):
            return
        self.roots[key] = id(value)
        self.objects.setdefault(id(value), value)

    def explore(self) -> bool:
        """Finds the reachable objects. Returns False if there are more than MOST."""
        left = list(dict.fromkeys(self.roots.values()))
        while left:
            at = left.pop()
            if at in self.edges:
                continue
            self.edges[at] = below = []
            for it in self.below(self.objects[at]):
                if id(it) not in self.objects:
                    self.objects[id(it)] = it
                below.append(id(it))
            left += below
            if len(self.objects) > MOST:
                return False
        return True

    def below(self, owner: Any) -> list[Any]:
        """The objects to which an object refers, except classes, functions, and simple values such as numbers."""
        if self.known.is_tensor(owner) or not gc.is_tracked(owner) or is_a(owner, *SKIPPED):
            return []
        return [it for it in gc.get_referents(owner) if type(it) not in ATOMS and not is_a(it, *SKIPPED)]

    def most(self, keys: Any) -> int:
        """The bytes of GPU memory that can be reached from these variables: deleting the variables cannot free more."""
        tensors = (self.objects[at] for at in self.reached(keys) if self.known.is_tensor(self.objects[at]))
        return sum(size_of(it) for it in tensors if self.known.get(it, "is_cuda"))

    def count(self, key: Any) -> int:
        """How many objects can be reached from a variable."""
        return len(self.reached([key]))

    def reached(self, keys: Any) -> set[int]:
        """The addresses of the objects that can be reached from these variables."""
        found: set[int] = set()
        left = [self.roots[key] for key in keys]
        while left:
            at = left.pop()
            if at not in found:
                found.add(at)
                left += self.edges[at]
        return found

    def freed(self, keys: Any) -> set[int]:
        """The addresses of the objects that deleting these variables frees."""
        found = self.reached(keys)
        while True:
            inside = collections.Counter(self.roots[key] for key in keys)
            for at in found:
                inside.update(self.edges[at])
            kept = {at for at in found if not self.is_free(at, inside[at])}
            if not kept:
                return found
            found -= kept

    def is_free(self, at: int, inside: int) -> bool:
        """Whether an object has no references other than the `inside` references that were already counted."""
        outside = sys.getrefcount(self.objects[at]) - OWN_REFERENCES - inside
        if outside and self.known.is_tensor(self.objects[at]):
            # From PyTorch 2.10 on, C++ owners of a tensor hold one reference to its Python object.
            outside -= self.objects[at]._use_count() > 1
        return outside <= 0

    def is_hidden(self, base: Any) -> bool:
        """Whether only views refer to this tensor. `sys.getrefcount` also counts the references of `bytes` and of these
        calls (`HIDDEN_REFERENCES`).
        """
        return bool(sys.getrefcount(base) - (base._use_count() > 1) <= HIDDEN_REFERENCES)

    def bytes(self, keys: Any) -> int:
        """The bytes of GPU memory that only these variables keep."""
        freed = self.freed(keys)
        plain = [self.objects[at] for at in freed if self.known.is_tensor(self.objects[at])]
        tensors = [it for it in plain if self.known.get(it, "is_cuda")]
        views = collections.Counter(id(it._base) for it in tensors if it._is_view())
        # If only views refer to their base, the base is freed with them.
        bases = {id(it._base): it._base for it in tensors if it._is_view()}
        tensors += [bases[at] for at in list(bases) if at not in freed and self.is_hidden(bases[at])]
        del bases
        tensors = [it for it in tensors if it._use_count() - 1 <= views[id(it)]]
        storages = collections.Counter(address_of(self.torch, it) for it in tensors)
        total = 0
        for it in tensors:
            address = address_of(self.torch, it)
            if storages[address] and self.torch._C._storage_Use_Count(address) <= storages.pop(address):
                total += size_of(it)
            gradient = self.known.get(it, "grad") if it.is_leaf else None
            if gradient is not None and self.torch._C._storage_Use_Count(address_of(self.torch, gradient)) <= 1:
                total += size_of(gradient)
        return total


def size_of(tensor: Any) -> int:
    """The bytes of a tensor's storage, computed from its strides. A Python object for the storage would prevent
    autograd from adding to a gradient in place.
    """
    whole = tensor._base if tensor._is_view() else tensor
    if not whole.numel():
        return 0
    last = sum((size - 1) * stride for size, stride in zip(whole.size(), whole.stride()))
    return rounded((whole.storage_offset() + last + 1) * whole.element_size())


def address_of(torch: Any, tensor: Any) -> int:
    """The address of a tensor's storage, without creating a Python object for it if this PyTorch supports that."""
    known = getattr(torch._C, "_storage_address", None)
    return int(known(tensor)) if known is not None else int(tensor.untyped_storage()._cdata)
