"""Copies of GPU storages' values on the host: `Shadow` has the values of one storage, `Shadows` all shadows of this
process. This file also lists the PyTorch operators that shadows.py follows, by kind.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

COMPARE = "eq.Scalar eq.Tensor ne.Scalar ne.Tensor lt.Scalar lt.Tensor le.Scalar le.Tensor gt.Scalar gt.Tensor ge.Scalar ge.Tensor"
LOGIC = (
    "logical_and.out logical_or.out logical_not.out logical_xor.out bitwise_and.Tensor bitwise_or.Tensor bitwise_xor.Tensor"
    " bitwise_not isin.Tensor_Tensor isin.Tensor_Scalar"
)
REDUCE = (
    "sum.dim_IntList aminmax max min amax amin any any.dim any.dims all all.dim all.dims cumsum prod bincount histc"
)
ARITHMETIC = (
    "add.Tensor sub.Tensor mul.Tensor div.Tensor div.Tensor_mode floor_divide remainder.Tensor remainder.Scalar neg clamp"
    " clamp.Tensor clamp_min clamp_max maximum minimum abs.out mean.dim sqrt hardtanh"
)
GATHER = (
    "index.Tensor index_select gather scatter_add masked_select where.self cat roll flip tril triu"
    " searchsorted.Tensor bucketize.Tensor repeat_interleave.Tensor"
)
MADE = "arange.start_out linspace.out"
CHANGED = (
    "copy_ fill_.Scalar zero_ scatter_add_ masked_fill_.Scalar masked_fill_.Tensor clamp_"
    " clamp_min_ clamp_max_ add_.Tensor sub_.Tensor mul_.Tensor bitwise_and_.Tensor bitwise_or_.Tensor index_put_"
    " _index_put_impl_ index_fill_.int_Scalar cumsum_ floor_divide_.Tensor logical_not_"
    " index_copy_ index_add_ index_fill_.int_Tensor scatter_.src scatter_.value scatter_reduce_.two put_ masked_scatter_"
    " remainder_.Tensor remainder_.Scalar div_.Tensor bitwise_xor_.Tensor logical_and_ logical_or_ logical_xor_ neg_"
    " eq_.Scalar eq_.Tensor ne_.Scalar ne_.Tensor lt_.Scalar lt_.Tensor le_.Scalar le_.Tensor gt_.Scalar gt_.Tensor"
    " ge_.Scalar ge_.Tensor tril_ triu_ random_ random_.to random_.from"
)
COUNTED = "nonzero _unique2 unique_consecutive unique_dim"

MOST_BYTES = 4 << 20  # the largest storage that gets a shadow
MOST_FLOATS = 1 << 14  # the same limit for a floating-point storage, in bytes
PURGE = 512  # if there are more shadows than this, the shadows of freed storages are removed
RANGES = 512  # the number of memory ranges that are read at once


class Shadow:
    """The values of one storage on the host. `version` is PyTorch's counter of in-place changes, which an in-place
    operator increments after its kernel. `unsure` has a mark for each of `bytes`, set at the first byte of an unsure
    value; `unsure` is None as long as all values are sure.
    """

    def __init__(
        self, reference: Any, address: int, bytes: Any, version: int, changed: bool, even: bool, unsure: Any = None
    ) -> None:
        self.reference, self.address, self.bytes, self.even, self.unsure = reference, address, bytes, even, unsure
        self.versions = (version, version + 1) if changed else (version,)


def marks_of(shadow: Shadow, tensor: Any) -> Any:
    """The marks of a tensor's values in its storage, each at the first byte of the value."""
    size = tensor.element_size()
    return shadow.unsure.as_strided(
        tensor.size(), [it * size for it in tensor.stride()], tensor.storage_offset() * size
    )


def version(tensor: Any) -> int:
    """How often a tensor was changed in place; -1 in inference mode, which does not count changes."""
    return -1 if tensor.is_inference() else tensor._version


class UnknownValueError(Exception):
    """An argument has no value on the host."""


class Shadows:
    """The shadows of this process."""

    def __init__(self, torch: Any) -> None:
        from torch.multiprocessing.reductions import StorageWeakRef

        self.torch, self.weak = torch, StorageWeakRef
        # The address of a tensor's storage, without creating a Python object for the storage: while such an object
        # exists, autograd does not add to a gradient in place, and the program would use more memory than without the
        # hooks.
        self.address = getattr(torch._C, "_storage_address", None) or (lambda tensor: tensor.untyped_storage()._cdata)
        self.in_backward: Callable[[], bool] = lambda: torch._C._current_graph_task_id() != -1
        self.shadows: dict[int, Shadow] = {}  # by the address of the storage's object
        self.libraries: list[Any] = []  # keeps the wrappers of other libraries' operators
        self.lock = threading.RLock()
        self.standin, self.writes = ctypes.CDLL(None), None
        if hasattr(self.standin, "plimsoll_standin_writes"):
            self.writes, self.seen = ctypes.c_uint64.in_dll(self.standin, "plimsoll_standin_writes"), 0

    def quiet(self) -> Any:
        """A context in which the program's function modes, such as a default device, do not apply to our calls."""
        return self.torch._C.DisableTorchFunction()

    # Shadows.

    def shadow(self, tensor: Any) -> Any:
        """The values of a tensor on the host, as a view of its shadow; None if they are unknown."""
        if not tensor.is_cuda:
            return tensor if tensor.device.type == "cpu" else None
        if not self.shadows:
            return None
        found = self.entry(tensor)
        if found is None:
            return None
        flat = found.bytes.view(tensor.dtype)
        return flat.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())

    def unsure(self, tensor: Any) -> Any:
        """A mask of the unsure values of a tensor with a shadow; None if all values are sure."""
        found = self.entry(tensor)
        if found is None or found.unsure is None:
            return None
        marks = marks_of(found, tensor).bool()
        return marks if bool(marks.any()) else None

    def entry(self, tensor: Any) -> Shadow | None:
        """The shadow of a tensor, if it still matches the tensor's values; None if they are unknown."""
        self.forget_written()
        found = self.shadows.get(self.address(tensor))
        if found is None or found.reference.expired() or version(tensor) not in found.versions:
            return None
        if tensor.is_conj() or tensor.is_neg():
            return None
        return found

    def is_even(self, tensor: Any) -> bool:
        """Whether the values of a tensor with a shadow depend on the assumption of equal shares."""
        found = self.entry(tensor)
        return found is not None and found.even

    def keep(self, tensor: Any, value: Any, changed: bool = False, even: bool = False, unsure: Any = False) -> None:
        """Stores the values of this tensor, which are known from now on. `unsure` is a bool that holds for all values,
        or a mask.
        """
        torch = self.torch
        self.forget_written()
        if not isinstance(tensor, torch.Tensor) or not tensor.is_cuda or not self.is_small(tensor, even):
            return
        key = self.address(tensor)
        found = self.shadows.get(key)
        old = found if found is not None and not found.reference.expired() else None
        if old is None:
            if tensor.is_floating_point() and self.in_backward():
                self.shadows.pop(key, None)
                return  # the tensor may be a gradient, whose storage must not get a Python object
            storage = tensor.untyped_storage()
            if storage.nbytes() > MOST_BYTES:
                return
            if tensor.numel() * tensor.element_size() < storage.nbytes() - 512 and changed:
                return  # the rest of the storage is unknown
            # If the value fills the storage, writing zeros first would only take time.
            is_filled = tensor.numel() * tensor.element_size() == storage.nbytes() and tensor.is_contiguous()
            size = storage.nbytes()
            bytes = torch.empty(size, dtype=torch.uint8, device="cpu") if is_filled else self.zeros(size)
            old = Shadow(self.weak(storage), storage.data_ptr(), bytes, 0, False, False)
            if len(self.shadows) >= PURGE:
                self.purge()
        even = even or (old.even and changed)
        fresh = Shadow(old.reference, old.address, old.bytes, version(tensor), changed, even, old.unsure)
        if unsure is not False and fresh.unsure is None:
            fresh.unsure = self.zeros(fresh.bytes.numel())
        if fresh.unsure is not None:
            marks_of(fresh, tensor).copy_(torch.as_tensor(unsure, device="cpu"))
        self.shadows[key] = fresh
        flat = fresh.bytes.view(tensor.dtype)
        flat.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset()).copy_(value)

    def zeros(self, size: int) -> Any:
        """`size` zero bytes, created without PyTorch's threads, because waking them takes longer than filling the
        memory.
        """
        return self.torch.frombuffer(bytearray(size), dtype=self.torch.uint8)

    def forget_written(self) -> None:
        """Drops the values that NCCL has overwritten. Values that ranks send to each other are unknown here; only
        plimsoll-standin knows them.
        """
        if self.writes is None or self.writes.value == self.seen:
            return
        with self.lock:
            self.seen = self.writes.value
            ranges = (ctypes.c_uint64 * (2 * RANGES))()
            while count := self.standin.plimsoll_standin_take_writes(ranges, ctypes.c_size_t(RANGES)):
                for key, it in list(self.shadows.items()):
                    begin, end = it.address, it.address + it.bytes.numel()
                    if any(ranges[2 * at] < end and begin < ranges[2 * at + 1] for at in range(count)):
                        self.shadows.pop(key, None)

    def drop(self, tensor: Any) -> None:
        """Marks the values of this tensor as unknown from now on."""
        if self.shadows:
            self.shadows.pop(self.address(tensor), None)

    def purge(self) -> None:
        """Removes the shadows of storages that are freed."""
        with self.lock:
            for key in [key for key, it in list(self.shadows.items()) if it.reference.expired()]:
                self.shadows.pop(key, None)

    def is_small(self, tensor: Any, even: bool = False) -> bool:
        """Whether a tensor is small enough for a shadow."""
        bytes = tensor.numel() * tensor.element_size()
        is_float = tensor.is_floating_point() and not even
        return 0 < bytes <= (MOST_FLOATS if is_float else MOST_BYTES) and not tensor.is_complex()

    # Arguments and results on the host.

    def on_host(self, args: Any, kwargs: Any) -> tuple[list[Any], dict[str, Any], int, bool, bool] | None:
        """Returns the arguments on the host, how many of them have a shadow, and whether any of them is `even` or
        `unsure`. None if an argument is unknown.
        """
        torch = self.torch
        state: dict[str, Any] = dict(known=0, even=False, unsure=False)

        def one(it: Any) -> Any:
            if isinstance(it, torch.Tensor):
                value = self.shadow(it)
                if value is None:
                    raise UnknownValueError
                if it.is_cuda:
                    state["known"] += 1
                    state["even"] = state["even"] or self.is_even(it)
                    state["unsure"] = state["unsure"] or self.unsure(it) is not None
                return value
            if isinstance(it, (list, tuple)):
                return [one(part) for part in it]
            if isinstance(it, torch.device):
                return torch.device("cpu")
            return it

        try:
            args, kwargs = [one(it) for it in args], {name: one(it) for name, it in kwargs.items()}
        except UnknownValueError:
            return None
        return args, kwargs, state["known"], state["even"], state["unsure"]

    def run_on_host(self, operator: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Runs the operator on the host and returns its result."""
        with self.torch._C._AutoDispatchBelowAutograd():
            return operator(*args, **kwargs)

    def failed(self, operator: Any, why: Exception) -> None:
        """Called when a wrapper failed. Nothing else needs to be done: without a shadow, the value counts as unknown,
        which is safe.
        """
        return None
