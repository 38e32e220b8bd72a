"""The part of `plimsoll run` inside the user's Python processes: it applies techniques, records the memory
history, serves figures to `plimsoll top`, and explains a failure below its traceback. start.py is the entry
point.
"""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import AbstractContextManager
from typing import Any

from .. import protocol, sizes
from ..allocator import allocated, read_snapshot, record_history, write_snapshot
from . import ends, settings
from .settings import answer

CONTEXT = 845_000_000  # bytes of an H100 outside the allocator, with the common libraries
ENTRIES = 100_000  # the number of latest events in the history


class Attend:
    """The watcher of one process, which is also the `host` of the techniques."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.path: str | None = None  # the snapshot of the last request that failed
        self.techniques: Any = None
        self.pid = os.getpid()
        atexit.register(self.end)
        if settings.WITH:
            try:
                self.apply()
            except Exception as why:  # Without techniques, the program would need too much memory.
                names = ", ".join(json_of(settings.WITH))
                say(
                    f"error: {names} cannot be applied in this process: {type(why).__name__}: {why}",
                    "without techniques: plimsoll run -- COMMAND",
                )
                os._exit(2)
        if settings.NVTX:
            self.name_ranges()
        if settings.LIMIT:
            torch.cuda._lazy_call(self.limit)
        self.live = self.check = None
        if settings.CHECK:
            from .check import Check

            self.check = Check(
                torch,
                settings.CHECK,
                settings.PROGRAM,
                self.dump if settings.WATCH != "light" and settings.WATCH else None,
            )
        if settings.WATCH:
            from .gauges import Gauges
            from .live import Live

            self.gauges = Gauges(torch)
            self.live = Live(self.gauges, self.write)
            torch.cuda._lazy_call(self.start)

    def apply(self) -> None:
        """Applies the techniques of `--with`."""
        from .. import techniques

        self.techniques = techniques
        techniques.install(self.torch)
        techniques.activate(json_of(settings.WITH), self)
        answer(protocol.APPLIED)

    def name_ranges(self) -> None:
        """Makes the NVTX ranges of `--nvtx`."""
        from .nvtx import Ranges

        try:
            Ranges(self.torch)
        except Exception as why:
            say(f"--nvtx: no ranges in this process: {why}")

    def limit(self) -> None:
        """Limits the allocator of each GPU to `--memory-limit`."""
        # PyTorch rounds the bytes down.
        cuda = self.torch.cuda
        for device in range(cuda.device_count()):
            total = cuda.get_device_properties(device).total_memory
            if settings.LIMIT > total:
                name = cuda.get_device_name(device)
                say(f"--memory-limit {settings.LIMIT}: {name} has only {total} bytes, so no limit is set")
            else:
                cuda.set_per_process_memory_fraction(min((settings.LIMIT + 0.5) / total, 1.0), device)

    def refused(self, name: str, reason: str) -> None:
        """Called if a technique cannot be applied: ends the program before any of its parameters have changed."""
        say(f"error: {name} cannot be applied to this program: {reason}", f"leave it out: {without(name)}")
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(2)

    def note(self, text: str) -> None:
        """Prints a measurement of a technique."""
        say(text)

    def unread(self) -> AbstractContextManager[None]:
        """Does nothing, because reads are not followed on a real device."""
        import contextlib

        return contextlib.nullcontext()

    def start(self) -> None:
        """Called when CUDA is initialized and nothing is allocated yet."""
        try:
            if settings.WATCH == "light":
                self.torch.cuda.memory._record_memory_history(enabled="state", context=None, stacks="python")
            else:
                self.record(True)
                if settings.WATCH == "full":
                    from .stacks import Stacks

                    self.gauges.stacks = Stacks(self.torch, self.record)
            self.torch._C._cuda_attach_out_of_memory_observer(self.on_out_of_memory)
        except Exception as why:  # A failure of the watcher must not end the program.
            say(f"this process is not watched: {why}")
        try:
            if self.live is not None:
                self.live.serve()
        except Exception as why:
            say(f"this process cannot be watched live: {why}")

    def record(self, with_stacks: bool) -> None:
        """Records the history, with Python stacks or without."""
        context = "alloc" if with_stacks else None
        record_history(self.torch, stacks="python", max_entries=ENTRIES, context=context)

    def on_out_of_memory(self, device: int, asked: int, total: int, free: int) -> None:
        """Called when a request has failed: writes a snapshot of this moment."""
        try:
            self.path = self.dump(os.path.join(settings.SNAPSHOTS, f"oom-{self.name()}.pickle"))
        except Exception as why:
            say(f"no snapshot was written: {why}")
        level = allocated(self.torch, device)
        self.gauges.growing.ran_out(device, level)
        self.gauges.graphs.look(sys._getframe(1), level)

    def name(self) -> str:
        """The process's name in file names: its rank, or its process ID."""
        rank = own_rank()
        return f"rank{rank}" if rank else str(os.getpid())

    def write(self) -> str:
        """Writes a snapshot for `plimsoll top --snapshot`, under a file name that is not used yet."""
        for nth in range(1, 10_000):
            path = os.path.join(settings.SNAPSHOTS, f"snapshot-{self.name()}-{nth}.pickle")
            if not os.path.exists(path):
                return self.dump(path)
        raise OSError(f"{settings.SNAPSHOTS} has too many snapshots")

    def dump(self, path: str) -> str:
        """Writes a snapshot, and returns its path."""
        snapshot = read_snapshot(self.torch)
        skipped = self.gauges.skipped
        if not self.gauges.capturing:
            skipped.settle()
        write_snapshot(self.torch, snapshot, path, ENTRIES, skipped.count if skipped.tried else None)
        return path

    def end(self) -> None:
        """Called when the interpreter exits. Stores the exception that ended the process. Python has already printed
        its traceback.
        """
        if os.getpid() != self.pid:
            return
        if self.live is not None:
            self.live.end()
        failure = getattr(sys, "last_value", None)
        if failure is not None and self.path and "out of memory" in str(failure):
            self.explain()
        elif failure is not None and (end := ends.of(str(failure))):
            say(*end)
        elif failure is not None and self.techniques:
            self.blame(failure)
        elif failure is None:
            if self.path:
                say(
                    f"memory ran out, and the program continued; the snapshot is {self.path} (plimsoll explain {self.path})"
                )
            if self.live is not None and self.gauges.growth and self.kept():
                say(f"memory grew by {sizes.shown(self.gauges.growth)} a step", *self.kept())
            if self.live is not None:
                say(*self.changed())
            self.idle()
        if self.check is not None:
            try:
                say(*self.check.compared())
            except Exception as why:
                say(f"the plan could not be checked: {why}")

    def changed(self) -> list[str]:
        """Describes training memory that was freed and never allocated again, and counts the steps that GradScaler
        skipped.
        """
        rows = self.gauges.falling.rows()
        found = [f"{sizes.shown(it['bytes'])} have not been live since step {it['step']}: {it['text']}" for it in rows]
        skipped = self.gauges.skipped
        skipped.settle()
        if skipped.count:
            found.append(f"GradScaler skipped {skipped.count} of {skipped.tried} steps: gradients were infinite or NaN")
        return found

    def explain(self) -> None:
        """Prints the output of `plimsoll explain` for the snapshot of the failure."""
        import subprocess

        try:
            said = subprocess.run(
                [settings.PROGRAM, "explain", str(self.path)], capture_output=True, text=True, timeout=60
            ).stdout
        except (OSError, subprocess.SubprocessError) as why:
            said = f"not explained: {why}"
        verdict = said.strip().split("\n\n")[0]
        if self.gauges.stacks is not None and not self.gauges.stacks.are_on:
            say(
                "this step has no stacks, because they slow this program down;"
                " to record them: plimsoll run --all-stacks -- COMMAND"
            )
        say(
            verdict,
            *self.kept(),
            f"all of it: plimsoll explain {self.path}",
            f"what would make it fit: plimsoll plan {self.gpu()} -- {settings.COMMAND}",
        )

    def kept(self) -> list[str]:
        """The owners of memory that grew, or that was live when memory ran out, and sums that keep graphs."""
        rows = [it for found in self.gauges.growing.found.values() for it in found]
        return [f"kept by {it}: {sizes.shown(it.bytes)}" for it in rows] + self.gauges.graphs.lines

    def gpu(self) -> str:
        """The `--gpu` option for the GPU that this process runs on: its name if `plimsoll` knows it, otherwise its
        size. With a memory limit, the option is for a smaller GPU.
        """
        import subprocess

        properties = self.torch.cuda.get_device_properties(self.torch.cuda.current_device())
        size = properties.total_memory if not settings.LIMIT else min(settings.LIMIT + CONTEXT, properties.total_memory)
        by_size = f"--gpu {size >> 20}MiB --cc {properties.major}.{properties.minor}"
        if settings.LIMIT:
            return by_size
        try:
            rows = subprocess.run(
                [settings.PROGRAM, "predict", "--list"], capture_output=True, text=True, timeout=60
            ).stdout
        except (OSError, subprocess.SubprocessError):
            return by_size
        known = (row.split()[0] for row in rows.splitlines() if f"  {properties.name}  " in row)
        name = next(known, None)
        return f"--gpu {name}" if name else by_size

    def blame(self, failure: BaseException) -> None:
        """Reports if a technique raised the exception, or ran around the code that raised it."""
        import traceback

        from ..techniques import context

        name = context.culprit(failure)
        if name is not None:
            return self.accuse(name)
        files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(failure.__traceback__)]
        if any(it.startswith(context.FROZEN) for it in files):
            names = ", ".join(self.names())
            say(f"the program ran with {names}; to see whether it fails without them: plimsoll run -- COMMAND")

    def failed(self, name: str, failure: BaseException) -> None:
        """Called if a technique raised an exception: ends the process."""
        import traceback

        traceback.print_exception(type(failure), failure, failure.__traceback__)
        self.accuse(name)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(1)

    def accuse(self, name: str) -> None:
        """Prints which technique failed, and how to run without it."""
        say(f"error: the failure above comes from the technique {name}", f"leave it out: {without(name)}")

    def idle(self) -> None:
        """Names the techniques that had no effect, unless this process trains nothing itself, because it launches ranks
        or is the parent of a training process.
        """
        if {"torch.distributed.run", "torch.distributed.launcher.api"} & set(sys.modules) or self.only_starts():
            return
        rows = self.techniques.report() if self.techniques and self.torch.is_grad_enabled() else []
        for row in rows:
            if not row["applied"]:
                why = f": {row['detail']}" if row["detail"] else ""
                say(f"{row['name']} had no effect{why}")

    def only_starts(self) -> bool:
        """Whether this process ran no step itself, but started other processes."""
        multiprocessing = sys.modules.get("multiprocessing.process")
        counter = getattr(multiprocessing, "_process_counter", None)  # private: `count(1)` before the first child
        steps = self.techniques is None or not self.techniques.trains()
        return steps and counter is not None and repr(counter) != "count(1)"

    def names(self) -> list[str]:
        """The techniques that are active."""
        return [row["name"] for row in self.techniques.report()]


def own_rank() -> str | None:
    """The rank of this process in its job."""
    return os.environ.get("RANK") or os.environ.get("PLIMSOLL_OWN_RANK")  # fsdp hides RANK from the program


def say(*lines: Any) -> None:
    """Prints lines to stderr as messages of `plimsoll`."""
    rank = own_rank()
    who = f"plimsoll (rank {rank})" if rank else "plimsoll"
    for line in lines:
        print(f"{who}: {line}", file=sys.stderr, flush=True)


def json_of(text: str | None) -> Any:
    """The value of a variable that contains JSON."""
    import json

    return json.loads(text or "{}")


def without(name: str) -> str:
    """The `--with` option without this technique."""
    rest = [it if value is None else f"{it}={value}" for it, value in json_of(settings.WITH).items() if it != name]
    return f"plimsoll run --with {','.join(rest)} -- COMMAND" if rest else "plimsoll run -- COMMAND"
