"""The settings that `plimsoll run` passes to this process, and this process's replies."""

from __future__ import annotations

import os

WITH = os.environ.get("PLIMSOLL_WITH")  # techniques, as JSON
WATCH = os.environ.get("PLIMSOLL_RUN_WATCH")  # "full", "all" (the stacks of all steps), "light", or nothing
PROGRAM = os.environ.get("PLIMSOLL_RUN_PROGRAM") or "plimsoll"
CHECK = os.environ.get("PLIMSOLL_RUN_CHECK")  # a plan to compare the peak with
LIMIT = int(os.environ.get("PLIMSOLL_RUN_LIMIT") or 0)  # bytes of each GPU for the allocator; 0: all
NVTX = bool(os.environ.get("PLIMSOLL_RUN_NVTX"))  # whether to add NVTX ranges
COMMAND = os.environ.get("PLIMSOLL_RUN_COMMAND") or "COMMAND"  # the user's command, quoted for a shell
ANSWERS = os.environ.get("PLIMSOLL_RUN_ANSWERS")  # the folder for answers
SNAPSHOTS = os.environ.get("PLIMSOLL_RUN_SNAPSHOTS") or "."


def answer(what: str) -> None:
    """Tells the launcher (answers.rs) that this process is watched."""
    if WITH and ANSWERS:
        try:
            open(os.path.join(ANSWERS, f"{os.getpid()}.{what}"), "w").close()
        except OSError:  # Without an answer, the launcher ends the run.
            pass
