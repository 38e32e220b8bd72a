"""Folders can be renamed in the view of the file system (overlay.rs), as on the disk.

In a user namespace an overlay does not rename a folder of the disk: "invalid cross-device link". `shutil.move` copies
it then.
"""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False  # `typing` takes milliseconds, which every process of the program would pay
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def install() -> None:
    """Replaces `os.rename` and `os.replace`."""
    os.rename = renaming(os.rename)
    os.replace = renaming(os.replace)


def renaming(original: Any) -> Callable[..., None]:
    """The function, which copies a folder if it cannot be renamed."""
    import functools

    @functools.wraps(original)
    def rename(source: Any, target: Any, *args: Any, **kwargs: Any) -> None:
        try:
            original(source, target, *args, **kwargs)
        except OSError as why:
            is_plain = why.errno == errno.EXDEV and not args and not kwargs
            if not is_plain or not os.path.isdir(source) or os.path.islink(source):
                raise
            import shutil

            if os.path.isdir(target):
                os.rmdir(target)  # as `rename` does: it fails unless the folder is empty
            shutil.copytree(source, target, symlinks=True)
            shutil.rmtree(source)

    return rename
