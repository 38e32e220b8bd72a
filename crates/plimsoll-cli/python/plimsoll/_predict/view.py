"""The view of the file system (overlay.rs, redirect.rs) inside the program. Each fork that serves a trial of `plan`
gets a separate view, so it does not find files from other trials.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
from typing import Any

from .. import protocol
from . import settings

NEWNS, NEWUSER = 0x20000, 0x10000000
NOSUID, NODEV = 2, 4
OPEN_TREE, MOVE_MOUNT, AT_FDCWD = 428, 429, -100
CLONE, RECURSIVE, EMPTY_PATH = 1, 0x8000, 4


def fork(folder: str) -> list[tuple[str, str]]:
    """Creates a separate view for this process, with its private files in the folder. Returns the places of the
    program's files, each with the folder that contains the files written there.
    """
    file, tree = settings.VIEW, os.environ.get("PLIMSOLL_REDIRECT")
    if tree:
        own = os.path.join(folder, "redirect")
        os.mkdir(own)
        parts = [
            os.path.join(tree, name) for name in ("files", "gone", "dirty") if os.path.exists(os.path.join(tree, name))
        ]
        subprocess.run(["cp", "-a", "--sparse=always", *parts, own], check=True)
        os.link(os.path.join(tree, "full"), os.path.join(own, "full"))
        os.environ["PLIMSOLL_REDIRECT"] = own
        ctypes.CDLL(None).plimsoll_redirect_take(os.fsencode(own))
        return [("/", os.path.join(own, "files"))]
    if os.path.exists(file):
        covers = Forked(file, folder).view["covers"]
        return [(cover["place"], upper_of(folder, number)) for number, cover in enumerate(covers)]
    return []


def upper_of(folder: str, number: int) -> str:
    """The private folder for files that this process writes in the folder of overlay `number`."""
    return os.path.join(folder, str(number), "upper")


def written(places: list[tuple[str, str]]) -> list[protocol.Wrote]:
    """The changed files below these folders, under the paths that the program sees."""
    found = []
    for place, upper in places:
        for folder, _, names in os.walk(upper):
            for name in names if os.path.basename(folder) != "__pycache__" else ():
                file = os.path.join(folder, name)
                path = os.path.join(place, os.path.relpath(file, upper))
                found.append(protocol.Wrote(path=path, bytes=os.lstat(file).st_size))
    return sorted(found, key=lambda it: (-it["bytes"], it["path"]))


class Forked:
    """Creates the separate view of a fork, which must have only one thread."""

    def __init__(self, file: str, folder: str) -> None:
        with open(file) as text:
            self.view: protocol.View = json.load(text)
        self.library = ctypes.CDLL(None, use_errno=True)
        here = os.getcwd()
        self.unshare()
        self.call(
            "mount",
            b"plimsoll",
            os.fsencode(folder),
            b"tmpfs",
            NOSUID | NODEV,
            f"mode=700,size={self.view['scratch_bytes']}".encode(),
        )
        session = os.fsencode(self.view["session"])
        kept = self.call("syscall", OPEN_TREE, AT_FDCWD, session, CLONE | RECURSIVE | os.O_CLOEXEC)
        covers = [self.opened(number, cover, folder) for number, cover in enumerate(self.view["covers"])]
        for place, options in covers:
            self.call("mount", b"overlay", os.fsencode(place), b"overlay", NOSUID | NODEV, options.encode())
        self.call("syscall", MOVE_MOUNT, kept, b"", AT_FDCWD, session, EMPTY_PATH)
        os.chdir(here)

    def call(self, name: str, *args: Any) -> int:
        """Calls a function of the C library. Raises OSError if it fails."""
        words = [ctypes.c_long(it) if isinstance(it, int) else it for it in args]
        result = int(getattr(self.library, name)(*words))
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, f"{name}: {os.strerror(code)}")
        return result

    def unshare(self) -> None:
        """Gives this process separate namespaces."""
        if self.view["privileged"]:
            self.call("unshare", NEWNS)
            return
        user, group = os.getuid(), os.getgid()
        self.call("unshare", NEWNS | NEWUSER)
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)

    def opened(self, number: int, cover: protocol.Cover, folder: str) -> tuple[str, str]:
        """Opens the folders of one overlay (a cover); returns where it is mounted, and the options of the mount.
        Files that the program wrote before the fork form a layer between the disk and the files that it writes from
        now on.
        """
        made = [upper_of(folder, number), os.path.join(folder, str(number), "work")]
        for it in made:
            os.makedirs(it)
        status = os.stat(cover["upper"])
        os.chmod(made[0], status.st_mode & 0o7777)
        if self.view["privileged"]:
            os.chown(made[0], status.st_uid, status.st_gid)
        before, disk, upper, work = (
            f"/proc/self/fd/{os.open(it, os.O_PATH | os.O_DIRECTORY)}" for it in (cover["upper"], cover["lower"], *made)
        )
        kind = "redirect_dir=on,index=off" if self.view["privileged"] else "userxattr"
        return cover["place"], f"lowerdir={before}:{disk},upperdir={upper},workdir={work},{kind}"
