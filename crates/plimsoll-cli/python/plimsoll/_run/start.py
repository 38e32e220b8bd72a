"""Starts `plimsoll run` in a Python process: when the program imports PyTorch, `attend.py` takes over."""

from __future__ import annotations

import os

from .. import protocol
from .._inject import imports
from . import settings

TYPE_CHECKING = False  # importing `typing` would delay every process by milliseconds
if TYPE_CHECKING:
    from typing import Any


def begin() -> None:
    """Reports that our Python code is loaded in this process, and waits until PyTorch is imported."""
    loaded()
    os.register_at_fork(after_in_child=loaded)
    imports.hook({"torch": attend})


def loaded() -> None:
    """Answers the launcher; also called in a forked child."""
    settings.answer(protocol.LOADED)


def attend(torch: Any) -> None:
    """Called when PyTorch is imported: starts to watch this process."""
    from .attend import Attend

    Attend(torch)
