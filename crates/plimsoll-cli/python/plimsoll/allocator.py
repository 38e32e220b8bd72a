"""PyTorch's allocator: its backend, the bytes that are allocated now, how it rounds requests, and its recorded history."""

from __future__ import annotations

import contextlib
import gc
import itertools
import operator
import os
import pickle
from collections.abc import Iterator
from typing import Any

LEAST_GROWTH = 16 << 10  # bytes per step; slower growth is ignored
ROUNDING = 512


def backend(torch: Any) -> str:
    """PyTorch's allocator backend; `none` if caching is off."""
    if os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING"):
        return "none"
    try:
        return str(torch.cuda.memory.get_allocator_backend())
    except AttributeError:  # an older PyTorch, which has only one backend
        return "native"


def allocated(torch: Any, device: int) -> int:
    """The currently allocated bytes on a device."""
    try:
        return int(torch._C._cuda_memoryStats(device)["allocated_bytes"]["all"]["current"])
    except Exception:  # the function is private, and may be missing
        return int(torch.cuda.memory_allocated(device))


def levels(torch: Any) -> list[int]:
    """The currently allocated bytes on each device."""
    return [allocated(torch, it) for it in range(torch.cuda.device_count())]


def rounded(bytes: int) -> int:
    """The bytes that a request occupies after rounding."""
    return -(-bytes // ROUNDING) * ROUNDING


def record_history(torch: Any, *, stacks: str, max_entries: int, context: str | None = "alloc") -> None:
    """Starts PyTorch's recording of the history, with the names of optimizer steps and of the profiler's steps."""
    record = torch.cuda.memory._record_memory_history
    options = dict(enabled="all", context=context, stacks=stacks, max_entries=max_entries)
    try:
        record(global_record_annotations=True, **options)
    except TypeError:  # an older PyTorch without that option
        record(**options)


@contextlib.contextmanager
def fast(torch: Any) -> Iterator[None]:
    """A context in which PyTorch's snapshot takes less time.

    The snapshot asks `torch` for `_inductor`, to name the lines of compiled code, and `torch` imports that module when
    it is asked, which takes 1 to 2 s. A program that has not imported it has compiled nothing. And each event is a
    dictionary, so that the garbage collector would run often and find nothing.
    """
    names, collects = vars(torch), gc.isenabled()
    is_missing = "_inductor" not in names
    if is_missing:
        names["_inductor"] = None
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
        if is_missing and names["_inductor"] is None:
            del names["_inductor"]


def read_snapshot(torch: Any) -> dict[str, Any]:
    """PyTorch's snapshot of its allocator, with the recorded history."""
    with fast(torch):
        snapshot: dict[str, Any] = torch.cuda.memory._snapshot()
        return snapshot


def tracked(kind: type) -> list[Any]:
    """All objects of exactly this class. No bytecode runs while there are references to other objects: otherwise, another
    thread could continue, and CPython raises a SystemError where it resizes a tuple that has more than one reference.
    """
    one, other = itertools.tee(itertools.chain.from_iterable(map(gc.get_objects, (None,))))
    return list(itertools.compress(one, map(operator.is_, map(type, other), itertools.repeat(kind))))


def leaf_inputs(torch: Any, optimizers: list[Any]) -> list[int]:
    """The addresses of tensors on the GPU that get a gradient, but are not parameters of a module or an optimizer."""
    own = {id(it) for optimizer in optimizers for group in optimizer.param_groups for it in group["params"]}
    found = (it for it in tracked(torch.Tensor) if id(it) not in own)
    return [it.untyped_storage().data_ptr() for it in found if it.is_cuda and it.requires_grad and it.is_leaf]


def dump_snapshot(torch: Any, path: str, optimizers: list[Any]) -> None:
    """Writes PyTorch's snapshot in the same way as PyTorch, and lists the tensors that are not parameters. The file is
    either complete or missing.
    """
    with fast(torch):
        try:
            inputs = leaf_inputs(torch, optimizers)
        except Exception:  # an optimizer without groups
            inputs = []
        if inputs:
            snapshot = torch.cuda.memory._snapshot()
            record = {"inputs": {str(it): 1 for it in inputs}}
            snapshot.setdefault("allocator_settings", {})["plimsoll_record"] = record
            with open(f"{path}.unfinished", "wb") as file:
                pickle.dump(snapshot, file, protocol=4)
        else:
            torch.cuda.memory._dump_snapshot(f"{path}.unfinished")
    os.replace(f"{path}.unfinished", path)


def write_snapshot(torch: Any, snapshot: dict[str, Any], path: str, max_entries: int, skipped: int | None) -> None:
    """Writes a snapshot, including what `plimsoll explain` needs in addition to PyTorch's own data. `skipped` is the
    number of steps that GradScaler skipped; None if there was no GradScaler.
    """
    cuda = torch.cuda
    totals = {str(it): cuda.get_device_properties(it).total_memory for it in range(cuda.device_count())}
    settings = snapshot.setdefault("allocator_settings", {})
    record = settings["plimsoll_record"] = {"max_entries": max_entries, "device_total_bytes": totals}
    if skipped is not None:
        record["skipped_steps"] = skipped
    # The file is either complete or missing, even if the process is killed while writing.
    with open(f"{path}.unfinished", "wb") as file:
        pickle.dump(snapshot, file, protocol=4)  # PyTorch's viewer cannot read newer ones
    os.replace(f"{path}.unfinished", path)
