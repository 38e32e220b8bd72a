"""Marks processes as started or done, with empty files in the folder of the run, which the processes of a job share."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from .. import protocol
from . import settings
from .settings import number


def mark(what: str) -> None:
    """Marks this process as started or done, for the other processes."""
    open(os.path.join(settings.FOLDER, f"{os.getpid()}.{what}"), "w").close()


def marks(what: str) -> int:
    """The number of processes with this mark."""
    return sum(name.endswith(f".{what}") for name in os.listdir(settings.FOLDER))


def wait_for_others() -> None:
    """Waits until the other ranks of this machine are done. The first rank that exits may end a store that the other
    ranks still need.
    """
    # The ranks of this machine. Ranks of other machines do not write to this folder.
    world = 1 if settings.ALONE else number("LOCAL_WORLD_SIZE") or number("WORLD_SIZE") or 1
    until = time.time() + 10
    while marks(protocol.DONE) < world and world > 1 and time.time() < until:
        time.sleep(0.02)


def wait_while(goes_on: Callable[[], bool]) -> None:
    """Waits while another thread does something."""
    while goes_on():
        time.sleep(0.05)
