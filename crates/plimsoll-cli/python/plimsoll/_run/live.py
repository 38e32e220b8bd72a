"""Serves the figures of this process to `plimsoll top`, in the same way as programs that use our own runtime:
through a Unix socket `PID.sock` in a private folder of the user. A client sends a line and gets a line of JSON; the
line `snapshot` writes a memory snapshot.

An error affects only the client: the program continues to train without a live view.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .gauges import Gauges

MOST_CLIENTS = 8
IDLE = 120  # seconds after which a silent client is disconnected
WRITE = 1  # seconds after which a client that does not read is disconnected


class Live:
    """The socket of this process, and the threads that answer its clients."""

    def __init__(self, gauges: Gauges, write: Callable[[], str]) -> None:
        self.gauges, self.write = gauges, write  # `write` writes a snapshot and returns its path
        self.listener: socket.socket | None = None
        self.path: str | None = None
        self.clients = threading.Semaphore(MOST_CLIENTS)

    def serve(self) -> None:
        """Opens the socket. A forked child must not keep its copy of the socket: the child would answer for a parent
        that has ended.
        """
        folder = own_folder()
        self.path = path = os.path.join(folder, f"{os.getpid()}.sock")
        self.listener = listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            os.unlink(path)  # removes the file that an earlier process with the same ID left
        except FileNotFoundError:
            pass
        listener.bind(path)
        listener.listen()
        os.register_at_fork(after_in_child=self.forget)
        threading.Thread(target=self.accept, args=(listener,), name="plimsoll-live", daemon=True).start()

    def forget(self) -> None:
        """In a forked child: closes the copy of the socket."""
        if self.listener is not None:
            self.listener.close()
        self.listener = self.path = None

    def end(self) -> None:
        """Removes the socket."""
        if self.path is not None:
            try:
                os.unlink(self.path)
            except OSError:
                pass

    def accept(self, listener: socket.socket) -> None:
        """Runs in a thread: accepts clients."""
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            if not self.clients.acquire(blocking=False):
                client.close()
                continue
            threading.Thread(target=self.answer, args=(client,), name="plimsoll-live", daemon=True).start()

    def answer(self, client: socket.socket) -> None:
        """Runs in a thread for each client: answers its lines."""
        try:
            with client:
                while True:
                    client.settimeout(IDLE)
                    asked = client.recv(4096)
                    if not asked:
                        return
                    if b"\n" not in asked:
                        continue
                    answer = self.snapshot() if asked.strip() == b"snapshot" else self.sample()
                    client.settimeout(WRITE)
                    client.sendall(json.dumps(answer).encode() + b"\n")
        except Exception:
            pass
        finally:
            self.clients.release()

    def sample(self) -> dict[str, Any]:
        """The current figures. Tries again if a set changes while this thread reads it."""
        for _ in range(3):
            try:
                return self.gauges.sample()
            except RuntimeError:
                pass
        return self.gauges.sample()

    def snapshot(self) -> dict[str, Any]:
        """Writes a snapshot. The answer contains the snapshot's path, or the error."""
        try:
            return dict(schema="plimsoll.snapshot/1", path=self.write(), error=None)
        except Exception as why:
            return dict(schema="plimsoll.snapshot/1", path=None, error=f"{type(why).__name__}: {why}")


def own_folder() -> str:
    """The folder that `plimsoll top` searches. The folder is not used if other users can open it."""
    places = [os.path.join(os.environ.get("TMPDIR") or "/tmp", f"plimsoll-{os.getuid()}")]
    if os.environ.get("XDG_RUNTIME_DIR"):
        places.insert(0, os.path.join(os.environ["XDG_RUNTIME_DIR"], "plimsoll"))
    refused: OSError | None = None
    for place in places:
        try:
            os.mkdir(place, 0o700)
        except FileExistsError:
            pass
        except OSError as why:
            refused = why
            continue
        there = os.lstat(place)
        if stat.S_ISDIR(there.st_mode) and there.st_uid == os.getuid() and not there.st_mode & 0o077:
            return place
        refused = PermissionError(f"{place}: not a folder that only this user can open (mode 0700)")
    raise refused or OSError("no folder for the socket")
