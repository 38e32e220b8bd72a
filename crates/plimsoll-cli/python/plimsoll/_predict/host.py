"""Names the owners of large pieces of host memory, and the phases of the program, for the preloaded library that counts
host memory (`host/` in the sources of the program `plimsoll`). Without the library, this does nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from ..frames import of_program
from . import settings

FOLDER = "PLIMSOLL_HOST_FOLDER"  # the variable with the folder for the library's files
LOAD, STEP, AFTER = range(3)  # phases
LARGE = 1 << 20  # smaller pieces of memory have no owners
EVENT = 620  # assumed bytes of an event in the recording of PyTorch's allocator, if they are not measured
FEW = 20_000  # with more events than this, measuring their size takes too long
LOOKS = 2  # the number of first steps after which tensors of optimizers are named


def loaded() -> Any:
    """The library, if it is in this process."""
    library = ctypes.PyDLL(None)
    if not settings.FOLDER or not hasattr(library, "plimsoll_host_enter"):
        return None
    library.plimsoll_host_enter.argtypes = [ctypes.c_char_p]
    library.plimsoll_host_leave.argtypes = [ctypes.c_int]
    library.plimsoll_host_own.argtypes = [ctypes.c_uint64, ctypes.c_char_p]
    library.plimsoll_host_continue.argtypes = [ctypes.c_char_p]
    library.plimsoll_host_phase.argtypes = [ctypes.c_int]
    library.plimsoll_host_pause.restype = ctypes.c_uint64
    for name in ("resume", "events", "event_bytes"):
        getattr(library, f"plimsoll_host_{name}").argtypes = [ctypes.c_uint64]
    return library


COUNTER = loaded()


@contextlib.contextmanager
def ours() -> Iterator[None]:
    """Memory that becomes resident in this context belongs to our hooks, and is not counted."""
    if COUNTER is None:
        yield
        return
    # Processes that are started here also belong to our hooks.
    before, folder = COUNTER.plimsoll_host_pause(), os.environ.pop(FOLDER, None)
    try:
        yield
    finally:
        if folder is not None:
            os.environ[FOLDER] = folder
        COUNTER.plimsoll_host_resume(before)


def level() -> int:
    """The process's anonymous resident bytes; 0 if they are not counted."""
    if COUNTER is None:
        return 0
    before = int(COUNTER.plimsoll_host_pause())
    COUNTER.plimsoll_host_resume(before)
    return before


def place() -> str:
    """The line of the program that is running, in the form ` at train.py:7`."""
    for frame in of_program(sys._getframe(2)):
        return f" at {os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
    return ""


def owned(function: Callable[..., Any], what: str) -> Callable[..., Any]:
    """Wraps the function so that the large pieces of memory that it requests belong to `what` and the line that calls
    it.
    """

    @functools.wraps(function)
    def owner(*args: Any, **kwargs: Any) -> Any:
        before = COUNTER.plimsoll_host_enter((what + place()).encode())
        try:
            return function(*args, **kwargs)
        finally:
            COUNTER.plimsoll_host_leave(before)

    return owner


def own(tensor: Any, what: bytes) -> None:
    """Registers `what` as the owner of a tensor on the host."""
    try:
        if tensor.device.type == "cpu" and tensor.nbytes >= LARGE:
            COUNTER.plimsoll_host_own(tensor.untyped_storage().data_ptr(), what)
    except (AttributeError, RuntimeError, NotImplementedError):
        pass  # a tensor without memory of the usual kind


class Host:
    """The owners and phases of one process."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.phase = LOAD
        if COUNTER is None:
            return
        torch.load = torch.serialization.load = owned(torch.serialization.load, "torch.load")
        torch.save = torch.serialization.save = owned(torch.save, "torch.save")
        module = torch.nn.Module
        module.state_dict = owned(module.state_dict, "state_dict")
        for name in ("register_parameter", "register_buffer"):
            setattr(module, name, self.registered(getattr(module, name)))
        apply = module._apply

        @functools.wraps(apply)
        def _apply(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = apply(self, *args, **kwargs)
            for tensor in (*self._parameters.values(), *self._buffers.values()):
                if tensor is not None:
                    own(tensor, WEIGHTS)
            return result

        module._apply = _apply
        self.watch_loaders()

    def watch_loaders(self) -> None:
        """The steps begin when a loop over a DataLoader begins."""
        from torch.utils.data import dataloader

        kind, host = dataloader._BaseDataLoaderIter, self
        begin = kind.__init__

        @functools.wraps(begin)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            host.enter(STEP)
            begin(self, *args, **kwargs)

        kind.__init__ = __init__

    def registered(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a method of modules that registers a tensor, which then belongs to the weights."""

        @functools.wraps(function)
        def register(module: Any, name: str, tensor: Any = None, *args: Any, **kwargs: Any) -> Any:
            if tensor is not None:
                own(tensor, WEIGHTS)
            return function(module, name, tensor, *args, **kwargs)

        return register

    def enter(self, phase: int) -> None:
        """Called when a later phase of the program begins."""
        if COUNTER is not None and phase > self.phase:
            self.phase = phase
            COUNTER.plimsoll_host_phase(phase)

    def stepped(self, optimizer: Any, step: int) -> None:
        """Called after an optimizer's step: registers the optimizer as the owner of its tensors on the host."""
        self.enter(STEP)
        if COUNTER is None or step > LOOKS:
            return
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    own(parameter.grad, b"gradients on the host")
                for value in optimizer.state.get(parameter, {}).values():
                    if self.torch.is_tensor(value):
                        own(value, b"optimizer states on the host")

    def events(self) -> int:
        """Counts the events that PyTorch's allocators have recorded so far. The memory of the recorded events belongs
        to our hooks, not to the program.
        """
        if COUNTER is None or not settings.RECORDS:
            return 0
        cuda, count = self.torch.cuda, 0
        for device in range(cuda.device_count()):
            stats = cuda.memory_stats(device)
            count += sum(
                stats.get(f"{it}.all.{what}", 0) for it in ("allocation", "segment") for what in ("allocated", "freed")
            )
        COUNTER.plimsoll_host_events(count)
        return count

    def end(self) -> None:
        """From now on, nothing is counted."""
        if COUNTER is not None:
            COUNTER.plimsoll_host_end()
            os.environ.pop(FOLDER, None)

    def weigh(self) -> None:
        """Measures the size of the recording in bytes by ending it. The snapshot has already been written."""
        count = self.events()
        if count == 0:
            return
        size, heap = EVENT, in_use()
        if heap is not None and count > FEW:
            self.torch.cuda.memory._record_memory_history(None)
            size = max(heap - (in_use() or 0), 0) // count
        COUNTER.plimsoll_host_event_bytes(size)


WEIGHTS = b"weights on the host"


class MallInfo(ctypes.Structure):
    """The C library's figures for its heap."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    ]


def in_use() -> int | None:
    """How many bytes of the C library's heap are in use; None before glibc 2.33."""
    known = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if known is None:
        return None
    known.restype = MallInfo
    info = known()
    return int(info.uordblks + info.hblkhd)


def pretrained(module: Any) -> None:
    """Makes `from_pretrained` of transformers the owner of the host memory that it requests."""
    if COUNTER is not None:
        kind = module.PreTrainedModel
        kind.from_pretrained = classmethod(owned(kind.from_pretrained.__func__, "from_pretrained"))


def state_dicts(module: Any) -> None:
    """Makes the functions of torch.distributed.checkpoint.state_dict the owners of the host memory that they
    request.
    """
    for name in ("get_state_dict", "get_model_state_dict", "get_optimizer_state_dict"):
        if COUNTER is not None and hasattr(module, name):
            setattr(module, name, owned(getattr(module, name), name))


def safetensors(module: Any) -> None:
    """Makes safetensors the owner of the host memory that it requests."""
    for name in ("load_file", "load", "save_file"):
        if COUNTER is not None and hasattr(module, name):
            setattr(module, name, owned(getattr(module, name), f"safetensors.{name}"))


def continue_as_program(folder: str) -> None:
    """Called in a fork that serves a trial of `plan`: from now on, the fork is counted as the program."""
    if COUNTER is not None:
        os.environ[FOLDER] = folder
        COUNTER.plimsoll_host_continue(os.fsencode(folder))
