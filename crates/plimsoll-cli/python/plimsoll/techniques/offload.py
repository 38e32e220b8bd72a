# Moves large tensors that the backward pass needs to pinned host memory, and brings them back there. The same numbers.
#
# What moves is the storage: all views of it that are saved share one copy, and keep their strides. Parameters stay. On a GPU
# the copies have a stream of their own, beside the computation (`lane.py`).

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from . import context, lane, observers

LEAST_BYTES = 16 << 20
LEAST_SHARE = 8  # a view of less than one eighth of its storage stays


class View:
    # A saved tensor: its place in a storage that was moved.
    def __init__(self, moved, tensor):
        self.moved, self.dtype = moved, tensor.dtype
        self.place = (tensor.storage_offset(), tensor.shape, tensor.stride())

    def tensor(self):
        return torch.empty(0, dtype=self.dtype, device=self.moved.device).set_(self.moved.storage(), *self.place)


class Offload:
    name = "offload"

    def __init__(self, value):
        self.least_bytes = LEAST_BYTES if value is None else value
        self.count = self.bytes = self.calls = self.steps = 0

    def begin(self):
        observers.listeners["stepped"].append(self.stepped)

    def stepped(self, optimizer):
        self.steps += 1

    def first(self, root):
        why = context.wrapped_class(root)
        if why is None and context.is_sharded(root):
            why = "FSDP2 shards the model"
        if why is not None:
            context.refuse(self.name, why)

    def around(self, root, following, args, kwargs):
        self.calls += 1
        parameters = {it.untyped_storage()._cdata for it in root.parameters() if not torch.nn.parameter.is_lazy(it)}
        copies = lane.Lane()
        found = {}  # by storage and version; the weak reference keeps its address from being used again

        def pack(tensor):
            if type(tensor) is not torch.Tensor or tensor.layout != torch.strided:
                return tensor
            storage = tensor.untyped_storage()
            bytes = storage.nbytes()
            is_small = bytes < self.least_bytes or not bytes or tensor.nbytes * LEAST_SHARE < bytes
            if is_small or storage._cdata in parameters:
                return tensor
            key = (storage._cdata, tensor._version)
            if key not in found:
                found[key] = StorageWeakRef(storage), copies.move(tensor)
                self.count += 1
                self.bytes += bytes
            return View(found[key][1], tensor)

        def unpack(saved):
            return saved.tensor() if isinstance(saved, View) else saved

        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            return following(*args, **kwargs)

    def report(self):
        if not self.count:
            mib = self.least_bytes >> 20
            return dict(applied=False, detail=f"no saved tensor has {mib} MiB or more", lines=[], bytes=0)
        size = "" if self.least_bytes == LEAST_BYTES else f", {self.least_bytes}"
        lines = [context.IMPORT, f"plimsoll.offload(model{size})"]
        # A step may have several calls, whose gradients accumulate.
        return dict(applied=True, detail="", lines=lines, bytes=self.bytes // (self.steps or self.calls))
