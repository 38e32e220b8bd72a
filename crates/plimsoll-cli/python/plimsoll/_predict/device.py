"""Queries that go directly to the simulated GPU, not through PyTorch."""

from __future__ import annotations

import ctypes
import sys

from .. import protocol

# Libraries that have their own kernels, or allocate device memory outside PyTorch.
LIBRARIES = (
    "apex bitsandbytes cupy deepspeed flash_attn jax mamba_ssm numba.cuda tensorflow transformer_engine vllm xformers"
).split()


def counter(name: str, device: int) -> int | None:
    """A number of bytes that the simulated GPU (plimsoll-standin) counts for a device; `None` on a real GPU."""
    function = getattr(ctypes.CDLL(None), f"plimsoll_standin_{name}", None)
    if function is None:
        return None
    function.restype, function.argtypes = ctypes.c_uint64, [ctypes.c_int]
    return int(function(device))


def taken_bytes(device: int) -> int:
    """The peak of this process's memory on a device, as counted by the device."""
    return counter("most_bytes", device) or 0


def requested_bytes(device: int) -> int | None:
    """The memory on a device that this process has requested from CUDA, through PyTorch or directly; `None` on a real
    GPU.
    """
    return counter("requested_bytes", device)


def peak(device: int) -> tuple[int, list[protocol.Outside], protocol.Refused | None]:
    """This process's memory on a device at its peak: the bytes that the process had requested, the rows for memory that
    it did not request itself, and the last such row that did not fit.
    """
    written = getattr(ctypes.CDLL(None), "plimsoll_standin_outside", None)
    rows: list[protocol.Outside] = []
    requested, refused = 0, None
    if written is None:
        return requested, rows, refused
    written.restype, written.argtypes = ctypes.c_size_t, [ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t]
    text = ctypes.create_string_buffer(written(device, None, 0) + 1)
    written(device, text, len(text))
    for line in text.value.decode().splitlines():
        kind, *words = line.split("\t")
        if kind == "requested":
            requested = int(words[0])
            continue
        owner, part, size, basis, call = words[:5]
        row = protocol.Outside(device=device, owner=owner, part=part, bytes=int(size), basis=basis, call=call)
        if kind == "row":
            rows.append(row)
        else:
            refused = protocol.Refused(row=row, free_bytes=int(words[5]))
    return requested, rows, refused


def outside(devices: int) -> tuple[dict[int, int], list[protocol.Outside], protocol.Refused | None]:
    """The bytes that had been requested at each device's peak, the rows of all devices, and the last row that did not
    fit. Devices without tensors are included, because memory may run out there before the device's first tensor.
    """
    peaks = [peak(device) for device in range(devices)]
    refused = [it for _, _, it in peaks if it]
    requested = {device: it for device, (it, _, _) in enumerate(peaks)}
    return requested, [row for _, rows, _ in peaks for row in rows], refused[-1] if refused else None


def has_streams() -> bool:
    """Whether this process has created a stream, through PyTorch or directly."""
    known = getattr(ctypes.CDLL(None), "plimsoll_standin_has_streams", None)
    return known is not None and bool(known())


def extend(size: int) -> None:
    """Makes the device's memory larger than the size that the device reports, by `size` bytes."""
    more = ctypes.CDLL(None).plimsoll_standin_extend
    more.argtypes, more.restype = (ctypes.c_uint64,), None
    more(size)


def has_standin() -> bool:
    """Whether the simulated GPU (plimsoll-standin) is loaded in this process."""
    return hasattr(ctypes.CDLL(None), "plimsoll_standin_version")


def libraries() -> list[str]:
    """The libraries that this process has imported and whose memory on the device may be unknown."""
    return [name for name in LIBRARIES if name in sys.modules]
