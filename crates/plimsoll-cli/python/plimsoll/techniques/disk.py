"""Buffers in files: tensors are moved from the GPU to these files if the host's memory has no room for them.

The files have no name, so Linux deletes them when the process ends, even after `kill -9`. Their space is allocated
before it is used, so a full disk is an error here; otherwise, writing to the mapped file would end the process with
SIGBUS.
"""

from __future__ import annotations

import errno
import os
import tempfile
from typing import Any

import torch

FOLDER = "PLIMSOLL_OFFLOAD_FOLDER"  # the environment variable that names another folder
ROUND = 1 << 20  # sizes are rounded up to a multiple of this, so that buffers can be reused for other tensors
SPARE = 256 << 20  # bytes of the disk that stay free
IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")


class Files:
    """The buffers of a process. With `is_simulated`, the device has no values, so all tensors share one buffer."""

    def __init__(self, folder: str | None = None, is_simulated: bool = False) -> None:
        self.folder, self.is_simulated = folder, is_simulated
        self.free: dict[int, list[Any]] = {}  # unused buffers by size
        self.bytes = 0  # the bytes of all files

    def take(self, bytes: int) -> tuple[Any, None]:
        """A free buffer of at least this many bytes. Like `Pinned.take` (lane.py), returns an event to wait for as
        well, but here the event is always None.
        """
        size = -(-bytes // ROUND) * ROUND
        if self.is_simulated:
            largest = max(self.free, default=0)
            if size > largest:
                self.free = {size: [self.made(size)]}
            return self.free[max(self.free)][0], None
        free = self.free.setdefault(size, [])
        return (free.pop() if free else self.made(size)), None

    def give(self, buffer: Any, event: Any) -> None:
        """Takes a buffer back. Copies from and to a file end before the calls that start them return."""
        if not self.is_simulated:
            self.free[buffer.numel()].append(buffer)

    def made(self, size: int) -> Any:
        """A new buffer.

        Raises `OSError` (ENOSPC) if the disk has no room for it.
        """
        self.folder = self.folder or on_disk()
        with tempfile.TemporaryFile(dir=self.folder) as file:
            if not self.is_simulated:
                reserve(file.fileno(), size, self.folder, self.bytes)
            else:
                os.ftruncate(file.fileno(), size)
            storage = torch.UntypedStorage.from_file(f"/proc/self/fd/{file.fileno()}", True, size)
        self.bytes += size
        return torch.empty(0, dtype=torch.uint8).set_(storage)


def reserve(file: int, size: int, folder: str, used: int) -> None:
    """Allocates the space of a file."""
    disk = os.fstatvfs(file)
    free = disk.f_bavail * disk.f_frsize
    try:
        if size + SPARE > free:
            raise OSError(errno.ENOSPC, "")
        os.posix_fallocate(file, 0, size)
    except OSError as why:
        if why.errno != errno.ENOSPC:
            raise
        text = (
            f"offload-disk uses {used >> 20} MiB in {folder} and needs {size >> 20} MiB more; {free >> 20} MiB are free"
            f" there, of which {SPARE >> 20} MiB must stay free. Set {FOLDER} to another folder"
        )
        raise OSError(errno.ENOSPC, text) from None


def on_disk() -> str:
    """The folder for the files: the folder that the user named, or else the first of the usual folders that is on a
    disk.

    Raises `OSError` if none of them is on a disk.
    """
    named = os.environ.get(FOLDER)
    if named:
        return named
    mounts = mounted()
    for folder in (tempfile.gettempdir(), "/var/tmp", os.getcwd()):
        if os.access(folder, os.W_OK) and kind_of(folder, mounts) not in IN_MEMORY:
            return folder
    raise OSError(errno.ENOENT, f"offload-disk found no writable folder on a disk; set {FOLDER} to one")


def mounted() -> list[tuple[str, str]]:
    """The mounts of this process: the folder and the kind of file system."""
    try:
        with open("/proc/self/mountinfo") as file:
            fields = [line.split() for line in file]
    except OSError:
        return []
    return [(it[4].replace("\\040", " "), it[it.index("-") + 1]) for it in fields if "-" in it]


def kind_of(folder: str, mounts: list[tuple[str, str]]) -> str:
    """The kind of file system of a folder; empty if it is unknown. Of several mounts at the same place, the latest
    counts.
    """
    path = os.path.realpath(folder)
    found, longest = "", -1
    for place, kind in mounts:
        is_above = path == place or path.startswith(place.rstrip("/") + "/")
        if is_above and len(place) >= longest:
            found, longest = kind, len(place)
    return found
