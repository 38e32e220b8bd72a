# Copies of saved tensors to the host and back, beside the computation.
#
# On the way out a tensor stays until its copy has ended, but at most OUT of them: before the next one leaves, the computation's
# stream waits for the oldest, so what is allocated does not depend on time. On the way back the AHEAD tensors saved before the
# one that is asked for are under way already: the backward pass asks in the opposite order. Memory for them comes from the
# computation's stream, where it is freed; the copy waits for what was queued there before.

import weakref

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from . import context

OUT = 2
AHEAD = 2

streams = {}  # by device: one each for the whole process


def beside(device):
    # The device's stream of copies, which waits for what the computation has queued.
    if device not in streams:
        streams[device] = torch.cuda.Stream(device)
    stream = streams[device]
    stream.wait_stream(torch.cuda.current_stream(device))
    return stream


class Leaving:
    # A tensor whose copy to the host may still run.
    def __init__(self, moved, tensor, copied):
        self.moved, self.copied = weakref.ref(moved), copied
        self.tensor, self.version = tensor.detach(), tensor._version  # detached, it shares the count of changes

    def is_changed(self):
        return self.tensor._version != self.version


class Lane:
    # The copies of one forward pass and its backward pass.
    def __init__(self):
        self.leaving = {}  # by number, the oldest first
        self.order = []  # weak references to all that moved, in the order of the forward pass

    def move(self, tensor):
        moved = Moved(self, tensor, len(self.order))
        self.order.append(weakref.ref(moved))
        while len(self.leaving) > OUT:
            oldest = self.leaving.pop(next(iter(self.leaving)))
            torch.cuda.current_stream(oldest.tensor.device).wait_event(oldest.copied)
            if oldest.is_changed() and oldest.moved() is not None:
                oldest.moved().is_stale = True
        return moved

    def fetch_before(self, at):
        for number in range(at - 1, max(at - 1 - AHEAD, -1), -1):
            earlier = self.order[number]()
            if earlier is not None and number not in self.leaving and earlier.resident() is None:
                earlier.ahead = earlier.fetch()


class Moved:
    # The bytes of a storage on the host, and the storage on the device while it is there again.
    def __init__(self, lane, tensor, number):
        storage = tensor.untyped_storage()
        self.lane, self.number, self.device = lane, number, storage.device
        self.back = self.ahead = self.arrived = None
        self.is_stale = False  # the program changed it while it left
        bytes = torch.empty(0, dtype=torch.uint8, device=self.device).set_(storage)
        if self.device.type != "cuda":
            self.host = bytes.clone()
            return
        self.host = torch.empty(bytes.shape, dtype=torch.uint8, pin_memory=True)
        stream = beside(self.device)
        with torch.cuda.stream(stream), context.unread():
            self.host.copy_(bytes, non_blocking=True)
        lane.leaving[number] = Leaving(self, tensor, stream.record_event())

    def __del__(self):
        # Fetched, and never asked for: its memory may be used again only after the copy into it.
        if self.ahead is not None and self.arrived is not None:
            self.computation.wait_event(self.arrived)

    def storage(self):
        leaving = self.lane.leaving.pop(self.number, None)
        if leaving is not None:
            self.is_stale |= leaving.is_changed()
            self.ahead = leaving.tensor.untyped_storage()
            self.back = StorageWeakRef(self.ahead)
        if self.is_stale:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation while "
                "offload moved it to the host"
            )
        found = self.resident() or self.fetch()
        self.ahead = None
        if self.device.type == "cuda":
            self.lane.fetch_before(self.number)
        if self.arrived is not None:
            torch.cuda.current_stream(self.device).wait_event(self.arrived)
        return found

    def resident(self):
        if self.ahead is not None or self.back is None:
            return self.ahead
        return torch.UntypedStorage._new_with_weak_ptr(self.back.cdata)

    def fetch(self):
        # Queues the copy back, whose end is `arrived`.
        if self.device.type != "cuda":
            found = self.host.clone()
        else:
            self.computation = torch.cuda.current_stream(self.device)
            found = torch.empty(self.host.shape, dtype=torch.uint8, device=self.device)
            stream = beside(self.device)
            with torch.cuda.stream(stream):
                found.copy_(self.host, non_blocking=True)
            self.arrived = stream.record_event()
        found = found.untyped_storage()
        self.back = StorageWeakRef(found)
        return found
