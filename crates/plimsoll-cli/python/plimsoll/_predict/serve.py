"""Tries several sets of techniques with one run of the program. When the program first uses CUDA, its imports are
complete, and often its model exists already. At this point, the process waits for requests, and for each request it
forks a child that runs the rest of the program.

A request is a file N.json in the folder of requests. It contains the set of techniques, and the folder for the reports.
One fork per processor runs at a time, in the order of the requests. A request with `alone` runs while no other request
does. The answer N.done contains the exit status, and whether another fork ran at the same time. The file `late`
contains a number: requests with lower numbers are abandoned, except those at the GPU's size; the file `end` ends the
process. PyTorch's fork handlers, which would forbid CUDA in the child, do not run. Without glibc's `_Fork`, or if a
process group is created before the first use of CUDA, nothing is served, and each set needs a separate run.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

from .. import protocol
from . import host, patches, settings, view
from .questions import Questions

ASKED = "asked"  # a file in the folder of plimsoll-standin: the program has asked for the GPU's memory size
MOST = 4  # the maximum number of children at once
COUNTED = 7  # steps of a child that counts operators: two that count, and five that show the host's time
WORKERS = 2  # workers of a data loader in a child. Each prefetches one batch, because most batches would not be used


class Watched(Protocol):
    """What this file needs of `Watch` (watch.py), which reports about this process."""

    state: str
    techniques: Any
    listening: int | None
    places: list[tuple[str, str]]

    def leave(self, status: int) -> None:
        """Ends the process."""

    def listen(self) -> None:
        """Starts the thread that waits for the stop file."""


class Child:
    """A fork that serves one request."""

    def __init__(self, number: int, request: protocol.Request, is_beside: bool) -> None:
        self.number, self.limit_s, self.is_alone = number, request["limit_s"], request["alone"]
        self.is_last, self.view = bool(request["memory_bytes"]), request["view"]
        self.begun, self.is_beside = time.monotonic(), is_beside
        self.pid = 0


class Serve:
    """The process that waits at its first use of CUDA, and forks for each request."""

    def __init__(self, torch: Any, watch: Watched, folder: str, stop: str) -> None:
        self.torch, self.watch, self.folder, self.stop = torch, watch, folder, stop
        self.pid, self.is_deferred = os.getpid(), False
        self.library = ctypes.PyDLL(None)
        world = os.environ.get("WORLD_SIZE") or "1"
        if not hasattr(self.library, "_Fork") or world != "1":
            return
        from .. import techniques

        techniques.install(torch)
        original = torch._C._cuda_init

        def _cuda_init() -> Any:
            torch._C._cuda_init = original
            if os.getpid() == self.pid and not self.has_group() and self.is_first():
                self.requests()
            return original()

        torch._C._cuda_init = _cuda_init
        self.choose_later(torch)
        Questions(torch, self.is_early, self.asked, self.note_question)

    def choose_later(self, torch: Any) -> None:
        """Postpones the selection of the first device. `set_device` uses CUDA although no tensor is on the GPU yet, and
        transformers calls it before the program creates its model. The first device is the current one anyway, so the
        selection can wait until CUDA is used or a process group is created.
        """
        original = torch._C._cuda_setDevice

        def _cuda_setDevice(device: Any) -> Any:
            if device != 0 or torch.cuda.is_initialized():
                torch._C._cuda_setDevice = original
                return original(device)
            self.is_deferred = True

        torch._C._cuda_setDevice = _cuda_setDevice
        if torch.distributed.is_available():
            begin = torch.distributed.init_process_group

            @functools.wraps(begin)
            def init_process_group(*args: Any, **kwargs: Any) -> Any:
                if self.is_deferred:
                    torch.cuda.init()
                return begin(*args, **kwargs)

            torch.distributed.init_process_group = init_process_group

    def is_early(self) -> bool:
        """Whether this process has not used CUDA yet and may serve later."""
        return (
            os.getpid() == self.pid
            and not self.torch.cuda.is_initialized()
            and not self.has_group()
            and not self.has("serving")
        )

    def asked(self, question: Callable[[], bytes]) -> bytes:
        """Runs a function in a child with a separate device. Returns the bytes that the function returned; empty if it
        failed.
        """
        own = os.path.join(self.folder, "asking")
        os.makedirs(own, exist_ok=True)
        reader, writer = os.pipe()
        pid = self.fork()
        if pid == 0:
            try:
                settings.FOLDER = os.environ["PLIMSOLL_STANDIN_NOTICES"] = own
                self.take_device(0, own)
                with open(writer, "wb") as file:
                    file.write(question())
            finally:
                self.watch.leave(0)
        os.close(writer)
        with open(reader, "rb") as file:
            answer = file.read()
        os.waitpid(pid, 0)
        return answer

    def note_question(self) -> None:
        """Records that the program queried the memory's size."""
        shared = os.environ.get("PLIMSOLL_STANDIN_SHARED")
        if shared and self.is_early():
            open(os.path.join(shared, ASKED), "w").close()

    def is_first(self) -> bool:
        """Several processes of the program may use CUDA; the first one serves."""
        try:
            os.close(os.open(os.path.join(self.folder, "serving"), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def requests(self) -> None:
        """Waits for requests, and forks for each. Returns in a child."""
        # Every optimizer imports torch._dynamo, which takes a second or two, so it is imported once, before the forks.
        with contextlib.suppress(Exception):
            importlib.import_module("torch._dynamo")
            if os.environ.get("PLIMSOLL_PLAN_RANKS"):
                importlib.import_module("torch.distributed.fsdp")
                importlib.import_module("torch.distributed.tensor.parallel")
        # Imports leave so many new objects that each child would soon examine all objects for cycles.
        gc.collect()
        number, most = 0, min(len(os.sched_getaffinity(0)), MOST)
        children: list[Child] = []
        while os.path.isdir(self.folder) and not self.has(protocol.END):
            children = [it for it in children if not self.is_done(it)]
            path = os.path.join(self.folder, f"{number}.json")
            if len(children) >= most or any(it.is_alone for it in children) or not os.path.exists(path):
                time.sleep(0.005)
                continue
            with open(path) as file:
                request: protocol.Request = json.load(file)
            if not request["memory_bytes"] and number < self.late():
                number += 1
            elif children and request["alone"]:
                time.sleep(0.005)
            elif request["memory_bytes"] and self.was_asked_for_memory():
                self.answer(number, protocol.UNABLE, False)
                number += 1
            else:
                child = Child(number, request, bool(children))
                child.pid = self.fork()
                if child.pid == 0:
                    return self.begin(request)
                for other in children:
                    other.is_beside = True
                children.append(child)
                number += 1
        for child in children:  # The results of these requests are no longer needed.
            os.kill(child.pid, signal.SIGKILL)
            os.waitpid(child.pid, 0)
        # A parent process may wait forever for an answer from this process.
        open(self.stop, "w").close()
        self.watch.state = "stopped"
        self.watch.leave(0)

    def has(self, name: str) -> bool:
        """Whether a file with this name is in the folder."""
        return os.path.exists(os.path.join(self.folder, name))

    def late(self) -> int:
        """The number in the file `late`: requests with lower numbers are abandoned."""
        try:
            with open(os.path.join(self.folder, protocol.LATE)) as file:
                return int(file.read())
        except FileNotFoundError:
            return 0

    def is_done(self, child: Child) -> bool:
        """Whether a child has ended or taken too long. If so, answers its request."""
        pid, status = os.waitpid(child.pid, os.WNOHANG)
        if pid:
            ended: int | str = os.waitstatus_to_exitcode(status)
        elif time.monotonic() - child.begun > child.limit_s or (child.number < self.late() and not child.is_last):
            os.kill(child.pid, signal.SIGKILL)
            os.waitpid(child.pid, 0)
            ended = protocol.EXPIRED
        else:
            return False
        # If the user ends the search, the children end as well; that says nothing about their sets.
        shutil.rmtree(child.view, ignore_errors=True)  # the files of an overlay are already gone
        if not os.path.exists(self.stop):
            self.answer(child.number, ended, child.is_beside)
        return True

    def answer(self, number: int, status: int | str, is_beside: bool) -> None:
        """Answers a request: the exit status, and whether another child ran at the same time."""
        done = os.path.join(self.folder, f"{number}.done")
        with open(f"{done}.unfinished", "w") as file:
            json.dump(protocol.Done(status=status, beside=is_beside), file)
        os.replace(f"{done}.unfinished", done)

    def was_asked_for_memory(self) -> bool:
        """Whether the program queried the memory's size before it used CUDA, for example through NVML or nvidia-smi."""
        shared = os.environ.get("PLIMSOLL_STANDIN_SHARED")
        return shared is not None and shared != "" and os.path.exists(os.path.join(shared, ASKED))

    def fork(self) -> int:
        """Forks without PyTorch's handlers. Returns 0 in the child."""
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        python = ctypes.pythonapi
        # A child would wait forever if it had to release the interpreter's lock before it knows that it has no other
        # threads.
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1000)
        time.sleep(0.02)
        python.PyOS_BeforeFork()
        child = int(self.library._Fork())
        (python.PyOS_AfterFork_Child if child == 0 else python.PyOS_AfterFork_Parent)()
        sys.setswitchinterval(interval)
        return child

    def begin(self, request: protocol.Request) -> None:
        """Called in the child: lets the program continue with this set."""
        settings.FOLDER = request["reports"]
        settings.RECORDS, settings.SETTLES, settings.STOPS = request["records"], request["settles"], request["stops"]
        settings.LOOKS = request["looks"]
        if request["counts"]:
            settings.STEPS, settings.REACHES = COUNTED, False
        os.environ["PLIMSOLL_STANDIN_NOTICES"] = request["reports"]
        host.continue_as_program(request["reports"])
        self.watch.places = view.fork(request["view"])
        self.take_device(request["memory_bytes"] or 0, request["shared"])
        self.torch.set_num_threads(1)  # The child does not inherit the threads of the parent's thread pool.
        if not request["shows"]:
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, 1), os.dup2(nothing, 2)
        if request["ranks"] > 1:
            self.be_a_rank(request["ranks"])
        limit = request["limit_bytes"]
        if limit:
            # `_lazy_call` would wait for a lock that this thread holds, because `_lazy_init` is on its stack.
            self.torch.cuda._queued_calls.append((lambda: self.limit(limit), []))
        from .. import techniques

        self.watch.techniques = techniques
        techniques.activate(request["set"], self.watch)
        if request["stops"]:
            self.fetch_less()
        self.watch.listening = None
        self.watch.listen()

    def fetch_less(self) -> None:
        """Makes data loaders of this child prefetch few batches."""
        kind = self.torch.utils.data.dataloader._MultiProcessingDataLoaderIter
        original = kind.__init__

        def __init__(self: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
            before = loader.num_workers, loader.prefetch_factor
            loader.num_workers, loader.prefetch_factor = min(before[0], WORKERS), 1
            try:
                original(self, loader, *args, **kwargs)
            finally:
                loader.num_workers, loader.prefetch_factor = before

        kind.__init__ = __init__

    def take_device(self, memory_bytes: int, shared: str) -> None:
        """Switches to a separate device, which may have a different size."""
        os.environ["PLIMSOLL_STANDIN_SHARED"] = shared
        if memory_bytes:
            os.environ["PLIMSOLL_STANDIN_MEMORY"] = str(memory_bytes)
        take = ctypes.CDLL(None).plimsoll_standin_take
        take.argtypes, take.restype = (ctypes.c_uint64, ctypes.c_char_p), None
        take(memory_bytes, os.fsencode(shared))

    def has_group(self) -> bool:
        """Whether there is a process group. A process group has threads that free what it has sent. A child does not
        have these threads, but shutting the group down waits for them.
        """
        distributed = self.torch.distributed
        return bool(distributed.is_available() and distributed.is_initialized())

    def be_a_rank(self, number: int) -> None:
        """Makes this process the first of this many ranks. The other ranks do not exist."""
        place = dict(RANK=0, LOCAL_RANK=0, WORLD_SIZE=number, LOCAL_WORLD_SIZE=number, MASTER_PORT=29500)
        os.environ.update({name: str(value) for name, value in place.items()})
        os.environ.update(MASTER_ADDR="127.0.0.1", PLIMSOLL_RANKS="1")
        settings.ALONE = True
        patches.stand_alone(self.torch)

    def limit(self, bytes: int) -> None:
        """Limits PyTorch's allocator to this many bytes on each device."""
        cuda = self.torch.cuda
        for device in range(cuda.device_count()):
            cuda.set_per_process_memory_fraction(bytes / cuda.get_device_properties(device).total_memory, device)
