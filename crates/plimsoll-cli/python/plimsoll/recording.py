"""Records the GPU memory of a piece of code, and writes a snapshot for ``plimsoll explain``."""

from __future__ import annotations

import os
import pickle
import time
from types import TracebackType
from typing import Any

from ._program import answer
from .errors import PlimsollError

ENTRIES = 1_000_000  # events that PyTorch keeps, the latest ones


class Recording:
    """A recording that has begun: see :func:`record`."""

    path: str

    def __init__(self, path: str | os.PathLike[str], *, stacks: str, max_entries: int) -> None:
        import torch

        self.path = os.fspath(path)
        self.failed = False  # whether memory ran out, and the snapshot of that moment is written
        self.running = True
        self.max_entries = max_entries
        self.began_us = time.time_ns() // 1000
        torch.cuda.init()
        # Another recording, such as that of `plimsoll run`, goes on: it is neither restarted nor stopped.
        self.is_shared = is_recording()
        if not self.is_shared:
            start(stacks, max_entries)
        observe()
        active.append(self)

    def stop(self) -> str:
        """Ends the recording, writes the snapshot, and returns its path.

        If memory ran out while it ran, the snapshot is the one of that moment.
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
        """Ends the recording without a snapshot."""
        if self.running:
            self.running = False
            active.remove(self)
            if not self.is_shared and not any(not it.is_shared for it in active):
                import torch

                torch.cuda.memory._record_memory_history(enabled=None)

    def explain(self) -> dict[str, Any]:
        """Ends the recording, if it has not ended, and explains it as :func:`plimsoll.explain` does."""
        return answer(["explain", "--json", "--", self.stop()])

    def write(self) -> None:
        import torch

        snapshot = torch.cuda.memory._snapshot()
        if self.is_shared:
            for nth, events in enumerate(snapshot["device_traces"]):
                snapshot["device_traces"][nth] = [it for it in events if it.get("time_us", 0) >= self.began_us]
        totals = {str(it): torch.cuda.get_device_properties(it).total_memory for it in range(torch.cuda.device_count())}
        settings = snapshot.setdefault("allocator_settings", {})
        settings["plimsoll_record"] = {"max_entries": self.max_entries, "device_total_bytes": totals}
        # Whole or not there, also if the process is ended meanwhile.
        with open(f"{self.path}.unfinished", "wb") as file:
            pickle.dump(snapshot, file, protocol=4)  # PyTorch's viewer reads no newer one.
        os.replace(f"{self.path}.unfinished", self.path)

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

    As a context manager, or as a function, whose result has the end::

        with plimsoll.record("snapshot.pickle"):
            train()

        recording = plimsoll.record()
        train()
        print(recording.explain()["verdict"]["text"])  # or recording.stop()

    Begin before the model is built: memory from before the recording has no owner. If memory runs out, the snapshot is the
    one of that moment. ``stacks="all"`` also records C++ frames, which name the operators of the backward pass: slower.
    ``max_entries`` is how many of the latest events PyTorch keeps. Needs PyTorch 2.1 or newer and a GPU.
    """
    if stacks not in ("python", "all"):
        raise ValueError(f"stacks={stacks!r}: expected 'python' or 'all'")
    if max_entries < 1:
        raise ValueError(f"max_entries={max_entries}: expected at least 1")
    import torch

    if not torch.cuda.is_available():
        raise PlimsollError("there is no CUDA GPU to record: torch.cuda.is_available() is False")
    return Recording(path, stacks=stacks, max_entries=max_entries)


active: list[Recording] = []
observed: list[int] = []  # this process, once its allocators are observed


def observe() -> None:
    # PyTorch cannot detach an observer, so one is attached, once, for all recordings.
    import torch

    if observed != [os.getpid()]:
        observed[:] = [os.getpid()]
        torch._C._cuda_attach_out_of_memory_observer(on_out_of_memory)


def on_out_of_memory(device: int, asked: int, total: int, free: int) -> None:
    # PyTorch ends the process if this raises.
    for recording in active:
        try:
            recording.write()
            recording.failed = True
        except Exception:
            pass  # stop() tries again, and raises


def is_recording() -> bool:
    import torch

    known = getattr(torch._C, "_cuda_isHistoryEnabled", None)
    return bool(known()) if known is not None else False


def start(stacks: str, max_entries: int) -> None:
    import torch

    options: dict[str, Any] = dict(enabled="all", context="alloc", stacks=stacks, max_entries=max_entries)
    try:
        # Optimizers and the profiler's steps put their names into the recording.
        torch.cuda.memory._record_memory_history(global_record_annotations=True, **options)
    except TypeError:  # a PyTorch of before that option
        torch.cuda.memory._record_memory_history(**options)
