"""Lets the program rename folders in its view of the file system (overlay.rs) as it could on the disk.

In a user namespace, an overlay cannot rename a folder that is on the disk; the error is "invalid cross-device link". So
the folder is copied, as `shutil.move` would do.
"""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False  # importing `typing` would delay every process by milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def install() -> None:
    """Replaces `os.rename` and `os.replace`."""
    os.rename = renaming(os.rename)
    os.replace = renaming(os.replace)


def renaming(original: Any) -> Callable[..., None]:
    """Wraps a function that renames files. The wrapped function copies a folder that cannot be renamed."""
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
                os.rmdir(target)  # as with `rename`, this fails unless the folder is empty
            shutil.copytree(source, target, symlinks=True)
            shutil.rmtree(source)

    return rename
