"""Records the GPU memory of a piece of code, and writes a snapshot for ``plimsoll explain``."""

from __future__ import annotations

import os
import time
from types import TracebackType
from typing import Any

from ._holding.skipped import Skipped
from ._program import answer
from .allocator import read_snapshot, record_history, write_snapshot
from .errors import PlimsollError

ENTRIES = 1_000_000  # the number of latest events that PyTorch keeps


class Recording:
    """A recording that has begun: see :func:`record`."""

    path: str

    def __init__(
        self, path: str | os.PathLike[str], *, stacks: str, max_entries: int, marks_before: bool = False
    ) -> None:
        import torch

        self.marks_before = marks_before  # whether frames of blocks from before the recording are marked

        self.path = os.fspath(path)
        self.failed = False  # whether memory ran out and a snapshot was written at that moment
        self.running = True
        self.max_entries = max_entries
        self.began_us = time.time_ns() // 1000
        torch.cuda.init()
        # If another recording is running, such as that of `plimsoll run`, it is neither restarted nor stopped.
        self.is_shared = is_recording()
        if not self.is_shared:
            record_history(torch, stacks=stacks, max_entries=max_entries)
        observe()
        count_skipped()
        active.append(self)

    def stop(self) -> str:
        """Stops the recording, writes the snapshot, and returns its path.

        If memory ran out during the recording, the snapshot is from that moment.
        """
        if not self.running:
            return self.path
        try:
            if not self.failed:
                self.write()
        finally:
            self.cancel()
        return self.path

    def cancel(self) -> None:
        """Stops the recording without a snapshot."""
        if self.running:
            self.running = False
            active.remove(self)
            if not self.is_shared and not any(not it.is_shared for it in active):
                import torch

                torch.cuda.memory._record_memory_history(enabled=None)

    def explain(self) -> dict[str, Any]:
        """Stops the recording if it is still running, and explains the snapshot like :func:`plimsoll.explain`."""
        return answer(["explain", "--json", "--", self.stop()])

    def write(self) -> None:
        """Writes the snapshot, including what `plimsoll explain` needs in addition to PyTorch's own data."""
        import torch

        snapshot = read_snapshot(torch)
        if self.is_shared:
            for nth, events in enumerate(snapshot["device_traces"]):
                snapshot["device_traces"][nth] = [it for it in events if it.get("time_us", 0) >= self.began_us]
        if self.marks_before:
            mark_before(snapshot, self.max_entries)
        if skipped:
            skipped[0].settle()
        count = skipped[0].count if skipped and skipped[0].tried else None
        write_snapshot(torch, snapshot, self.path, self.max_entries, count)

    def __enter__(self) -> Recording:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


def record(
    path: str | os.PathLike[str] = "snapshot.pickle", *, stacks: str = "python", max_entries: int = ENTRIES
) -> Recording:
    """Records the GPU memory from here on, and writes a snapshot to ``path`` at the end.

    Use it as a context manager, or as a function whose result ends the recording::

        with plimsoll.record("snapshot.pickle"):
            train()

        recording = plimsoll.record()
        train()
        print(recording.explain()["verdict"]["text"])  # or recording.stop()

    Begin before the model is built: memory that was allocated before the recording has no owner. If memory runs out,
    the snapshot is from that moment. ``stacks="all"`` also records C++ frames, which name the operators of the backward
    pass, but is slower. ``max_entries`` is the number of latest events that PyTorch keeps. Needs PyTorch 2.1 or newer
    and a GPU.
    """
    if stacks not in ("python", "all"):
        raise ValueError(f"stacks={stacks!r}: expected 'python' or 'all'")
    if max_entries < 1:
        raise ValueError(f"max_entries={max_entries}: expected at least 1")

    why = no_gpu()
    if why is not None:
        raise PlimsollError(
            f"there is no GPU whose memory could be recorded: {why}. `plimsoll predict --gpu T4 -- python train.py` computes"
            " the memory without a GPU"
        )
    return Recording(path, stacks=stacks, max_entries=max_entries)


def no_gpu() -> str | None:
    """Why PyTorch cannot use a GPU here; ``None`` if it can."""
    try:
        import torch
    except ImportError as why:
        return f"PyTorch cannot be imported ({why})"
    if torch.cuda.is_available():
        return None
    if torch.version.cuda is None and torch.version.hip is None:
        return f"this PyTorch ({torch.__version__}) is built for the CPU only; install one with CUDA"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1"):
        return f"CUDA_VISIBLE_DEVICES={visible!r} hides all GPUs"
    return "torch.cuda.is_available() is False; nvidia-smi shows whether there is a GPU and a driver for it"


BEFORE = "<before>"  # prefix of the file names of blocks that were allocated before a recording


def mark_before(snapshot: dict[str, Any], max_entries: int) -> None:
    """Marks the frames of blocks from before this recording. An earlier recording recorded these frames; they show
    which code allocated the block.
    """
    for device, events in enumerate(snapshot["device_traces"]):
        if len(events) >= max_entries:
            continue  # the oldest events are lost, so earlier blocks cannot be distinguished
        allocated = {it["addr"] for it in events if it["action"] == "alloc"}
        for segment in snapshot["segments"]:
            address = segment["address"]
            for block in segment["blocks"] if segment["device"] == device else ():
                if block["state"].startswith("active") and block.get("address", address) not in allocated:
                    block["frames"] = [marked(frame) for frame in block.get("frames", ())]
                address += block["size"]


def marked(frame: dict[str, Any]) -> dict[str, Any]:
    """The frame with its file marked, if it is a Python file."""
    file = frame["filename"]
    is_python = file.endswith((".py", ".py_")) or file.startswith("<") or "ipykernel" in file
    return {**frame, "filename": BEFORE + file} if is_python else frame


active: list[Recording] = []
observed: list[int] = []  # the process ID, once an observer is attached


def observe() -> None:
    """Attaches an observer to PyTorch's allocator, once for all recordings, because PyTorch cannot detach observers."""
    import torch

    if observed != [os.getpid()]:
        observed[:] = [os.getpid()]
        torch._C._cuda_attach_out_of_memory_observer(on_out_of_memory)


skipped: list[Skipped] = []  # the steps that GradScaler skipped in this process, once they are counted


def count_skipped() -> None:
    """Starts counting the steps that GradScaler skips, once for all recordings."""
    if not skipped:
        import torch

        skipped.append(Skipped(torch))


def on_out_of_memory(device: int, asked: int, total: int, free: int) -> None:
    """Called when a request has failed: writes the snapshots. PyTorch ends the process if this function raises an
    exception.
    """
    for recording in active:
        try:
            recording.write()
            recording.failed = True
        except Exception:
            pass  # stop() tries again, and raises the exception


def is_recording() -> bool:
    """Whether PyTorch is already recording its history."""
    import torch

    known = getattr(torch._C, "_cuda_isHistoryEnabled", None)
    return bool(known()) if known is not None else False
