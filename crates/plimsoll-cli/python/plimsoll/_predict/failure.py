"""The exception that ended the program, for the report."""

from __future__ import annotations

import linecache
import re
import traceback

from .. import protocol
from .._inject.sitecustomize import FROZEN
from ..frames import is_library

# Source text that reads a value from the device, and the number of lines before a failure in which to search for this
# text.
READS = (
    r"\.(item|tolist|cpu|numpy|nonzero|all|any|equal|allclose|isnan|isinf|isfinite)\("
    r"|(?<![\w.])(float|int|bool)\((?!os\.|sys\.|args|[\"'0-9])"
)
NEAR = 10


def described(failure: BaseException, technique: str | None = None) -> protocol.Thrown:
    """Describes the exception: its message, the innermost line outside packages, and whether the program reads a value
    from the device shortly before that line.
    """
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(failure.__traceback__)]
    frames = [it for it in frames if not it[0].co_filename.startswith(FROZEN)]  # our own hooks
    own = [it for it in frames if not is_library(it[0].co_filename)] or frames
    reads = False
    for code, line in frames:
        lines = linecache.getlines(code.co_filename)[max(code.co_firstlineno - 1, line - NEAR) : line]
        reads = reads or (not is_library(code.co_filename) and any(re.search(READS, text) for text in lines))
    last = own[-1] if own else None
    return protocol.Thrown(
        kind=type(failure).__name__,
        text=str(failure)[:2000],
        file=last and last[0].co_filename,
        line=last and last[1],
        reads=reads,
        technique=technique,
    )
