"""The tensors of this process that have a Python object, their bytes, and the other memory that their autograd graphs
keep.

Storages are identified by their address, and their data is never read. While this code runs, no code of tensor
subclasses or modes runs, and no saved-tensor hooks.
"""

from __future__ import annotations

import gc
from typing import Any

from ..allocator import rounded
from .objects import MANY, class_dict, is_a, mro

NODES = 50_000  # the maximum number of graph nodes to visit
ELEMENTS = 500_000  # the maximum number of a container's elements to count


class Tensors:
    """Reads PyTorch's tensors without running their own code."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.base: Any = torch._C.TensorBase
        self.kinds: dict[int, bool] = {}  # by the address of a class: whether its objects are plain tensors

    def is_tensor(self, obj: Any) -> bool:
        """Whether an object is a tensor with its own memory: not a wrapper of other tensors, such as a DTensor."""
        kind = type(obj)
        known = self.kinds.get(id(kind))
        if known is None:
            known = self.kinds[id(kind)] = self.is_plain(kind)
        return known

    def is_plain(self, kind: type) -> bool:
        """Whether the objects of a class are tensors with their own memory."""
        bases = mro(kind)
        if not any(base is self.torch.Tensor for base in bases):
            return False
        own = bases[: next(at for at, base in enumerate(bases) if base is self.torch.Tensor)]
        return not any("__torch_dispatch__" in class_dict(base) for base in own)

    def quiet(self) -> Any:
        """A context in which no `__torch_function__` runs."""
        return self.torch._C.DisableTorchFunction()

    def get(self, tensor: Any, name: str) -> Any:
        """An attribute that PyTorch defines; None if the tensor does not have it."""
        try:
            return getattr(self.base, name).__get__(tensor)
        except Exception:
            return None

    def storage(self, tensor: Any) -> tuple[int, int]:
        """The address of a tensor's storage, and its bytes as the allocator rounds them; zeros if it has none."""
        try:
            storage = self.base.untyped_storage(tensor)
            return storage._cdata, rounded(storage.nbytes())
        except Exception:  # for example a sparse tensor
            return 0, 0

    def is_on(self, tensor: Any, device: int | None) -> bool:
        """Whether a tensor is on this GPU; with None, whether it is on any GPU."""
        return device is None or bool(self.get(tensor, "is_cuda")) and self.get(tensor, "device").index == device

    def all(self) -> list[Any]:
        """All tensors that have a Python object."""
        return [it for it in gc.get_objects() if self.is_tensor(it)]

    def owner_of_gradient(self, gradient: Any) -> Any:
        """The tensor whose `.grad` is `gradient`."""
        for it in gc.get_objects():
            if self.is_tensor(it) and self.get(it, "is_leaf") and self.get(it, "grad") is gradient:
                return it
        return None

    def content(self, many: Any) -> tuple[set[int], dict[int, int]]:
        """The addresses of the tensors in a container and in the containers nested in it, and the bytes of their
        storages by the storages' addresses.
        """
        left, looked = [many], 0
        seen, found = {id(many)}, set()
        storages: dict[int, int] = {}
        while left and looked < ELEMENTS:
            for it in gc.get_referents(left.pop()):
                looked += 1
                if self.is_tensor(it):
                    found.add(id(it))
                    address, size = self.storage(it)
                    storages[address] = size
                elif is_a(it, *MANY) and id(it) not in seen:
                    seen.add(id(it))
                    left.append(it)
        return found, storages

    def graphs(self, tensors: list[Any], device: int | None = None) -> list[tuple[Any, dict[int, int]]]:
        """The tensors that have a graph, the latest first. Each comes with the storages that its graph saves for the
        backward pass, and their bytes. A storage that several graphs share is counted for the first of them.
        """
        roots = [it for it in tensors if self.get(it, "grad_fn") is not None]
        roots.sort(key=lambda it: -self.order(it))
        seen: set[int] = set()
        kept = []  # keeps the nodes alive, so that their addresses are not reused
        found: list[tuple[Any, dict[int, int]]] = []
        for root in roots:
            own: dict[int, int] = {}
            left = [self.get(root, "grad_fn")]
            while left and len(seen) < NODES:
                node = left.pop()
                if node is not None and id(node) not in seen:
                    seen.add(id(node))
                    kept.append(node)
                    saved = [it for it in self.saved_by(node) if self.is_tensor(it)]
                    own.update(self.storage(it) for it in saved if self.is_on(it, device))
                    left += [it for it, _ in attribute(node, "next_functions") or ()]
            found.append((root, own))
        return found

    def order(self, tensor: Any) -> int:
        """The sequence number of the tensor's node. A thread numbers its nodes in the order of their creation."""
        number = attribute(self.get(tensor, "grad_fn"), "_sequence_nr")
        return int(number()) if number is not None else 0

    def saved_by(self, node: Any) -> list[Any]:
        """The tensors that one node saves, without unpacking them."""
        found = []
        for base in mro(type(node)):
            for name in list(class_dict(base)):
                if type(name) is str and name.startswith("_raw_saved_"):
                    try:
                        value = class_dict(base)[name].__get__(node)
                    except Exception:  # the tensors are already freed
                        continue
                    for it in value if type(value) in (tuple, list) else (value,):
                        data = attribute(it, "data")  # in PyTorch before 2.10, hooks have no `data`
                        found += [] if data is None else [data]
        return found


def attribute(obj: Any, name: str) -> Any:
    """The value of a property that the object's PyTorch class defines. None if it does not exist, or no longer
    exists.
    """
    for base in mro(type(obj)):
        found = class_dict(base).get(name)
        if found is not None:
            try:
                return found.__get__(obj)
            except Exception:
                return None
    return None
