"""Questions that go directly to the simulated GPU, not through PyTorch."""

from __future__ import annotations

import ctypes


def taken_bytes(device: int) -> int:
    """The peak of this process's memory on a device, as counted by the device."""
    most_bytes = getattr(ctypes.CDLL(None), "plimsoll_standin_most_bytes", None)
    if most_bytes is None:
        return 0
    most_bytes.restype, most_bytes.argtypes = ctypes.c_uint64, [ctypes.c_int]
    return int(most_bytes(device))


def extend(size: int) -> None:
    """Gives the device this many bytes beyond those that it reports."""
    more = ctypes.CDLL(None).plimsoll_standin_extend
    more.argtypes, more.restype = (ctypes.c_uint64,), None
    more(size)


def has_standin() -> bool:
    """Whether the stand-in is loaded in this process."""
    return hasattr(ctypes.CDLL(None), "plimsoll_standin_version")
