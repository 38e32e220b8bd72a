"""Finds large tensors that only small views keep alive: the variables with the views, which should have copies instead,
and the dead variables that refer to the tensor itself. The program's code is never run.
"""

from __future__ import annotations

import sys
from typing import Any, Generic, TypeVar

from .._holding.live import Tensors
from .sole import Sole, address_of, size_of

Place = TypeVar("Place")
PART = 4  # views are reported if they use less than 1/4 of the storage that they keep alive
OWN_REFERENCES = 3  # references to a base: from `Views.bases`, a variable, and the call to `getrefcount`


class Views(Generic[Place]):
    """The variables that have views, by the storages of the views, and the dead variables, by their tensors."""

    def __init__(self, known: Tensors) -> None:
        self.known, self.torch = known, known.torch
        self.found: dict[int, list[tuple[Place, str, int, int]]] = {}  # by storage: place, name, bytes, `id`
        self.bases: dict[int, Any] = {}
        self.dead: dict[int, list[tuple[Place, str]]] = {}

    def add_dead(self, place: Place, name: str, tensor: Any) -> None:
        """Adds a variable that is not read again."""
        self.dead.setdefault(id(tensor), []).append((place, name))

    def add(self, place: Place, name: str, tensor: Any) -> None:
        """Adds a variable that is read again."""
        get = self.known.get
        if not get(tensor, "is_cuda") or get(tensor, "is_leaf") and get(tensor, "requires_grad"):
            return
        if tensor._is_view():
            at, own = address_of(self.torch, tensor), tensor.numel() * tensor.element_size()
            self.bases[at] = tensor._base
            self.found.setdefault(at, []).append((place, name, own, id(tensor)))

    def large(self, sole: Sole, least: int) -> list[tuple[int, list[tuple[Place, str]], list[tuple[Place, str]]]]:
        """For each large tensor that only small views keep alive: the bytes that copies of the views would free, the
        variables with the views, and the dead variables that refer to the tensor.
        """
        rows = []
        for at, views in self.found.items():
            own = {view: size for _, _, size, view in views}
            base = self.bases[at]
            size, dead = size_of(base), self.dead.get(id(base), [])
            # One reference comes from C++: see `Sole.is_free`.
            known = OWN_REFERENCES + len(dead) + (id(base) in sole.objects) + (base._use_count() > 1)
            is_alone = self.torch._C._storage_Use_Count(at) <= len(own) + 1 and sys.getrefcount(base) <= known
            used = sum(own.values())
            if is_alone and used * PART <= size and size - used >= least:
                rows.append((size - used, [(place, name) for place, name, _, _ in views], dead))
        return rows
