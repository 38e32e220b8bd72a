"""Records files that the program changes but that an overlay in a user namespace cannot copy (uncopied.rs): Linux
refuses to copy a file whose user or group does not exist in the namespace. The run is then repeated with another
isolation, or the report names the file.
"""

from __future__ import annotations

import os
import re
import stat
import sys

from . import settings

TYPE_CHECKING = False  # importing `typing` would delay every process by milliseconds
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

FILE = os.path.join(os.path.dirname(settings.FOLDER), "uncopied")
# The file for paths that a command started by the program may change. It counts only if the program fails.
NAMED = f"{FILE}-by-a-command"

UNKNOWN = 65534  # the owner or group of a file that the namespace does not have
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


def install() -> None:
    """Watches for changes to files, if this process is in an overlay in a user namespace."""
    if not os.path.exists(settings.VIEW):
        return
    try:
        with open("/proc/self/uid_map") as file:
            mapped = file.read().split()
    except OSError:
        return
    if len(mapped) == 3 and mapped[2] == "1":
        sys.addaudithook(Watch())


class Watch:
    """An audit hook."""

    def __init__(self) -> None:
        self.busy = False

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if (event != "open" and event not in CHANGES and event not in STARTS) or self.busy:
            return
        self.busy = True
        try:
            places, file = (named(event, args), NAMED) if event in STARTS else (copied(event, args), FILE)
            for path in places:
                if is_uncopied(path):
                    note(path, file)
        except Exception:
            pass  # in this case, the program's own call fails
        finally:
            self.busy = False


# For each audit event, the indices of the arguments that are files, entries of a folder, and descriptors of folders.
# Linux copies the file or the folder before it makes the change.
CHANGES: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {
    "os.chmod": ((0,), (), (2,)),
    "os.link": ((0,), (1,), (2, 3)),
    "os.mkdir": ((), (0,), (2,)),
    "os.remove": ((), (0,), (1,)),
    "os.rename": ((0,), (0, 1), (2, 3)),
    "os.rmdir": ((), (0,), (1,)),
    "os.symlink": ((), (1,), (2,)),
    "os.truncate": ((0,), (), ()),
    "os.utime": ((0,), (), (3,)),
    "sqlite3.connect": ((0,), (0,), ()),
}

# The events that start a command, with the positions of its words and of its folder among the arguments.
STARTS: dict[str, tuple[int, int | None]] = {
    "os.exec": (1, None),
    "os.posix_spawn": (1, None),
    "os.spawn": (2, None),
    "os.system": (0, None),
    "subprocess.Popen": (1, 2),
}
MOST_WORDS = 100


def named(event: str, args: tuple[Any, ...]) -> Iterator[str]:
    """The paths that a command names: its working directory and the words that are paths, also within a shell command
    line. A word that does not exist stands for the folder that it would be created in.
    """
    at_words, at_folder = STARTS[event]
    words, given = args[at_words], None if at_folder is None else args[at_folder]
    folder = os.path.abspath(os.fsdecode(given or os.curdir))
    yield folder
    texts = [words] if isinstance(words, (str, bytes)) else list(words)
    parts = [part for text in texts for part in re.split(r"[\s;&|<>()'\"=]+", os.fsdecode(text)) if part]
    for part in parts[:MOST_WORDS]:
        path = os.path.join(folder, part)
        if os.path.exists(path):
            yield path
        yield parent(path)


def copied(event: str, args: tuple[Any, ...]) -> Iterator[str]:
    """The files and folders that Linux copies before a change."""
    if event == "open":
        path, flags = args[0], args[2]
        if isinstance(flags, int) and flags & WRITES and isinstance(path, (str, bytes)):
            yield os.fsdecode(path) if os.path.exists(path) else parent(path)
        return
    files, entries, descriptors = CHANGES[event]
    if any(args[number] != -1 for number in descriptors):
        return  # the path is relative to another folder
    for number in files:
        if isinstance(args[number], (str, bytes)):
            yield os.fsdecode(args[number])
    for number in entries:
        if isinstance(args[number], (str, bytes)):
            yield parent(args[number])


def parent(path: str | bytes) -> str:
    """The folder that contains this file or folder."""
    return os.path.dirname(os.path.abspath(os.fsdecode(path)))


def is_uncopied(path: str) -> bool:
    """Whether the program may change a file or folder, but Linux cannot copy it."""
    try:
        found = os.stat(path)
    except OSError:
        return False
    is_file = stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)
    is_foreign = UNKNOWN in (found.st_uid, found.st_gid)
    return is_file and is_foreign and (os.geteuid() == 0 or os.access(path, os.W_OK))


def note(path: str, file: str) -> None:
    """Adds a path to one of the files above."""
    with open(file, "a") as lines:
        lines.write(f"{os.path.abspath(path)}\n")
