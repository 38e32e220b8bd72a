"""Makes the program see the free space of the disk. Without this, an overlay (overlay.rs) reports the free space of the
file system with the program's private files.
"""

from __future__ import annotations

import os

from . import settings

TYPE_CHECKING = False  # importing `typing` would delay every process by milliseconds
if TYPE_CHECKING:
    from typing import Any


def install() -> None:
    """Replaces `os.statvfs`, which `shutil.disk_usage` and psutil call."""
    if os.path.exists(settings.VIEW):
        os.statvfs = of_the_disk(os.statvfs)


def of_the_disk(original: Any) -> Any:
    """Wraps a function so that it queries the folder of the disk that an overlay covers."""
    import functools

    @functools.wraps(original)
    def statvfs(path: Any) -> os.statvfs_result:
        found: os.statvfs_result = original(path)
        place = os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else os.path.realpath(os.fsdecode(path))
        lower = below(place)
        return found if lower is None else original(lower)

    return statvfs


def below(place: str) -> str | None:
    """The folder of the disk that is covered by the innermost overlay that contains a path."""
    import json

    with open(settings.VIEW) as text:
        covers = json.load(text)["covers"]
    over = [it for it in covers if os.path.commonpath([place, it["place"]]) == it["place"]]
    return max(over, key=lambda it: len(it["place"]))["lower"] if over else None
