"""Answers queries about the GPU before its first use, such as whether it supports bf16, in a program from which
`serve.py` forks. Such queries would initialize CUDA, so the fork would happen before the program creates its model, and
each fork would create it again. So a short-lived child initializes CUDA and answers the query. The memory size may
differ from fork to fork, so we record whether a program reads the size or uses NVML.

Calls that wait for the GPU or reset a peak do nothing before the first use.
"""

from __future__ import annotations

import functools
import pickle
import sys
from collections.abc import Callable
from typing import Any

NEEDLESS = (
    "synchronize",
    "reset_peak_memory_stats",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
)


class Properties:
    """The fields of `_CudaDeviceProperties`, a type that does not exist before CUDA is initialized.
    `now` returns the real properties if CUDA is already in use; otherwise `now` records that the program requested the
    size.
    """

    def __init__(self, values: dict[str, Any], text: str, now: Callable[[], Any]) -> None:
        self.__dict__.update(values)
        self._total_memory: Any
        self._text, self._now = text, now

    @property
    def total_memory(self) -> Any:
        """The memory size; also records that the program has read it."""
        now = self._now()
        return self._total_memory if now is None else now.total_memory

    def __repr__(self) -> str:
        now = self._now()
        return self._text if now is None else repr(now)


class Questions:
    """`is_early` says whether CUDA is not in use yet; `child` runs a function in a child process and returns the bytes
    that the function returned.
    """

    def __init__(
        self,
        torch: Any,
        is_early: Callable[[], bool],
        child: Callable[[Callable[[], bytes]], bytes],
        note: Callable[[], None],
    ) -> None:
        self.torch, self.is_early, self.child, self.note = torch, is_early, child, note
        self.known: list[Properties] | None = None
        cuda = torch.cuda
        current_device, self.original = cuda.current_device, cuda.get_device_properties

        @functools.wraps(current_device)
        def current() -> Any:
            # PyTorch's own functions call this right before they use the device.
            is_own = sys._getframe(1).f_globals.get("__name__") == "torch._utils"
            return 0 if not is_own and is_early() else current_device()

        @functools.wraps(self.original)
        def properties(device: Any = None) -> Any:
            known = self.properties() if is_early() else []
            index = index_of(torch, device) if known else 0
            return known[index] if 0 <= index < len(known) else self.original(device)

        cuda.current_device, cuda.get_device_properties = current, properties
        for name in NEEDLESS:
            for module in (cuda, cuda.memory):
                if hasattr(module, name):
                    setattr(module, name, self.unless_early(getattr(module, name)))

    def unless_early(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a function so that it does nothing before the first use of CUDA."""

        @functools.wraps(original)
        def called(*args: Any, **kwargs: Any) -> Any:
            return None if self.is_early() else original(*args, **kwargs)

        return called

    def properties(self) -> Any:
        """The properties of all devices. They are queried only once."""
        if self.known is None:
            found = pickle.loads(self.child(self.ask) or pickle.dumps([]))
            self.known = [
                Properties(values, text, functools.partial(self.now, device))
                for device, (values, text) in enumerate(found)
            ]
        return self.known

    def now(self, device: int) -> Any:
        """The properties of a device if CUDA is in use. Otherwise, records that the memory size was queried."""
        if not self.is_early():
            return self.original(device)
        return self.note()

    def ask(self) -> bytes:
        """Runs in the child. Returns the properties of all devices as bytes."""
        found = []
        for device in range(self.torch.cuda.device_count()):
            it = self.original(device)
            values = {name: getattr(it, name) for name in dir(it) if not name.startswith("_")}
            values = {
                name: value if isinstance(value, (bool, int, float)) else str(value) for name, value in values.items()
            }
            values["_total_memory"] = values.pop("total_memory")
            found.append((values, repr(it)))
        return pickle.dumps(found)


def index_of(torch: Any, device: Any) -> int:
    """The index of a CUDA device; 0 if `device` has no number. -1 for other kinds of devices."""
    if isinstance(device, int):
        return device
    device = torch.device("cuda" if device is None else device)
    return (device.index or 0) if device.type == "cuda" else -1
