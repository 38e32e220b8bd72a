"""Makes the program see the disk's free space. An overlay would instead report the free space of the file system that
holds its private files (overlay.rs).
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
    """Returns the function, changed so that it queries the folder below an overlay."""
    import functools

    @functools.wraps(original)
    def statvfs(path: Any) -> os.statvfs_result:
        found: os.statvfs_result = original(path)
        place = os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else os.path.realpath(os.fsdecode(path))
        lower = below(place)
        return found if lower is None else original(lower)

    return statvfs


def below(place: str) -> str | None:
    """The folder of the disk below the innermost overlay that a path lies in."""
    import json

    with open(settings.VIEW) as text:
        covers = json.load(text)["covers"]
    over = [it for it in covers if os.path.commonpath([place, it["place"]]) == it["place"]]
    return max(over, key=lambda it: len(it["place"]))["lower"] if over else None
