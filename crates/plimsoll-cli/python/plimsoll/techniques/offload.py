"""Moves large tensors that the backward pass needs to pinned host memory, and copies them back when they are
needed. The numbers are identical.

Storages are moved: all saved views of a storage share one copy, and keep their strides. Parameters stay. On a GPU,
the copies overlap with the computation, on their own streams (`lane.py`). The technique's value is the percentage of
bytes that are moved.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from . import context, each, lane, observers, roots

PERCENT = 95  # while the tensors that stay are used, copies have time to finish
LEAST_BYTES = 4 << 20  # smaller storages stay, because starting a copy takes as long as the copy itself
LEAST_SHARE = 8  # a view of less than one eighth of its storage stays


class View:
    """A saved tensor, as a view of a storage that may leave the GPU."""

    def __init__(self, moved: lane.Moved, tensor: Any) -> None:
        self.moved, self.dtype = moved, tensor.dtype
        self.place = (tensor.storage_offset(), tensor.shape, tensor.stride())
        moved.views += 1

    def tensor(self) -> Any:
        """The tensor, on the device."""
        return torch.empty(0, dtype=self.dtype, device=self.moved.device).set_(self.moved.storage(), *self.place)


class Kept:
    """A saved tensor that stays on the GPU. The tensor is detached: if an operator saved its own result with its graph,
    the result would keep itself alive forever.
    """

    def __init__(self, tensor: Any) -> None:
        self.kept, self.version = tensor.detach(), tensor._version

    def tensor(self) -> Any:
        """The tensor. Raises an exception if it was changed in place."""
        if self.kept._version != self.version:
            raise RuntimeError(lane.CHANGED)
        return self.kept


class Offload:
    """Keeps saved tensors on the host."""

    name = "offload"

    def __init__(self, value: int | None, least_bytes: int | None = None) -> None:
        self.percent = PERCENT if value is None else value
        self.least_bytes = least_bytes  # None: `LEAST_BYTES` on a GPU, otherwise 0, where copies cost little
        self.buffers: Any = lane.Pinned()
        self.before: weakref.WeakKeyDictionary[Any, lane.Before] = weakref.WeakKeyDictionary()  # by model
        self.count = self.bytes = self.calls = 0
        self.clock: weakref.ref[Any] | None = None  # the optimizer that stepped first; its steps count
        self.until_step = self.of_step = 0  # bytes copied until its last step, and between the last two

    def begin(self) -> None:
        observers.listeners["stepped"].append(self.stepped)

    def stepped(self, optimizer: Any) -> None:
        if self.clock is None:
            self.clock = weakref.ref(optimizer)
        if self.clock() is optimizer:
            self.until_step, self.of_step = self.bytes, self.bytes - self.until_step

    def first(self, root: Any) -> None:
        why = context.wrapped_class(root)
        if why is None and context.is_sharded(root):
            why = "FSDP2 shards the model"
        if why is not None:
            context.refuse(self.name, why)

    def around(self, root: Any, following: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.calls += 1
        parameters = {it.untyped_storage()._cdata for it in root.parameters() if not torch.nn.parameter.is_lazy(it)}
        least = self.least_bytes
        missing: Callable[..., Any] = lambda root=weakref.ref(root): missing_gradients(root())
        copies = lane.Lane(1 - self.percent / 100, self.before.setdefault(root, lane.Before()), missing, self.buffers)
        found = {}  # by storage and version; the weak reference prevents reuse of the address

        def pack(tensor: Any) -> Any:
            if type(tensor) is not torch.Tensor or tensor.layout != torch.strided:
                return tensor if tensor.is_leaf else tensor.detach()
            storage = tensor.untyped_storage()
            bytes = storage.nbytes()
            if bytes < (least if least is not None else LEAST_BYTES if tensor.is_cuda else 1) or not bytes:
                return stays(tensor)
            if tensor.nbytes * LEAST_SHARE < bytes or storage._cdata in parameters:
                return stays(tensor)
            if tensor.nbytes < bytes and not tensor._is_view():
                # The tensor is a part of a storage with its own version counter (`unsafe_chunk`, as in LSTM cells):
                # other parts may still change.
                return stays(tensor)
            key = (storage._cdata, tensor._version)
            if key not in found:
                found[key] = StorageWeakRef(storage), copies.add(tensor)
            return View(found[key][1], tensor)

        def unpack(saved: Any) -> Any:
            return saved.tensor() if isinstance(saved, (View, Kept)) else saved

        try:
            with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
                result = following(*args, **kwargs)
        finally:
            found.clear()  # The graph keeps `pack` alive, which must not keep tensors that the backward pass has freed.
        copies.end()
        self.count += copies.oldest
        self.bytes += copies.copied_bytes
        return result

    def report(self) -> dict[str, Any]:
        if not self.count:
            detail = f"at most {lane.LEAST} saved tensors have {LEAST_BYTES >> 20} MiB or more"
            return dict(applied=False, detail=detail, lines=[], bytes=0)
        percent = "" if self.percent == PERCENT else f", percent={self.percent}"
        lines = [context.IMPORT, *each.model(f"plimsoll.offload(model{percent})", roots.kinds, roots.kinds)]
        # A step may have several calls whose gradients accumulate, so the bytes of a step are measured between steps.
        return dict(applied=True, detail="", lines=lines, bytes=self.of_step or self.bytes // self.calls)


def stays(tensor: Any) -> Any:
    """Wraps a saved tensor that stays on the device."""
    return tensor if tensor.is_leaf else Kept(tensor)


def missing_gradients(root: Any) -> int:
    """The bytes of the gradients that a backward pass through this model allocates."""
    parameters = root.parameters() if root is not None else ()
    return sum(it.nbytes for it in parameters if it.requires_grad and it.grad is None)
