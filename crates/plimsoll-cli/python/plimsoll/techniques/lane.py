"""Copies saved tensors to the host and back, overlapped with the computation.

A part of the bytes that a forward pass saves stays on the GPU: the bytes of the last tensors, which are needed again
first. The first tensors are moved to the host. The copy of a tensor begins immediately if the same tensor also left the
GPU in the model's last forward pass. The bytes that may wait on the GPU are limited; beyond the limit, the
computation's stream waits for the oldest copy. In the backward pass, tensors are copied back before they are used, in
the opposite order, as far as the limit allows. Allocations depend on bytes and on the order of requests, never on
timing.

Each direction has its own stream. Memory for tensors that come back is allocated and freed on the computation's stream,
so the copy waits for the work that was queued on this stream before. Pinned memory is kept for the next step.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from . import context

CHANGED = "one of the variables needed for gradient computation has been modified by an inplace operation (under the technique offload)"
LEAST = 2  # at least this many tensors may wait on the GPU for a copy or for their use

streams: dict[tuple[Any, str], Any] = {}  # by device and direction, shared by the whole process
pinned: dict[int, list[tuple[Any, Any]]] = {}  # by size, a power of two: [(buffer, event at the end of its last copy)]


def beside(device: Any, direction: str) -> Any:
    """Makes the device's copy stream for this direction wait for the computation that is already queued, and returns
    the stream.
    """
    if (device, direction) not in streams:
        streams[device, direction] = torch.cuda.Stream(device)
    stream = streams[device, direction]
    stream.wait_stream(torch.cuda.current_stream(device))
    return stream


class Pinned:
    """Buffers in pinned memory."""

    def take(self, bytes: int) -> tuple[Any, Any]:
        """A free buffer, and the event at the end of the last copy from or to it. PyTorch's pinned allocator also rounds
        to powers of two.
        """
        size = 1 << (bytes - 1).bit_length()
        free = pinned.setdefault(size, [])
        return free.pop() if free else (torch.empty(size, dtype=torch.uint8, pin_memory=True), None)

    def give(self, buffer: Any, event: Any) -> None:
        """Takes a buffer back. `event` is at the end of the last copy from or to this buffer."""
        pinned[buffer.numel()].append((buffer, event))


class Before:
    """Statistics of a model's forward passes: the most bytes that a pass saved, and the number of tensors that left the
    GPU in the last pass.
    """

    def __init__(self) -> None:
        self.bytes = self.left = 0


class Lane:
    """The copies for one forward pass and its backward pass."""

    def __init__(self, stays: float, before: Before, gradient_bytes: Any, buffers: Any) -> None:
        self.stays, self.before = stays, before  # the part of the bytes that stays; the model's earlier passes
        self.buffers = buffers  # on the host: `Pinned`, or files (disk.py)
        self.gradient_bytes = gradient_bytes  # a function that returns the bytes of the gradients; called once
        self.order: list[weakref.ref[Moved]] = []  # weak references to all tensors, in the order of the forward pass
        self.saved_bytes = self.copied_bytes = 0
        self.waiting = self.waiting_bytes = 0  # tensors and bytes on the GPU, until they leave or are used
        self.oldest = 0  # all tensors before this index have left
        self.next: int | None = None  # the index of the next tensor to bring back
        self.turn = 0  # the number of the backward pass

    def most_bytes(self) -> float:
        """The maximum number of bytes that may wait on the GPU."""
        return self.stays * max(self.before.bytes, self.saved_bytes)

    def add(self, tensor: Any) -> Moved:
        """Called when a tensor was saved. While too many bytes wait, the oldest tensors leave the GPU."""
        moved = Moved(self, tensor, len(self.order), self.saved_bytes)
        self.order.append(weakref.ref(moved))
        self.saved_bytes += moved.bytes
        moved.wait()
        if moved.number < self.before.left:
            moved.copy_out()
        while self.waiting_bytes > self.most_bytes() and self.oldest < len(self.order) - LEAST:
            oldest = self.order[self.oldest]()
            self.oldest += 1
            if oldest is not None and oldest.is_waiting:
                oldest.leave()
        return moved

    def end(self) -> None:
        """Called when the forward pass has ended."""
        if self.order:
            self.before.bytes, self.before.left = max(self.before.bytes, self.saved_bytes), self.oldest

    def fetch_ahead(self, used: Moved) -> None:
        """Queues copies of the tensors that will be used next. The more memory gradients take, the fewer bytes may wait
        on the GPU, so that the sum stays the same as at the end of the forward pass.
        """
        if self.next is None:
            self.grows = self.gradient_bytes()
            self.next = len(self.order) - 1
        elif used.turn == self.turn + 1:  # another backward pass over the same tensors
            self.turn += 1
            self.next = used.number - 1
        used.turn = self.turn + 1
        stays = self.most_bytes()
        done = 1 - used.before_bytes / max(self.saved_bytes, 1)
        most = min(stays, max(stays, self.grows) - self.grows * done)
        while self.next >= 0:
            earlier = self.order[self.next]()
            if earlier is not None and earlier.turn <= self.turn and earlier.resident() is None:
                if self.waiting >= LEAST and self.waiting_bytes + earlier.bytes > most:
                    return
                earlier.kept = earlier.fetch()
                earlier.wait()
            self.next -= 1


class Moved:
    """A storage that was saved: on the device, on the host, or both."""

    def __init__(self, lane: Any, tensor: Any, number: int, before_bytes: int) -> None:
        storage = tensor.untyped_storage()
        self.lane, self.number, self.before_bytes = lane, number, before_bytes
        self.device, self.bytes = storage.device, storage.nbytes()
        self.original, self.version = tensor.detach(), tensor._version  # a detached tensor shares the version counter
        self.kept = storage  # the storage on the device, while this object keeps it
        self.back = None  # a weak reference to the storage, once the storage was requested
        self.host: Any = None
        self.buffer: Any = None
        self.copied: Any = None
        self.arrived: Any = None
        self.has_left = self.is_stale = self.is_waiting = False
        self.views = self.asked = 0  # the number of tensors saved in this storage, and how many of them were requested
        self.turn = 0

    def __del__(self) -> None:
        self.wait_no_more()
        # The storage was fetched but never requested, so its memory may be reused only after the copy into it.
        if self.kept is not None and self.arrived is not None:
            self.computation.wait_event(self.arrived)
        if self.buffer is not None:
            self.lane.buffers.give(self.buffer, self.arrived or self.copied)

    def wait(self) -> None:
        """Starts counting this storage as waiting on the GPU."""
        self.is_waiting = True
        self.lane.waiting += 1
        self.lane.waiting_bytes += self.bytes

    def wait_no_more(self) -> None:
        """Stops counting this storage as waiting, because it left the GPU or is being used."""
        if self.is_waiting:
            self.is_waiting = False
            self.lane.waiting -= 1
            self.lane.waiting_bytes -= self.bytes

    def copy_out(self) -> None:
        """Queues the copy to the host. `copied` is the event at the end of the copy."""
        self.lane.copied_bytes += self.bytes
        bytes = torch.empty(0, dtype=torch.uint8, device=self.device).set_(self.kept)
        if self.device.type != "cuda" and isinstance(self.lane.buffers, Pinned):
            self.host = bytes.clone()
            return
        self.buffer, free = self.lane.buffers.take(self.bytes)
        self.host = self.buffer[: self.bytes]
        if self.device.type != "cuda":
            self.host.copy_(bytes)
            return
        stream = beside(self.device, "out")
        if free is not None:
            stream.wait_event(free)
        with torch.cuda.stream(stream), context.unread():
            self.host.copy_(bytes, non_blocking=True)
        self.copied = stream.record_event()

    def leave(self) -> None:
        """Frees the storage's memory on the GPU once the copy has ended."""
        if self.host is None:
            self.copy_out()
        if self.copied is not None:
            torch.cuda.current_stream(self.device).wait_event(self.copied)
        self.is_stale = self.is_changed()
        self.has_left, self.kept, self.original = True, None, None
        self.wait_no_more()

    def is_changed(self) -> bool:
        """Whether the program has changed the tensor since it was saved."""
        return self.original is not None and self.original._version != self.version

    def storage(self) -> Any:
        """The storage on the device; copies it back if it is not there."""
        if self.is_stale or self.is_changed():
            raise RuntimeError(CHANGED)
        found = self.kept = self.resident() or self.fetch()
        self.back = StorageWeakRef(found)
        self.wait_no_more()
        if self.asked == 0:
            self.lane.fetch_ahead(self)
        if self.arrived is not None:
            torch.cuda.current_stream(self.device).wait_event(self.arrived)
        self.asked += 1
        if self.asked == self.views:
            self.asked = 0
            if self.has_left:
                self.kept = None
        return found

    def resident(self) -> Any:
        """The storage on the device; None if it is not there."""
        if self.kept is not None or self.back is None:
            return self.kept
        return torch.UntypedStorage._new_with_weak_ptr(self.back.cdata)

    def fetch(self) -> Any:
        """Queues the copy back. `arrived` is the event at the end of the copy."""
        if self.device.type != "cuda":
            found = self.host.clone()
        else:
            self.computation = torch.cuda.current_stream(self.device)
            found = torch.empty(self.host.shape, dtype=torch.uint8, device=self.device)
            stream = beside(self.device, "back")
            with torch.cuda.stream(stream):
                found.copy_(self.host, non_blocking=True)
            self.arrived = stream.record_event()
        return found.untyped_storage()
