"""The settings of `plimsoll predict` and `plan` for this process. A fork that serves a trial of `plan` changes some of them."""

from __future__ import annotations

import os

FOLDER = os.environ.get("PLIMSOLL_PREDICT_FOLDER") or ""  # for the reports
STEPS = int(os.environ.get("PLIMSOLL_PREDICT_STEPS") or 0)  # stop after this many optimizer steps; 0: never
FURTHER = bool(os.environ.get("PLIMSOLL_PREDICT_FURTHER"))  # whether to run further steps for code that did not run
# Whether to run further steps for sizes that change late, but for nothing else that did not run
REACHES = bool(os.environ.get("PLIMSOLL_PREDICT_REACHES"))
SETTLES = bool(os.environ.get("PLIMSOLL_PREDICT_SETTLES"))  # whether to run until the reserved bytes stop growing
STOPS = bool(os.environ.get("PLIMSOLL_PREDICT_STOPS"))  # whether to leave out the code after the steps
LOOKS = bool(os.environ.get("PLIMSOLL_PREDICT_LOOKS"))  # whether to look for memory at the peak that is not read again
# Bytes that the device has in addition to those that it reports.
BEYOND = int(os.environ.get("PLIMSOLL_PREDICT_BEYOND") or 0)
AFTER = int(os.environ.get("PLIMSOLL_PREDICT_AFTER") or 0)  # only after this many failed requests
ALONE = bool(os.environ.get("PLIMSOLL_PREDICT_ALONE"))  # one rank of a job, without the other ranks
RECORDS = not os.environ.get("PLIMSOLL_PREDICT_PEAKS_ONLY")  # whether to record the history
PLAN = os.environ.get("PLIMSOLL_PLAN_FOLDER")  # requests to try sets of techniques
WITH = os.environ.get("PLIMSOLL_WITH")  # techniques, as JSON
VIEW = os.environ.get("PLIMSOLL_PREDICT_VIEW", "")  # the file with the view of the file system, for forks


def number(name: str) -> int | None:
    """The value of an environment variable, if it is a number; finds variables that fsdp hides from the program as
    well.
    """
    text = (os.environ.get(name) or os.environ.get(f"PLIMSOLL_OWN_{name}") or "").strip()
    return int(text) if text.isdecimal() else None


def ranks() -> int:
    """The number of ranks in the job of this process."""
    return number("WORLD_SIZE") or 1
